"""The answer to `builder job cost`: a bill with its comparisons, as lines or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.core.errors import InputError
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.cost import bill as cost
from builder.jobs.cost.bill import Bill, BillLine, Extras, Notebook, Spot
from builder.jobs.cost.prices import Market, Prices
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready


@dataclass(frozen=True)
class Wanted:
    """What a person asks. Times are seconds.

    lasting: how long one run takes; measured: the folder of a run that tells it instead. own_image:
    take the size of the built image, where it is known.
    """

    lasting: float | None = None
    measured: Path | None = None
    speedup: float = 1.0
    examples: float | None = None
    extras: Extras = field(default_factory=Extras)
    own_image: bool = False
    left_on: float = cost.LEFT_ON_HOURS * 3600
    checkpoint_every: float = 600.0
    restart: float = 300.0
    preemptions: float = 1.0


@dataclass(frozen=True)
class Quote:
    """A job's bill, and the same work on a notebook and on spot or standard machines."""

    what: str
    basis: str
    bill: Bill
    pools: tuple[Pool, ...]
    notebook: Notebook
    spot: Spot


def before(root: Path, ready: Ready, prices: Prices, wanted: Wanted) -> Quote:
    """What a job will cost. Raises InputError where nothing says how long it runs."""
    seconds, basis = _seconds(ready, wanted)
    study = ready.job.study
    if study is not None:
        seconds *= study.trials
        basis += f", {study.trials} trials"
    extras = wanted.extras
    if wanted.own_image and (found := image_gb(root, ready.image.target)) is not None:
        extras = replace(extras, image_gb=found)
    return _quote(
        ready.job.id,
        basis,
        cost.of_ready(ready),
        seconds,
        prices,
        replace(wanted, extras=extras),
        ready.region,
        ready.job.scheduling.strategy,
    )


def after(job: JobStatus, prices: Prices, wanted: Wanted) -> Quote:
    """What a job has cost, from what it ran. Raises InputError before its end."""
    if job.active:
        raise InputError(
            f"{job.display_name} is {job.state}: it has not ended", f"builder job wait {job.id}"
        )
    if job.trials:
        seconds = sum(one.seconds or 0.0 for one in job.trials)
        basis = f"{len(job.trials)} trials that ran"
    elif job.seconds is None:
        seconds, basis = 0.0, "it never started"
    else:
        seconds, basis = (
            job.seconds,
            "from its start to its end; the service bills provisioning too",
        )
    pools = cost.of_status(job)
    return _quote(job.display_name, basis, pools, seconds, prices, wanted, job.region, job.strategy)


def hourly(ready: Ready, prices: Prices) -> float | None:
    """The price of an hour of a job's machines in USD, without disks; None where one of them is not
    known."""
    market = Market(ready.region, spot=ready.job.scheduling.strategy == "spot")
    lines = cost.training(cost.of_ready(ready), 3600, prices, market=market, disks=False)
    if any(line.usd is None for line in lines):
        return None
    return sum(line.usd or 0.0 for line in lines)


def _quote(
    what: str,
    basis: str,
    pools: tuple[Pool, ...],
    seconds: float,
    prices: Prices,
    wanted: Wanted,
    region: str,
    strategy: str,
) -> Quote:
    return Quote(
        what=what,
        basis=basis,
        bill=cost.bill(
            pools, seconds, prices, region=region, strategy=strategy, more=wanted.extras
        ),
        pools=pools,
        notebook=cost.notebook(pools, seconds, prices, wanted.left_on / 3600, region),
        spot=cost.spot(
            pools,
            seconds,
            prices,
            interval=wanted.checkpoint_every,
            restart=wanted.restart,
            per_day=wanted.preemptions,
            region=region,
        ),
    )


def _seconds(ready: Ready, wanted: Wanted) -> tuple[float, str]:
    if wanted.lasting is not None and wanted.measured is not None:
        raise InputError("--for and --measured both say how long", "give one of them")
    if wanted.lasting is not None:
        return wanted.lasting, "the time asked for"
    if wanted.measured is not None:
        run = cost.measured(wanted.measured)
        examples = wanted.examples or cost.asked_examples(ready.job.arguments)
        if examples is None:
            raise InputError(
                "how much there is to train is not known: the job's arguments have no --steps and "
                "--batch-size",
                "give --examples",
            )
        seconds = cost.projected(run, examples, wanted.speedup)
        rate = f"{run.rate:,.1f} examples/s measured"
        if wanted.speedup != 1:
            rate += f" x {wanted.speedup:g} (your factor)"
        return seconds, f"{examples:,.0f} examples at {rate}, {run.overhead:.0f} s around it"
    raise InputError(
        f"how long {ready.job.id} runs is not known",
        "give --for 22m, or --measured with the folder of a finished run",
    )


