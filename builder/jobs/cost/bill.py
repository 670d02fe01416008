"""The bill of a job, before or after it runs; the same work on a notebook and on spot machines.

Times are seconds, amounts USD. A line without a known price has no amount, and the total then says
"at least". Only the billed time is rounded; amounts are rounded when they are shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import contract
from builder.core.errors import InputError
from builder.facts.table import Source
from builder.jobs import machines
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.cost.prices import HOME, Market, Price, Prices
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready

BILLED_SECONDS = 30
"""Training is billed in steps of this. General knowledge, not verified."""
MONTH_HOURS = 730.0
LEFT_ON_HOURS = 15.0
"""From a connection that broke in the evening to the next morning: an assumption."""


@dataclass(frozen=True)
class BillLine:
    """One line of a bill: quantity x price. usd: None where the price is not known. region: where
    the price holds, "" for everywhere."""

    what: str
    quantity: float
    unit: str
    price: float | None
    usd: float | None
    source: Source
    item: str = ""
    region: str = ""


@dataclass(frozen=True)
class Bill:
    """What is paid, line by line. seconds: the machine time of the bill."""

    lines: tuple[BillLine, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """The sum of the lines whose price is known."""
        return sum(line.usd for line in self.lines if line.usd is not None)

    @property
    def complete(self) -> bool:
        """Whether every line has a price."""
        return all(line.usd is not None for line in self.lines)

    @property
    def verified(self) -> bool:
        """Whether somebody of this project has read every price in its source."""
        return all(line.source.verified for line in self.lines)


def of_ready(ready: Ready) -> tuple[Pool, ...]:
    """The machines of a job that is not sent yet, in the names of the price table, with the disk
    that they get."""
    asked = ready.job.disk.type
    return tuple(
        replace(
            pool,
            machine=placement.machine,
            accelerator=placement.device.name if placement.device else None,
            accelerators=placement.count,
            disk_type=asked or machines.default_disk(placement.machine),
        )
        for pool, placement in ready.pools
    )


def of_status(job: JobStatus) -> tuple[Pool, ...]:
    """The machines of a job that ran, in the names of the price table."""
    found = []
    for pool in job.pools:
        name, count = None, 0
        if pool.topology:
            placed = machines.place(pool.machine, topology=pool.topology)
            name, count = placed.device.name if placed.device else None, placed.count
        elif pool.accelerator:
            name = machines.device(pool.accelerator, pool.machine).name
            count = pool.accelerators
        found.append(replace(pool, accelerator=name, accelerators=count))
    return tuple(found)


# --- machines -------------------------------------------------------------------------------------


def training(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    *,
    market: Market = HOME,
    disks: bool = True,
) -> tuple[BillLine, ...]:
    """Machines and accelerators for a time in seconds; with `disks` their boot disks, too."""
    hours = math.ceil(seconds / BILLED_SECONDS) * BILLED_SECONDS / 3600
    spot = ", spot" if market.spot else ""
    lines = []
    for one in pools:
        quantity = one.count * hours
        row, included = prices.machine(one.machine, one.accelerators, market)
        if not _tpu_host(one):
            what = f"{one.role}: {one.count} x {one.machine}" + (
                f" with {one.accelerators} x {one.accelerator}" if included else ""
            )
            lines.append(_line(what + spot, quantity, "h", row, f"machine/{one.machine}"))
        if one.accelerator and not included:
            what = f"{one.role}: {one.count} x {one.accelerators} x {one.accelerator}{spot}"
            each = prices.accelerator(one.accelerator, market)
            item = f"accelerator/{one.accelerator}"
            lines.append(_line(what, quantity * one.accelerators, "h", each, item))
        if disks:
            disk = f"disk/{one.disk_type}"
            what = f"{one.role}: {one.count} x {one.disk_gb} GB {one.disk_type}"
            months = quantity * one.disk_gb / MONTH_HOURS
            lines.append(_line(what, months, "GB month", prices.get(disk), disk))
    return tuple(lines)


def _tpu_host(one: Pool) -> bool:
    return bool(one.accelerator and one.accelerator.startswith("TPU"))


def _line(what: str, quantity: float, unit: str, row: Price | None, item: str) -> BillLine:
    if row is None:
        return BillLine(what, quantity, unit, None, None, Source("no price is known", False), item)
    return BillLine(what, quantity, unit, row.usd, quantity * row.usd, row.source, item, row.region)


@dataclass(frozen=True)
class Extras:
    """What a job pays beside its machines, in gigabytes, months and minutes."""

    storage_gb: float = 0.0
    image_gb: float = 0.0
    months: float = 1.0
    build_minutes: float = 0.0
    build_machine: str = "e2-standard-2"


def extras(wanted: Extras, prices: Prices) -> tuple[BillLine, ...]:
    """Storage of outputs and images, and Cloud Build. Free quantities are subtracted."""
    lines = []
    if wanted.storage_gb:
        item = "storage/standard"
        quantity = wanted.storage_gb * wanted.months
        what = f"{wanted.storage_gb:g} GB in Cloud Storage"
        lines.append(_line(what, quantity, "GB month", prices.get(item), item))
    if wanted.image_gb:
        item = "registry/storage"
        row = prices.get(item)
        paid = max(0.0, wanted.image_gb - (row.free if row else 0.0))
        what = f"{wanted.image_gb:.2f} GB of images in Artifact Registry"
        what += f", {row.free:g} GB free" if row and row.free else ""
        lines.append(_line(what, paid * wanted.months, "GB month", row, item))
    if wanted.build_minutes:
        item = f"build/{wanted.build_machine}"
        row = prices.get(item)
        if row is None:
            known = [one.split("/")[1] for one in prices.rows if one.startswith("build/")]
            raise InputError(
                f"Cloud Build has no machine {wanted.build_machine} in the price table",
                f"known: {', '.join(known)}",
            )
        what = f"Cloud Build on {wanted.build_machine}"
        if row.free:
            what += f" ({row.free:g} minutes a month are free, not taken off)"
        lines.append(_line(what, wanted.build_minutes, "min", row, item))
    return tuple(lines)


FLEX_START = "flex-start"


def bill(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    *,
    region: str,
    strategy: str = "standard",
    more: Extras | None = None,
) -> Bill:
    """The whole bill: machines for `seconds`, and the extras.

    region: "" for a cluster's own, whose boot disks are the node pools'. strategy: that of the
    job's machines.
    """
    market = Market(region, spot=strategy == "spot")
    paid = training(pools, seconds, prices, market=market, disks=bool(region))
    lines = (*paid, *extras(more or Extras(), prices))
    notes = []
    if not region:
        notes.append(
            f"the prices are Vertex AI's in {prices.region}, without disks; a cluster's nodes may "
            "differ"
        )
    elif elsewhere := [line.item for line in lines if line.region not in ("", region)]:
        notes.append(
            f"the price of {', '.join(dict.fromkeys(elsewhere))} is that of {prices.region}; "
            f"{region} may differ"
        )
    if strategy == FLEX_START:
        notes.append(
            "flex-start has rates of its own, which no source here tells: these are list prices"
        )
    missing = [line.item for line in lines if line.usd is None]
    if missing:
        kind = "spot price" if market.spot else "price"
        notes.append(
            f"no {kind} is known for {', '.join(dict.fromkeys(missing))}: add it to prices.yaml"
        )
    return Bill(lines, seconds, tuple(notes))


# --- how long -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A run that was measured. rate: examples a second; overhead: seconds that are not training."""

    rate: float
    overhead: float
    examples: float
    where: str


