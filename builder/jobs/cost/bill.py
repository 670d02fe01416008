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
from builder.jobs.cost.prices import Price, Prices
from builder.jobs.places.protocol import JobStatus
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready

BILLED_SECONDS = 30
"""Training is billed in steps of this. General knowledge, not verified."""
MONTH_HOURS = 730.0
LEFT_ON_HOURS = 15.0
"""From a connection that broke in the evening to the next morning: an assumption."""


@dataclass(frozen=True)
class BillLine:
    """One line of a bill: quantity x price. usd: None where the price is not known."""

    what: str
    quantity: float
    unit: str
    price: float | None
    usd: float | None
    source: Source
    item: str = ""


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
    """The machines of a job that is not sent yet, in the names of the price table."""
    return tuple(
        replace(
            pool,
            machine=placement.machine,
            accelerator=placement.device.name if placement.device else None,
            accelerators=placement.count,
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
    pools: Sequence[Pool], seconds: float, prices: Prices, *, spot: bool = False
) -> tuple[BillLine, ...]:
    """Machines, accelerators and disks for a time in seconds."""
    hours = math.ceil(seconds / BILLED_SECONDS) * BILLED_SECONDS / 3600
    share = prices.need("spot/share") if spot else None
    lines = []
    for one in pools:
        quantity = one.count * hours
        row, included = prices.machine(one.machine, one.accelerators)
        if not _tpu_host(one):
            what = f"{one.role}: {one.count} x {one.machine}" + (
                f" with {one.accelerators} x {one.accelerator}" if included else ""
            )
            lines.append(_line(what, quantity, "h", row, f"machine/{one.machine}", share))
        if one.accelerator and not included:
            item = f"accelerator/{one.accelerator}"
            what = f"{one.role}: {one.count} x {one.accelerators} x {one.accelerator}"
            lines.append(
                _line(what, quantity * one.accelerators, "h", prices.get(item), item, share)
            )
        disk = f"disk/{one.disk_type}"
        lines.append(
            _line(
                f"{one.role}: {one.count} x {one.disk_gb} GB {one.disk_type}",
                quantity * one.disk_gb / MONTH_HOURS,
                "GB month",
                prices.get(disk),
                disk,
            )
        )
    return tuple(lines)


def _tpu_host(one: Pool) -> bool:
    return bool(one.accelerator and one.accelerator.startswith("TPU"))


def _line(
    what: str, quantity: float, unit: str, row: Price | None, item: str, share: Price | None = None
) -> BillLine:
    if row is None:
        return BillLine(what, quantity, unit, None, None, Source("no price is known", False), item)
    price, source = row.usd, row.source
    if share is not None:
        price *= share.usd
        source = Source(
            f"{share.usd:.0%} of the list price ({share.source.text}); {source.text}",
            share.source.verified and source.verified,
        )
        what = f"{what}, spot"
    return BillLine(what, quantity, unit, price, quantity * price, source, item)


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


def bill(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    *,
    region: str,
    spot: bool = False,
    more: Extras | None = None,
) -> Bill:
    """The whole bill: machines for `seconds`, and the extras. region: "" for a cluster's own."""
    lines = (*training(pools, seconds, prices, spot=spot), *extras(more or Extras(), prices))
    notes = []
    if not region:
        notes.append(f"the prices are Vertex AI's in {prices.region}; a cluster's nodes may differ")
    elif region != prices.region:
        notes.append(f"the prices are those of {prices.region}; {region} may differ")
    missing = [line.item for line in lines if line.usd is None]
    if missing:
        notes.append(
            f"no price is known for {', '.join(dict.fromkeys(missing))}: add it to prices.yaml"
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
    """The cost of the same machine as a notebook: for the work, and for hours it stays on."""

    work: float
    idle: float
    hours: float
    complete: bool
    verified: bool = False

    @property
    def usd(self) -> float:
        return self.work + self.idle


def notebook(
    pools: Sequence[Pool], seconds: float, prices: Prices, left_on: float = LEFT_ON_HOURS
) -> Notebook:
    """The chief's machine as a notebook, at Compute Engine's price without the fee of training.

    left_on: hours that it stays on after the work. The fee of a managed notebook is not included.
    """
    chief = pools[:1]
    fee = prices.need("fee/training")
    work = training(chief, seconds, prices)
    idle = training(chief, left_on * 3600, prices)
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


def spot(
    pools: Sequence[Pool],
    seconds: float,
    prices: Prices,
    *,
    interval: float,
    restart: float,
    per_day: float,
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
    spot_lines = training(pools, seconds, prices, spot=True)
    verified = all(line.source.verified for line in spot_lines)
    standard = sum(line.usd or 0.0 for line in training(pools, seconds, prices))
    cheap = sum(line.usd or 0.0 for line in spot_lines)
    # Spot costs what standard costs where the time grows by standard / cheap.
    room = 1 - cheap / standard if standard else 0.0
    break_even = room / (each * machines_) * 86_400 if each else math.inf
    if share >= 1:
        none = math.inf
        return Spot(
            interval, restart, per_day, None, none, none, None, standard, break_even, verified
        )
    total = seconds / (1 - share)
    usd = sum(line.usd or 0.0 for line in training(pools, total, prices, spot=True))
    return Spot(
        interval=interval,
        restart=restart,
        per_day=per_day,
        seconds=total,
        restarts=total * rate,
        lost=total - seconds,
        usd=usd,
        standard=standard,
        break_even=break_even,
        verified=verified,
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