def image_gb(root: Path, target: str | None) -> float | None:
    """The size of the built image in a registry in GB, None where it is not known."""
    if target is None:
        return None
    try:
        record = json.loads((root / "build" / target / "image.json").read_text(encoding="utf-8"))
        return float(record["compressed_bytes"]) / 1e9
    except (OSError, ValueError, KeyError, TypeError):
        return None


# --- as text --------------------------------------------------------------------------------------


def told(quote: Quote, prices: Prices) -> Iterator[str]:
    """The answer, line by line."""
    found = quote.bill
    yield f"{quote.what}: {_time(found.seconds)} ({quote.basis})"
    width = max(len(line.what) for line in found.lines)
    for line in found.lines:
        mark = _mark(line.source.verified)
        if line.usd is None or line.price is None:
            yield f"  {line.what:<{width}}  {_amount(line.quantity):>10} {line.unit:<8}  no price"
            continue
        yield (
            f"  {line.what:<{width}}  {_amount(line.quantity):>10} {line.unit:<8}"
            f" x {_price(line.price):>9} = {line.usd:>10.4f}{mark}"
        )
    least = "" if found.complete else "at least "
    open_ends = sum(not line.source.verified for line in found.lines if line.usd is not None)
    marked = f", {open_ends} of {len(found.lines)} rows unverified" if open_ends else ""
    yield f"  {'total':<{width}}  {least}USD {found.usd:,.4f}, prices of {prices.as_of}{marked}"
    if prices.own:
        yield f"  own prices: {', '.join(sorted(prices.own))}"
    book, several = quote.notebook, sum(one.count for one in quote.pools) > 1
    same = "the same machines as notebooks" if several else "the same machine as a notebook"
    yield (
        f"{same}: USD {book.work:,.2f} for the work, and "
        f"USD {book.idle:,.2f} for {book.hours:g} h left on: USD {book.usd:,.2f}"
        + ("" if book.complete else " at least")
        + _mark(book.verified)
    )
    yield from _spot(quote.spot)
    for note in found.notes:
        yield f"note: {note}"
    if not found.verified:
        sources = dict.fromkeys(
            line.source.text for line in found.lines if not line.source.verified
        )
        yield f"unverified: {'; '.join(sources)}"


def _mark(verified: bool) -> str:
    """The mark of an amount that rests on a price which nobody of this project has read."""
    return "" if verified else "  unverified"


def _spot(one: Spot) -> Iterator[str]:
    told = (
        f"{one.per_day:g} preemptions a day and machine, a checkpoint every {_time(one.interval)}, "
        f"{_time(one.restart)} to restart"
    )
    if not one.complete:
        yield "standard or spot: not every price is known, so they are not compared"
        return
    if one.seconds is None or one.usd is None:
        yield f"spot: never ends with {told}: each restart loses more than is won"
        return
    yield (
        f"standard machines USD {one.standard:,.2f}, spot USD {one.usd:,.2f}: {told}; "
        f"{one.restarts:.1f} restarts, {_time(one.lost)} made again{_mark(one.verified)}"
    )
    if math.isfinite(one.break_even):
        yield f"  spot costs more from {one.break_even:,.1f} preemptions a day and machine"


def legacy(line: BillLine) -> str:
    """AI Platform's arithmetic."""
    return (
        f"{line.what} x USD {line.price:g} = USD {line.usd:.4f} on AI Platform "
        f"({line.source.text}{'' if line.source.verified else '; unverified'})"
    )


def as_json(quote: Quote) -> dict[str, Any]:
    """The answer as JSON values; an infinite number becomes None."""
    spot = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(quote.spot).items()
    }
    return {
        "job": quote.what,
        "basis": quote.basis,
        "bill": cost.as_json(quote.bill),
        "notebook": {**asdict(quote.notebook), "usd": quote.notebook.usd},
        "spot": spot,
    }


def _time(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"


def _amount(value: float) -> str:
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _price(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
