"""What a job costs, before or after it runs: the bill, line by line.

A price is one that was read in a source; the table (prices.py) names it with its date. Everything
else has no price, and the total then says "at least". Times are seconds, amounts USD.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.pools import Pool
from builder.jobs.prices import Price, Prices
from builder.jobs.ready import Ready

BILLED_SECONDS = 30
"""Training is billed in steps of this. General knowledge, not verified."""
MONTH_HOURS = 730.0
FLEX_START = "flex-start"


# --- the bill -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BillLine:
    """One line of a bill: quantity x price. price and usd: None where no price is known."""

    what: str
    quantity: float
    unit: str
    item: str
    price: float | None
    usd: float | None
    source: str


@dataclass(frozen=True)
class Work:
    """What a job's machines do. seconds: of one run, or of all trials. region: "" for a cluster,
    which pays no fee, and whose disks are the node pools'."""

    name: str
    basis: str
    seconds: float
    pools: tuple[Pool, ...]
    region: str
    strategy: str


@dataclass(frozen=True)
class Bill:
    """What is paid, line by line. on_spot: the same on spot machines, None where not every price is
    known, and where the work is on them already; a preemption costs time on top."""

    work: Work
    lines: tuple[BillLine, ...]
    notes: tuple[str, ...] = ()
    on_spot: float | None = None

    @property
    def usd(self) -> float:
        """Return the sum of the lines whose price is known."""
        return sum(line.usd for line in self.lines if line.usd is not None)

    @property
    def complete(self) -> bool:
        """Tell whether every line has a price."""
        return all(line.usd is not None for line in self.lines)


def _line(what: str, quantity: float, unit: str, item: str, price: Price | None) -> BillLine:
    if price is None:
        return BillLine(what, quantity, unit, item, None, None, "")
    return BillLine(what, quantity, unit, item, price.usd, quantity * price.usd, price.source)


def bill(work: Work, prices: Prices) -> Bill:
    """Return the whole bill: machines, disks and the fee of the service."""
    spot, disks = work.strategy == "spot", tuple(_disks(work, prices))
    lines = (*training(work, prices, spot), *disks)
    notes = []
    if not work.region:
        notes.append(
            f"the prices are Compute Engine's in {prices.region}, without disks; a cluster's nodes "
            "may differ"
        )
    if work.strategy == FLEX_START:
        notes.append(
            "flex-start has rates of its own, which no source here tells: these are list prices"
        )
    if missing := dict.fromkeys(line.item for line in lines if line.usd is None):
        kind = "spot price" if spot else "price"
        notes.append(f"no {kind} known: {', '.join(missing)}; add it to prices.yaml")
    cheaper = Bill(work, (*training(work, prices, True), *disks))
    return Bill(work, lines, tuple(notes), cheaper.usd if cheaper.complete and not spot else None)


def training(work: Work, prices: Prices, spot: bool) -> tuple[BillLine, ...]:
    """Return the lines of a job's machines, of their accelerators and of the service's fee."""
    suffix, lines = ", spot" if spot else "", []
    for pool in work.pools:
        quantity, name = pool.count * _hours(work), f"{pool.role}: {pool.count} x"
        if not (pool.accelerator or "").startswith("TPU"):  # the price of a TPU has its host
            item = f"machine/{pool.machine}"
            price = prices.find(item, work.region, spot)
            lines.append(_line(f"{name} {pool.machine}{suffix}", quantity, "h", item, price))
        if pool.accelerator:
            item = f"accelerator/{pool.accelerator}"
            what = f"{name} {pool.accelerators} x {pool.accelerator}{suffix}"
            price = prices.find(item, work.region, spot)
            lines.append(_line(what, quantity * pool.accelerators, "h", item, price))
    if work.region:
        usd = sum(line.usd or 0.0 for line in lines)
        fee = prices.find("fee/vertex", work.region)
        lines.append(_line("the fee of Vertex AI", usd, "USD", "fee/vertex", fee))
    return tuple(lines)


def _hours(work: Work) -> float:
    return math.ceil(work.seconds / BILLED_SECONDS) * BILLED_SECONDS / 3600


