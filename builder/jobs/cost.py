"""What a job costs, before or after it runs: the bill, line by line.

A price is one that was read in a source; the table (prices.py) names it with its date. Everything
else has no price, and the total then says "at least". Times are seconds, amounts USD.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder import contract
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
class Extras:
    """What a job pays beside its machines, in gigabytes, months and minutes."""

    storage_gb: float = 0.0
    image_gb: float = 0.0
    months: float = 1.0
    build_minutes: float = 0.0
    build_machine: str = "e2-standard-2"


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
    """What is paid, line by line."""

    work: Work
    lines: tuple[BillLine, ...]
    notes: tuple[str, ...] = ()

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


def bill(work: Work, prices: Prices, extras: Extras) -> Bill:
    """Return the whole bill: machines, disks, the fee of the service, and the extras."""
    spot = work.strategy == "spot"
    lines = (*training(work, prices, spot), *_disks(work, prices), *_extras(work, extras, prices))
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
    return Bill(work, lines, tuple(notes))


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


def _extras(work: Work, wanted: Extras, prices: Prices) -> Iterator[BillLine]:
    """Yield storage of outputs and images, and Cloud Build."""
    if wanted.storage_gb:
        item = "storage/standard"
        price = prices.find(item, work.region)
        what = f"{wanted.storage_gb:g} GB in Cloud Storage"
        yield _line(what, wanted.storage_gb * wanted.months, "GB month", item, price)
    if wanted.image_gb:
        item = "registry/storage"
        price = prices.find(item, work.region)
        free = price.free if price else 0.0
        what = f"{wanted.image_gb:.2f} GB of images in Artifact Registry, {free:g} GB free"
        paid = max(0.0, wanted.image_gb - free)
        yield _line(what, paid * wanted.months, "GB month", item, price)
    if wanted.build_minutes:
        item = f"build/{wanted.build_machine}"
        price = prices.find(item, work.region)
        what = f"Cloud Build on {wanted.build_machine}"
        if price and price.free:
            what += f" ({price.free:g} minutes a month are free, not taken off)"
        yield _line(what, wanted.build_minutes, "min", item, price)


# --- how long -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Duration:
    """What a person says about a job's time. measured: the folder of a run that tells it."""

    seconds: float | None = None
    measured: Path | None = None
    speedup: float = 1.0
    examples: float | None = None


def before(ready: Ready, duration: Duration) -> Work:
    """Return the work of a job that is not sent yet. Raises InputError where nothing says how long
    it runs."""
    seconds, basis = _seconds(ready, duration)
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
            f"{job.display_name} is {job.state}: it has not ended", f"builder job wait {job.id}"
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


def _seconds(ready: Ready, duration: Duration) -> tuple[float, str]:
    if duration.seconds is not None and duration.measured is not None:
        raise InputError("--for and --measured both say how long", "give one of them")
    if duration.seconds is not None:
        return duration.seconds, "the time given"
    if duration.measured is None:
        raise InputError(
            f"how long {ready.job.id} runs is not known",
            "give --for 22m, or --measured with the folder of a finished run",
        )
    rate, overhead = measured(duration.measured)
    examples = duration.examples or examples_of(ready.job.arguments)
    if examples is None:
        raise InputError(
            "how much there is to train is not known: the job's arguments have no --steps and "
            "--batch-size",
            "give --examples",
        )
    if not 0 < duration.speedup < math.inf:
        raise InputError(
            f"--speedup {duration.speedup:g}: must be more than 0", "write 1 for the same rate"
        )
    basis = f"{examples:,.0f} examples at {rate:,.1f} examples/s measured"
    if duration.speedup != 1:
        basis += f" x {duration.speedup:g} (your factor)"
    seconds = overhead + examples / (rate * duration.speedup)
    return seconds, f"{basis}, {overhead:.0f} s around it"


def measured(path: Path) -> tuple[float, float]:
    """Return the examples a second of a run of the trainer, and its seconds that are not training.

    path: its folder or its summary.json. Raises InputError.
    """
    file = path / "summary.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rate, spent = float(content["speed"]["examples_per_second"]), content["time"]
        overhead = float(spent["wall_seconds"]) - float(spent["work_seconds"]["useful"])
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror}", "name the folder of a finished run, or its summary.json"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: not a summary of the trainer ({type(error).__name__}: {error})",
            "name the summary.json that a run of the trainer wrote",
        ) from None
    if not 0 < rate < math.inf:
        raise InputError(
            f"{file}: examples_per_second is {rate}", "measure a run that trains some steps"
        )
    return rate, max(0.0, overhead)


def examples_of(arguments: Sequence[str]) -> float | None:
    """Return steps x batch size of a job's arguments, None where they do not say it."""
    given = contract.options(arguments)
    try:
        steps = float(given[contract.STEPS])
        return steps * float(given.get(contract.BATCH_SIZE) or given[contract.BATCH])
    except (KeyError, ValueError):
        return None


