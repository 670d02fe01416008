"""The table of prices by region, list and spot, each read in a source; a project's own rows win."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from builder.core import filemodel, yamlfile
from builder.facts import DATA

TABLE = "prices.yaml"
UNKNOWN = "unknown"
_SIZE = re.compile(r"(?P<family>.+)-(?P<size>[0-9]+)g?")


@dataclass(frozen=True)
class Price:
    """The price of one unit in USD. source: where it was read, and when."""

    usd: float
    source: str


_ITEM = filemodel.matches(
    r"(machine|accelerator|disk|fee)/[A-Za-z0-9._-]+",
    "an item",
    "write machine/TYPE, accelerator/NAME or disk/TYPE",
)


class OwnPrice(filemodel.FileModel):
    """A row of a project's own prices.yaml."""

    item: Annotated[str, _ITEM, Field(examples=["machine/n1-standard-8"])]
    price: Annotated[float, Field(ge=0, allow_inf_nan=False, examples=[0.40])]
    region: str = ""
    spot: bool = False
    source: str | None = None


class OwnPrices(filemodel.FileModel):
    """A project's own prices.yaml."""

    rows: Annotated[
        tuple[OwnPrice, ...],
        Field(examples=[[{"item": "machine/n1-standard-8", "price": 0.40}]]),
    ]


@dataclass(frozen=True)
class Prices:
    """The table: prices by item, region ("" for all) and whether of spot machines.

    region: the one that stands for a cluster, which tells none.
    """

    region: str
    rows: Mapping[tuple[str, str, bool], Price]

    def find(self, item: str, region: str, spot: bool = False) -> Price | None:
        """Return the price of an item in a region, None where nobody has read it.

        A machine without a row has the price of its family, which is linear in its size.
        """
        for place in ("", region or self.region):
            if (price := self.rows.get((item, place, spot))) is not None:
                return price
        sized = _SIZE.fullmatch(item) if item.startswith("machine/") else None
        family = self.rows.get((sized["family"], region or self.region, spot)) if sized else None
        return replace(family, usd=family.usd * int(sized["size"])) if sized and family else None


def load(root: Path | None = None, file: Path | None = None) -> Prices:
    """Return the table, with the rows of the project's prices.yaml in front, and those of `file`.

    Raises InputError with file and line for a row that is wrong.
    """
    table = _table()
    if root is not None and (root / TABLE).is_file():
        table = _with_own(table, root / TABLE)
    return table if file is None else _with_own(table, file)


@cache
def _table() -> Prices:
    """Read builder/facts/prices.yaml."""
    document = yamlfile.parse((DATA / TABLE).read_text(encoding="utf-8"), TABLE)
    content: Any = document.value
    sources = {
        name: f"{source['text']} (read {source['read']})"
        for name, source in content["sources"].items()
    }
    rows = {
        (row["item"], row.get("region", ""), False): Price(
            float(row["price"]), sources[row["source"]]
        )
        for row in content["rows"]
    }
    for entry in content["regional"]:
        for region, pair in entry["prices"].items():
            for text, spot in zip(pair, (False, True), strict=True):
                if text != UNKNOWN:
                    usd = float(text) / float(entry["of"])
                    rows.setdefault(
                        (entry["item"], region, spot), Price(usd, sources[entry["source"]])
                    )
    return Prices(content["region"], rows)


def _with_own(table: Prices, path: Path) -> Prices:
    document = yamlfile.parse(filemodel.read_text(path, str(path)), str(path))
    if document.problems:
        raise filemodel.error(str(path), document.problems)
    try:
        own = OwnPrices.model_validate(document.value)
    except ValidationError as error:
        problems = filemodel.mistakes(document, error.errors(), OwnPrices)
        raise filemodel.error(str(path), problems) from None
    rows = {
        (row.item, row.region, row.spot): Price(row.price, row.source or path.name)
        for row in own.rows
    }
    return replace(table, rows={**table.rows, **rows})
