"""One dated table of prices by region, list and spot, each with its source; a project's own rows
override it.

A price that is computed (a machine from its vCPUs and memory) says so in its source. An unknown
price is None, never a guess. A list price that is known of the table's own region alone stands for
other regions, and says so; a spot price never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.facts.table import DATA, Source

TABLE = "prices.yaml"
_FIELDS = ("item", "price", "free", "source", "verified")
UNKNOWN = "unknown"
_SIZE = re.compile(r"(?P<family>.+)-(?P<size>[0-9]+)g?")
_SHAPE = re.compile(
    r"(fee|spot|machine|accelerator|disk|storage|registry|build|legacy)/[A-Za-z0-9._-]+"
)


@dataclass(frozen=True)
class Price:
    """The price of one unit of an item in USD. free: units that cost nothing. region: where it
    holds, "" for everywhere."""

    item: str
    usd: float
    source: Source
    free: float = 0.0
    region: str = ""


@dataclass(frozen=True)
class Regional:
    """An item's price an hour on Compute Engine, (list, spot) by region; None: not known.

    of: the size of the machine, or the number of accelerators, that the price is for. carries: the
    accelerator that the machines carry, which is paid beside this price.
    """

    of: float
    prices: Mapping[str, tuple[float | None, float | None]]
    source: Source
    carries: str | None = None


@dataclass(frozen=True)
class Market:
    """Where and how machines are taken. region: "" for the table's own."""

    region: str = ""
    spot: bool = False


HOME = Market()
"""The table's own region, at the list price."""


@dataclass(frozen=True)
class Family:
    """A machine family on Compute Engine: USD an hour for a vCPU and for a GB of memory.

    gb_each: GB for each vCPU. carries: the accelerator that the machines' price includes.
    """

    vcpu: float
    gb: float
    gb_each: float
    source: Source
    carries: str | None = None


@dataclass(frozen=True)
class Prices:
    """The table. `own`: the items that a project's rows replaced."""

    as_of: str
    region: str
    rows: Mapping[str, Price]
    families: Mapping[str, Family] = field(default_factory=dict)
    regional: Mapping[str, Regional] = field(default_factory=dict)
    tier_units: Mapping[str, float] = field(default_factory=dict)
    machine_units: Mapping[str, float] = field(default_factory=dict)
    own: frozenset[str] = frozenset()

    def get(self, item: str) -> Price | None:
        """The price of an item, None where it is not known."""
        return self.rows.get(item)

    def need(self, item: str) -> Price:
        """The price of an item that every table has. Raises InputError."""
        found = self.rows.get(item)
        if found is None:
            raise InputError(
                f"no price for {item}", f"add a row {{item: {item}, price: ...}} to prices.yaml"
            )
        return found

    def machine(
        self, machine: str, accelerators: int = 0, market: Market = HOME
    ) -> tuple[Price | None, bool]:
        """The price of an hour of training on a machine; whether it includes the accelerators."""
        carries = machine.startswith(("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-"))
        here = self._there(f"machine/{machine}", lambda: self._by_parts(machine, accelerators))
        return self._at(here, market, lambda: self._machine_in(machine, accelerators, market)), (
            carries
        )

    def accelerator(self, name: str, market: Market = HOME) -> Price | None:
        """The price of an hour of training on one accelerator."""
        item = f"accelerator/{name}"
        here = self._there(item, lambda: None)
        return self._at(here, market, lambda: self._in(item, 1, market))

    # --- pieces ---

    def _there(self, item: str, otherwise: Callable[[], Price | None]) -> Price | None:
        """The list price in the table's own region; an own row holds everywhere."""
        found = self.rows.get(item) or otherwise()
        if found is None or item in self.own:
            return found
        return replace(found, region=self.region)

    def _at(
        self, here: Price | None, market: Market, there: Callable[[], Price | None]
    ) -> Price | None:
        """here: the list price in the table's own region. there: the price of the market."""
        share = self.rows.get("spot/share")  # a project's own
        if market.spot:
            if share is None or here is None:
                return there()
            source = Source(
                f"{share.usd:.0%} of the list price ({share.source.text}); {here.source.text}",
                share.source.verified and here.source.verified,
            )
            return replace(here, usd=here.usd * share.usd, source=source)
        if here is not None and here.region in ("", market.region or self.region):
            return here
        return there() or here

    def _by_parts(self, machine: str, accelerators: int) -> Price | None:
        """A machine without a row, from its vCPUs and its memory."""
        family_name, _, size = machine.rpartition("-")
        family = self.families.get(family_name)
        if family is None or not size.isdigit():
            return None
        vcpus, fee = int(size), self.need("fee/training")
        usd = vcpus * family.vcpu + vcpus * family.gb_each * family.gb
        usd *= fee.usd
        if family.carries:
            one = self.get(f"accelerator/{family.carries}")
            if one is None:
                return None
            usd += accelerators * one.usd
        return Price(f"machine/{machine}", usd, family.source)

    def _machine_in(self, machine: str, accelerators: int, market: Market) -> Price | None:
        """A machine in a region, with the accelerators that it carries."""
        match = _SIZE.fullmatch(machine)
        item = f"machine/{match['family']}" if match else ""
        found = self._in(item, int(match["size"]) if match else 0, market)
        carried = self.regional[item].carries if item in self.regional else None
        if found is None or carried is None:
            return found and replace(found, item=f"machine/{machine}")
        one = self._in(f"accelerator/{carried}", accelerators, market)
        if one is None:
            return None
        return replace(found, item=f"machine/{machine}", usd=found.usd + one.usd)

    def _in(self, item: str, count: float, market: Market) -> Price | None:
        """`count` of an item in a region, with the fee of training."""
        found, region = self.regional.get(item), market.region or self.region
        listed, spot = found.prices.get(region, (None, None)) if found else (None, None)
        usd = spot if market.spot else listed
        if found is None or usd is None:
            return None
        usd *= count / found.of * self.need("fee/training").usd
        return Price(item, usd, found.source, region=region)


