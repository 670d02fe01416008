"""The table of prices by region, list and spot, each read in a source; a project's own rows win."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.facts import DATA

TABLE = "prices.yaml"
UNKNOWN = "unknown"
_FIELDS = ("item", "price", "free", "region", "spot", "source")
_ITEM = re.compile(r"(machine|accelerator|disk|storage|registry|build|fee)/[A-Za-z0-9._-]+")
_SIZE = re.compile(r"(?P<family>.+)-(?P<size>[0-9]+)g?")


@dataclass(frozen=True)
class Price:
    """The price of one unit in USD. source: where it was read, and when. free: units a month that
    cost nothing."""

    usd: float
    source: str
    free: float = 0.0


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
    if file is not None and not file.is_file():
        raise InputError(f"--prices {file}: there is no such file", "name a file with rows:")
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
            float(row["price"]), sources[row["source"]], float(row.get("free", 0))
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
    document = yamlfile.parse(path.read_text(encoding="utf-8"), str(path))
    content = document.value
    if document.problems:
        problem = document.problems[0]
        raise InputError(f"{path}:{problem.line}: {problem.field}: {problem.what}", problem.fix)
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise InputError(
            f"{path}:1: no rows", "rows:\n- {item: machine/n1-standard-8, price: 0.40}"
        )
    own = {}
    for index, row in enumerate(rows):
        where = f"{path}:{document.line('rows', index)}: rows.{index}"
        key, price = _own_row(row, where, path.name)
        own[key] = price
    return replace(table, rows={**table.rows, **own})


def _own_row(row: Any, where: str, name: str) -> tuple[tuple[str, str, bool], Price]:
    if not isinstance(row, dict) or "item" not in row or "price" not in row:
        raise InputError(
            f"{where}: needs item and price", "{item: machine/n1-standard-8, price: 0.40}"
        )
    if unknown := [key for key in row if key not in _FIELDS]:
        raise InputError(f"{where}: {unknown[0]}: unknown key", f"known keys: {', '.join(_FIELDS)}")
    item, region = str(row["item"]), str(row.get("region", ""))
    if not _ITEM.fullmatch(item):
        raise InputError(
            f"{where}: {item!r} is not an item",
            "write machine/TYPE, accelerator/NAME, disk/TYPE, build/TYPE ...",
        )
    try:
        usd, free = float(str(row["price"])), float(str(row.get("free", 0)))
    except ValueError:
        usd = free = -1.0
    if not (0 <= usd < math.inf and 0 <= free < math.inf):
        raise InputError(f"{where}: {row['price']!r} is no price", "write a number of USD")
    spot = str(row.get("spot", "false")).lower() == "true"
    return (item, region, spot), Price(usd, str(row.get("source") or name), free)
