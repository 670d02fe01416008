"""What a job costs: the bill, line by line.

A price is one that was read in a source; builder/facts/prices.yaml names it with its date.
Everything else has no price, and the total then says "at least". Times are seconds, amounts USD.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from builder.core.display import duration
from builder.facts import DATA, read_table
from builder.jobs import machines
from builder.jobs.ready import Ready

TABLE = "prices.yaml"
UNKNOWN = "unknown"
BILLED_SECONDS = 30
"""Training is billed in steps of this. General knowledge, not verified."""
CLUSTER_REGION = "us-central1"
"""The region that stands for a cluster, which tells none."""
_SIZE = re.compile(r"(machine/.+)-([0-9]+)g?")

Price = tuple[float, str]
"""The price of one unit in USD, and where it was read, and when."""


@cache
def rows() -> Mapping[tuple[str, str, bool], Price]:
    """Return builder/facts/prices.yaml, read once for each process: prices by item, region ("all"
    for everywhere) and whether of spot machines."""
    table = read_table(DATA / TABLE)
    sources = {
        name: f"{row['text']} (read {row['read']})" for name, row in table["sources"].items()
    }
    known: dict[tuple[str, str, bool], Price] = {}
    for entry in table["prices"]:
        for region, pair in entry["prices"].items():
            for text, spot in zip(pair, (False, True), strict=True):
                if text != UNKNOWN:
                    price = float(text) / float(entry["of"]), sources[entry["source"]]
                    known.setdefault((entry["item"], region, spot), price)
    return known


def find(item: str, region: str, spot: bool) -> Price | None:
    """Return the price of an item in a region, None where nobody has read it.

    A machine without a row has the price of its family, which is linear in its size.
    """
    for place in ("all", region):
        if (price := rows().get((item, place, spot))) is not None:
            return price
    if (sized := _SIZE.fullmatch(item)) and (family := find(sized[1], region, spot)):
        return family[0] * int(sized[2]), family[1]
    return None


def gaps(table: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return where prices.yaml, or another table, and the accelerators on offer disagree."""
    table = read_table(DATA / TABLE) if table is None else table
    priced = {entry["item"] for entry in table["prices"]}
    offered = {name for name, device in machines.devices().items() if not device.refused}
    has = {name for name in machines.devices() if f"accelerator/{name}" in priced}
    unread, found = set(table["unread"]), list[str]()
    for name in sorted(offered - has - unread):
        fix = "add the price that a source names, or write it into `unread`"
        found.append(f"{TABLE}: no price of {name}, which machines.yaml offers: {fix}")
    for name in sorted(unread - (offered - has)):
        why = "has a price" if name in has else "is not on offer"
        found.append(f"{TABLE}: unread: {name} {why}: take it out")
    return tuple(found)


@dataclass(frozen=True)
class BillLine:
    what: str
    quantity: float
    unit: str
    item: str
    price: float | None
    usd: float | None
    """`price` and `usd`: none where no price is known."""
    source: str


@dataclass(frozen=True)
class Bill:
    """What is paid, line by line, for so many seconds."""

    job: str
    basis: str
    """Where the time is from."""
    seconds: float
    lines: tuple[BillLine, ...]
    notes: tuple[str, ...]
    on_spot: float | None = None
    """The same on spot machines, None where not every price is known, and where the job is on them
    already; a preemption costs time on top."""
    least: bool = False
    """The time is one that it does not fall below."""

    @property
    def usd(self) -> float:
        return sum(line.usd or 0.0 for line in self.lines)

    @property
    def complete(self) -> bool:
        return all(line.usd is not None for line in self.lines)


def bill(ready: Ready, seconds: float, basis: str, least: bool = False) -> Bill:
    """Return the whole bill of a job whose machines run for so long, or at `least` so long.

    Machines and the fee of the service; a cluster pays none. Boot disks are cents an hour.
    """
    strategy, notes = ready.job.scheduling.strategy, list[str]()
    lines = _lines(ready, seconds, strategy == "spot")
    if not ready.region:
        notes.append(
            f"the prices are Compute Engine's in {CLUSTER_REGION}; a cluster's nodes may differ"
        )
    if strategy == "flex-start":
        notes.append(
            "flex-start has rates of its own, which no source here tells: these are list prices"
        )
    if missing := dict.fromkeys(line.item for line in lines if line.usd is None):
        kind = "spot price" if strategy == "spot" else "price"
        notes.append(f"no {kind} known: {', '.join(missing)}")
    made = Bill(ready.job.id, basis, seconds, lines, tuple(notes), least=least)
    on_spot = replace(made, lines=_lines(ready, seconds, spot=True))
    cheaper = on_spot.complete and strategy != "spot"
    return replace(made, on_spot=on_spot.usd) if cheaper else made


def _lines(ready: Ready, seconds: float, spot: bool) -> tuple[BillLine, ...]:
    lines, suffix = list[BillLine](), ", spot" if spot else ""
    hours = math.ceil(seconds / BILLED_SECONDS) * BILLED_SECONDS / 3600

    def add(what: str, quantity: float, unit: str, item: str) -> None:
        price, source = find(item, ready.region or CLUSTER_REGION, spot) or (None, "")
        usd = None if price is None else quantity * price
        lines.append(BillLine(what, quantity, unit, item, price, usd, source))

    for pool, placement in ready.pools:
        name, device = f"{pool.role}: {pool.count} x", placement.device
        if not placement.on_tpu:  # the price of a TPU has its host
            item = f"machine/{placement.machine}"
            add(f"{name} {placement.machine}{suffix}", pool.count * hours, "h", item)
        if device is not None:
            what = f"{name} {placement.count} x {device.name}{suffix}"
            add(what, pool.count * hours * placement.count, "h", f"accelerator/{device.name}")
    if ready.region:
        add("the fee of Vertex AI", sum(line.usd or 0.0 for line in lines), "USD", "fee/vertex")
    return tuple(lines)


def as_text(bill: Bill) -> Iterator[str]:
    least = "at least " if bill.least else ""
    yield f"{bill.job}: {least}{duration(bill.seconds)} ({bill.basis})"
    width = max(len(line.what) for line in bill.lines)
    for line in bill.lines:
        start = f"  {line.what:<{width}}  {_number(line.quantity):>9} {line.unit:<8}"
        if line.usd is None or line.price is None:
            yield f"{start}   no price known"
        else:
            yield f"{start} x {_number(line.price, 6):>9} = {line.usd:>10.4f}"
    least = "" if bill.complete and not bill.least else "at least "
    yield f"  {'total':<{width}}  {least}USD {bill.usd:,.4f}"
    if bill.on_spot is not None:
        yield f"  {'on spot machines':<{width}}  {least}USD {bill.on_spot:,.4f}"
    yield from (f"note: {note}" for note in bill.notes)
    for source in dict.fromkeys(line.source for line in bill.lines if line.source):
        yield f"prices: {source}"


def as_json(bill: Bill) -> dict[str, Any]:
    return {**asdict(bill), "usd": bill.usd, "complete": bill.complete}


def _number(value: float, digits: int = 4) -> str:
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")