# --- beside it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spot:
    """The same work on spot machines. seconds: expected, None where it never ends. usd and
    standard: None where a price is not known. break_even: preemptions a day and machine from which
    spot costs more."""

    seconds: float | None
    restarts: float
    usd: float | None
    standard: float | None
    break_even: float


def _machines(work: Work, prices: Prices, spot: bool) -> float | None:
    """Return the price of the machines, None where one of them has none."""
    lines = training(work, prices, spot)
    if any(line.usd is None for line in lines):
        return None
    return sum(line.usd or 0.0 for line in lines)


def spot(work: Work, prices: Prices, interval: float, restart: float, per_day: float) -> Spot:
    """Return what spot machines cost beside standard ones, by the preemptions a day of each; disks
    are left out.

    Every preemption stops all replicas (synchronous training), and loses half of the interval
    between checkpoints and the time to restart. The expected time T solves
    T = seconds + T x rate x (interval / 2 + restart): restarts happen in repeated work too.
    """
    for name, value in (("checkpoint interval", interval), ("restart", restart)):
        if not 0 <= value < math.inf:
            raise InputError(f"the {name} is {value:g} s", "write a length of time, such as 5m")
    if not 0 <= per_day < math.inf:
        raise InputError(f"{per_day:g} preemptions a day", "write 0 or more")
    count = sum(pool.count for pool in work.pools)
    rate, each = per_day / 86_400 * count, interval / 2 + restart
    standard, cheap = _machines(work, prices, False), _machines(work, prices, True)
    if standard is None or cheap is None:
        return Spot(None, 0.0, None, None, math.inf)
    # Spot costs what standard costs where the time grows by standard / cheap.
    spare = 1 - cheap / standard if standard else 0.0
    break_even = spare / (each * count) * 86_400 if each else math.inf
    if rate * each >= 1:
        return Spot(None, math.inf, None, standard, break_even)
    total = work.seconds / (1 - rate * each)
    usd = _machines(replace(work, seconds=total), prices, True)
    return Spot(total, total * rate, usd, standard, break_even)


def image_costs(accelerator: str, compressed_bytes: int, prices: Prices) -> dict[str, str]:
    """Return what an image costs, by name: a month in a registry, and the least hour of training.

    compressed_bytes: of the image in a registry. What is not known is left out.
    """
    costs = {}
    if storage := prices.find("registry/storage", prices.region):
        costs["a month in a registry"] = f"${compressed_bytes / 1e9 * storage.usd:.2f}"
    devices, hours = machines.devices_called(accelerator), []
    for placement in machines.combinations():
        if placement.device in devices and placement.device and not placement.pod:
            pool = Pool("chief", 1, placement.machine, placement.device.name, placement.count)
            work = Work("", "", 3600, (pool,), "", "standard")
            usd = _machines(work, prices, False)
            hours += [] if usd is None else [(usd, str(placement))]
    if hours:
        usd, machine = min(hours)
        costs["an hour of training"] = f"${usd:.2f} on {machine} (Compute Engine, {prices.region})"
    return costs


def image_gb(root: Path, target: str | None) -> float:
    """Return the size of the built image in a registry in GB, 0 where it is not known."""
    try:
        record = json.loads((root / "build" / str(target) / "image.json").read_text("utf-8"))
        return float(record["compressed_bytes"]) / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


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
    yield from (f"note: {note}" for note in bill.notes)
    for source in dict.fromkeys(line.source for line in bill.lines if line.source):
        yield f"prices: {source}"


def compared(work: Work, spot: Spot) -> Iterator[str]:
    """Yield what the same work costs on spot machines."""
    if spot.standard is None:
        yield "standard or spot: not every price is known, so they are not compared"
    elif spot.seconds is None or spot.usd is None:
        yield "spot: never ends: each restart loses more than is won"
    else:
        lost = length(spot.seconds - work.seconds)
        yield f"standard USD {spot.standard:,.2f}, spot USD {spot.usd:,.2f} with {lost} made again"
    if math.isfinite(spot.break_even):
        yield f"spot costs more from {spot.break_even:,.1f} preemptions a day and machine"


def as_json(bill: Bill, spot: Spot) -> dict[str, Any]:
    """Return the answer as JSON values; an infinite number becomes None."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(spot).items()
    }
    return {
        "job": bill.work.name,
        "basis": bill.work.basis,
        "seconds": bill.work.seconds,
        "usd": bill.usd,
        "complete": bill.complete,
        "lines": [asdict(line) for line in bill.lines],
        "notes": list(bill.notes),
        "spot": finite,
    }


def length(seconds: float) -> str:
    """Return a length of time in words: 1 h 20 min."""
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole % 3600 // 60, "min"), (whole % 60, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".")