def measured(path: Path) -> Measured:
    """The rate of a run of the trainer, from its summary.json. Raises InputError."""
    file = path / "summary.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rate = float(content["speed"]["examples_per_second"])
        spent = content["time"]
        useful = float(spent["work_seconds"]["useful"])
        overhead = max(0.0, float(spent["wall_seconds"]) - useful)
        examples = float(content["examples"])
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror}", "name the folder of a finished run, or its summary.json"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: not a summary of the trainer ({type(error).__name__}: {error})",
            "name the summary.json that a run of the trainer wrote",
        ) from None
    if not (rate > 0 and math.isfinite(rate)):
        raise InputError(
            f"{file}: examples_per_second is {rate}", "measure a run that trains some steps"
        )
    return Measured(rate, overhead, examples, str(file))


def projected(run: Measured, examples: float, speedup: float = 1.0) -> float:
    """Seconds for so many examples at `speedup` times the measured rate, start and end as there."""
    if speedup <= 0 or not math.isfinite(speedup):
        raise InputError(f"--speedup {speedup:g}: must be more than 0", "write 1 for the same rate")
    return run.overhead + examples / (run.rate * speedup)


def asked_examples(arguments: Sequence[str]) -> float | None:
    """Steps x batch size, as the job's arguments say them; None where they do not."""
    given = contract.options(arguments)
    try:
        steps = float(given[contract.STEPS])
        batch = float(given.get(contract.BATCH_SIZE) or given[contract.BATCH])
    except (KeyError, ValueError):
        return None
    return steps * batch


# --- beside it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notebook:
    """The cost of the same machines as notebooks: for the work, and for hours they stay on."""

    work: float
    idle: float
    hours: float
    complete: bool
    verified: bool = False

    @property
    def usd(self) -> float:
        return self.work + self.idle