def _disks(work: Work, prices: Prices) -> Iterator[BillLine]:
    """Yield the boot disks. Those of a cluster are its node pools'."""
    for pool in work.pools if work.region else ():
        item, what = f"disk/{pool.disk_type}", f"{pool.disk_gb} GB {pool.disk_type}"
        months = pool.count * _hours(work) * pool.disk_gb / MONTH_HOURS
        price = prices.find(item, work.region)
        yield _line(f"{pool.role}: {pool.count} x {what}", months, "GB month", item, price)


# --- how long -------------------------------------------------------------------------------------


def before(ready: Ready, seconds: float) -> Work:
    """Return the work of a job that is not sent yet, and that runs for so long."""
    basis = "the time given"
    if ready.job.study is not None:
        seconds *= ready.job.study.trials
        basis += f", {ready.job.study.trials} trials"
    pools = tuple(
        replace(
            pool,
            machine=placement.machine,
            accelerator=placement.device.name if placement.device else None,
            accelerators=placement.count,
            disk_type=ready.job.disk.type or machines.default_disk(placement.machine),
        )
        for pool, placement in ready.pools
    )
    strategy = ready.job.scheduling.strategy
    return Work(ready.job.id, basis, seconds, pools, ready.region, strategy)


def after(job: JobStatus) -> Work:
    """Return the work of a job that ran. Raises InputError before its end."""
    if job.active:
        raise InputError(
            f"{job.display_name} is {job.state}: it has not ended",
            f"builder job logs {job.id} --follow",
        )
    seconds, basis = job.seconds or 0.0, "it never started"
    if job.trials:
        seconds = sum(trial.seconds or 0.0 for trial in job.trials)
        basis = f"{len(job.trials)} trials that ran"
    elif job.seconds is not None:
        basis = "from its start to its end; the service bills provisioning too"
    pools = tuple(_named(pool) for pool in job.pools)
    return Work(job.display_name, basis, seconds, pools, job.region, job.strategy)


def _named(pool: Pool) -> Pool:
    """Return a pool that ran, in the names of the price table."""
    if pool.topology:
        placed = machines.place(pool.machine, topology=pool.topology)
        name = placed.device.name if placed.device else None
        return replace(pool, accelerator=name, accelerators=placed.count)
    if pool.accelerator:
        return replace(pool, accelerator=machines.device(pool.accelerator, pool.machine).name)
    return replace(pool, accelerators=0)


# --- as text --------------------------------------------------------------------------------------


def as_text(bill: Bill) -> Iterator[str]:
    """Yield the bill, line by line."""
    yield f"{bill.work.name}: {length(bill.work.seconds)} ({bill.work.basis})"
    width = max(len(line.what) for line in bill.lines)
    for line in bill.lines:
        start = f"  {line.what:<{width}}  {_number(line.quantity):>9} {line.unit:<8}"
        if line.usd is None or line.price is None:
            yield f"{start}   no price known"
        else:
            yield f"{start} x {_number(line.price, 6):>9} = {line.usd:>10.4f}"
    least = "" if bill.complete else "at least "
    yield f"  {'total':<{width}}  {least}USD {bill.usd:,.4f}"
    if bill.on_spot is not None:
        yield f"  {'on spot machines':<{width}}  USD {bill.on_spot:,.4f}"
    yield from (f"note: {note}" for note in bill.notes)
    for source in dict.fromkeys(line.source for line in bill.lines if line.source):
        yield f"prices: {source}"


def as_json(bill: Bill) -> dict[str, Any]:
    """Return the bill as JSON values."""
    work = bill.work
    what = {"job": work.name, "basis": work.basis, "seconds": work.seconds}
    sums = {"usd": bill.usd, "complete": bill.complete, "on_spot": bill.on_spot}
    lines = [asdict(line) for line in bill.lines]
    return {**what, **sums, "lines": lines, "notes": list(bill.notes)}


def length(seconds: float) -> str:
    """Return a length of time in words: 1 h 20 min."""
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")
