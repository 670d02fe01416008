"""One dated table of list prices, each row with its source; a project's own rows override it.

A price that is computed (a machine from its vCPUs and memory) says so in its source. An unknown
price is None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from builder.core import yamlfile
from builder.core.errors import InputError
from builder.facts.table import DATA, Source

TABLE = "prices.yaml"
_FIELDS = ("item", "price", "free", "source", "verified")
_SHAPE = re.compile(
    r"(fee|spot|machine|accelerator|disk|storage|registry|build|legacy)/[A-Za-z0-9._-]+"
)


@dataclass(frozen=True)
class Price:
    """The price of one unit of an item in USD. free: units that cost nothing."""

    item: str
    usd: float
    source: Source
    free: float = 0.0


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

    def machine(self, machine: str, accelerators: int = 0) -> tuple[Price | None, bool]:
        """The price of an hour of training on a machine; whether it includes the accelerators."""
        family_name, _, size = machine.rpartition("-")
        family = self.families.get(family_name)
        own_accelerators = machine.startswith(("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-"))
        if row := self.rows.get(f"machine/{machine}"):
            return row, own_accelerators
        if family is None or not size.isdigit():
            return None, own_accelerators
        vcpus, fee = int(size), self.need("fee/training")
        usd = vcpus * family.vcpu + vcpus * family.gb_each * family.gb
        usd *= fee.usd
        if family.carries:
            one = self.get(f"accelerator/{family.carries}")
            if one is None:
                return None, True
            usd += accelerators * one.usd
        return Price(f"machine/{machine}", usd, family.source), bool(family.carries)


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
        tier_units={name: float(one) for name, one in content["units"]["tiers"].items()},
        machine_units={name: float(one) for name, one in content["units"]["machines"].items()},
    )


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