@cache
def table() -> Prices:
    """builder/facts/prices.yaml, read once for each process."""
    document = yamlfile.parse((DATA / TABLE).read_text(encoding="utf-8"), TABLE)
    content: Any = document.value
    sources = {
        key: Source(one["text"], one["verified"] == "true")
        for key, one in content["sources"].items()
    }
    return Prices(
        as_of=content["as_of"],
        region=content["region"],
        rows={
            row["item"]: Price(
                row["item"], float(row["price"]), sources[row["source"]], float(row.get("free", 0))
            )
            for row in content["rows"]
        },
        families={
            name: Family(
                float(one["vcpu"]),
                float(one["gb"]),
                float(one["gb_each"]),
                sources[one["source"]],
                one.get("carries"),
            )
            for name, one in content["families"].items()
        },
        regional={one["item"]: _regional(one, sources) for one in content["regional"]},
        tier_units={name: float(one) for name, one in content["units"]["tiers"].items()},
        machine_units={name: float(one) for name, one in content["units"]["machines"].items()},
    )


def _regional(one: Mapping[str, Any], sources: Mapping[str, Source]) -> Regional:
    def number(text: str) -> float | None:
        return None if text == UNKNOWN else float(text)

    prices = {
        region: (number(listed), number(spot)) for region, (listed, spot) in one["prices"].items()
    }
    return Regional(float(one["of"]), prices, sources[one["source"]], one.get("carries"))


def load(root: Path | None = None, file: Path | None = None) -> Prices:
    """The table, overridden by the project's prices.yaml, and that by `file`.

    Raises InputError with file and line for a row that is wrong.
    """
    found = table()
    if root is not None and (root / TABLE).is_file():
        found = _over(found, root / TABLE)
    if file is not None:
        if not file.is_file():
            raise InputError(f"--prices {file}: there is no such file", "name a file with rows:")
        found = _over(found, file)
    return found


def _over(known: Prices, path: Path) -> Prices:
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
        price = _row(row, where, path.name)
        own[price.item] = price
    return replace(known, rows={**known.rows, **own}, own=known.own | frozenset(own))


def _row(row: Any, where: str, name: str) -> Price:
    if not isinstance(row, dict) or "item" not in row or "price" not in row:
        raise InputError(
            f"{where}: needs item and price", "{item: machine/n1-standard-8, price: 0.40}"
        )
    if unknown := [one for one in row if one not in _FIELDS]:
        raise InputError(f"{where}: {unknown[0]}: unknown key", f"known keys: {', '.join(_FIELDS)}")
    if not _SHAPE.fullmatch(str(row["item"])):
        raise InputError(
            f"{where}: {row['item']!r} is not an item",
            "write machine/TYPE, accelerator/NAME, disk/TYPE, build/TYPE ...",
        )
    try:
        usd, free = float(str(row["price"])), float(str(row.get("free", 0)))
    except ValueError:
        usd = free = -1.0
    if not (0 <= usd < float("inf") and 0 <= free < float("inf")):
        raise InputError(f"{where}: {row['price']!r} is no price", "write a number of USD")
    verified = str(row.get("verified", "false")).lower() == "true"
    return Price(str(row["item"]), usd, Source(str(row.get("source") or name), verified), free)