def notebook(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    left_on: float = LEFT_ON_HOURS,
    region: str = "",
) -> Notebook:
    """The job's machines, all of them, as notebooks, at Compute Engine's price without the fee of
    training.

    left_on: hours that they stay on after the work. The fee of a managed notebook is not included.
    """
    fee, market = prices.need("fee/training"), Market(region)
    work = training(pools, seconds, prices, market=market)
    idle = training(pools, left_on * 3600, prices, market=market)
    known = all(line.usd is not None for line in (*work, *idle))
    return Notebook(
        work=sum(line.usd or 0.0 for line in work) / fee.usd,
        idle=sum(line.usd or 0.0 for line in idle) / fee.usd,
        hours=left_on,
        complete=known,
        verified=fee.source.verified and all(line.source.verified for line in (*work, *idle)),
    )


@dataclass(frozen=True)
class Spot:
    """A job on spot machines. seconds: expected, with what restarts cost; None: it never ends.
    usd: None there, and where a price is not known (complete: all are).

    interval: seconds between checkpoints; a restart loses half of it on average, and `restart`
    seconds until training goes on. break_even: preemptions a day from which spot costs more.
    """

    interval: float
    restart: float
    per_day: float
    seconds: float | None
    restarts: float
    lost: float
    usd: float | None
    standard: float
    break_even: float
    verified: bool = False
    complete: bool = True


def spot(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    *,
    interval: float,
    restart: float,
    per_day: float,
    region: str = "",
) -> Spot:
    """Standard against spot, by the preemptions a day of any one machine of the job.

    Every preemption stops all replicas (synchronous training). The expected time T solves
    T = seconds + T x rate x (interval / 2 + restart): restarts happen in repeated work too.
    """
    for name, value in (("checkpoint interval", interval), ("restart", restart)):
        if value < 0 or not math.isfinite(value):
            raise InputError(f"the {name} is {value:g} s", "write a length of time, such as 5m")
    if per_day < 0 or not math.isfinite(per_day):
        raise InputError(f"{per_day:g} preemptions a day", "write 0 or more")
    machines_ = sum(one.count for one in pools)
    rate = per_day / 86_400 * machines_
    each = interval / 2 + restart
    share = rate * each
    market = Market(region, spot=True)
    spot_lines = training(pools, seconds, prices, market=market)
    listed = training(pools, seconds, prices, market=Market(region))
    verified = all(line.source.verified for line in spot_lines)
    complete = all(line.usd is not None for line in (*spot_lines, *listed))
    standard = sum(line.usd or 0.0 for line in listed)
    cheap = sum(line.usd or 0.0 for line in spot_lines)
    # Spot costs what standard costs where the time grows by standard / cheap.
    room = 1 - cheap / standard if standard else 0.0
    break_even = room / (each * machines_) * 86_400 if each else math.inf
    if share >= 1:
        none = math.inf
        return Spot(
            *(interval, restart, per_day, None, none, none, None, standard, break_even, verified),
            complete,
        )
    total = seconds / (1 - share)
    usd = sum(line.usd or 0.0 for line in training(pools, total, prices, market=market))
    return Spot(
        interval=interval,
        restart=restart,
        per_day=per_day,
        seconds=total,
        restarts=total * rate,
        lost=total - seconds,
        usd=usd if complete else None,
        standard=standard,
        break_even=break_even if complete else math.inf,
        verified=verified,
        complete=complete,
    )


def ml_units(units: float, prices: Prices, where: str = "americas") -> BillLine:
    """What AI Platform charged: ML units (its job page told them) x the price of one.

    Raises InputError for a part of the world that it had no price for.
    """
    if units < 0 or not math.isfinite(units):
        raise InputError(f"{units:g} ML units", "write the number that the job's page told")
    item = f"legacy/{where}"
    row = prices.get(item)
    if row is None:
        known = [one.split("/")[1] for one in prices.rows if one.startswith("legacy/")]
        raise InputError(f"AI Platform had no price for {where!r}", f"known: {', '.join(known)}")
    return BillLine(
        f"{units:g} ML units", units, "unit", row.usd, units * row.usd, row.source, item
    )


def as_json(found: Bill) -> dict[str, Any]:
    """The bill for machines."""
    return {
        "usd": found.usd,
        "complete": found.complete,
        "verified": found.verified,
        "seconds": found.seconds,
        "lines": [
            {
                "what": line.what,
                "item": line.item,
                "quantity": line.quantity,
                "unit": line.unit,
                "price": line.price,
                "usd": line.usd,
                "source": line.source.text,
                "verified": line.source.verified,
            }
            for line in found.lines
        ],
        "notes": list(found.notes),
    }
