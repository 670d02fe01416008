"""What a job costs: sums that can be checked by hand, and what is said where a price is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs import cost, machines, prices
from builder.jobs.backends.protocol import JobStatus, TrialStatus
from builder.jobs.cost import Duration, Extras, Work
from builder.jobs.pools import Pool
from tests.jobs import jobfiles

TABLE = prices.load()
V100 = (Pool("chief", 1, "n1-standard-8", "V100", 2),)
CPU = (Pool("chief", 1, "n1-standard-4"),)
JOB = (
    "image: v100\nregion: us-central1\nmachine: n1-standard-8\naccelerators: 2 x V100\n"
    "arguments: {steps: 1000, batch-size: 64}\n"
)


def work(
    pools: tuple[Pool, ...] = V100,
    seconds: float = 3600,
    region: str = "us-central1",
    how: str = "",
) -> Work:
    return Work("cats", "the time given", seconds, pools, region, how or "standard")


def bill(one: Work, **extras: float | str) -> cost.Bill:
    return cost.bill(one, TABLE, Extras(**extras))  # type: ignore[arg-type]


def usd(found: cost.Bill, item: str) -> float | None:
    (line,) = [line for line in found.lines if line.item == item]
    return line.usd


# --- the bill -------------------------------------------------------------------------------------


def test_an_hour_of_two_v100s_line_by_line() -> None:
    found = bill(work())
    assert usd(found, "machine/n1-standard-8") == pytest.approx(0.38)
    assert usd(found, "accelerator/V100") == pytest.approx(2 * 2.48)
    assert usd(found, "fee/vertex") == pytest.approx(0.15 * (0.38 + 4.96))
    assert usd(found, "disk/pd-ssd") == pytest.approx(100 * 0.17 / 730)
    assert found.usd == pytest.approx(1.15 * 5.34 + 17 / 730)
    assert found.complete and not found.notes
    text = "\n".join(cost.as_text(found))
    assert "total" in text and "(read 2026-11-22)" in text and "(read 2026-11-23)" in text


def test_the_fee_gives_what_the_page_of_training_says() -> None:
    """Its price of an hour of n1-standard-4, which was read: 0.21849885."""
    hour = bill(work(CPU))
    machine, fee = usd(hour, "machine/n1-standard-4"), usd(hour, "fee/vertex")
    assert machine and fee and machine + fee == pytest.approx(0.21849885, rel=1e-4)


def test_time_is_billed_in_steps_of_thirty_seconds() -> None:
    one, thirty, more = (bill(work(CPU, seconds)).usd for seconds in (1, 30, 31))
    assert one == thirty < more and bill(work(CPU, 0)).usd == 0


@pytest.mark.parametrize(
    ("pool", "region", "how", "machine", "accelerator"),
    [
        (Pool("chief", 1, "n1-standard-8", "V100", 1), "europe-west4", "", 0.41834, 2.604),
        (Pool("chief", 1, "n1-standard-8", "V100", 1), "asia-east1", "spot", 0.09062, 0.4856),
        (Pool("chief", 2, "n1-standard-16", "T4", 2), "us-east1", "", 2 * 0.76, 4 * 0.35),
        (Pool("chief", 1, "g2-standard-24", "L4", 2), "europe-west4", "spot", 0.48576, 0.6178),
        (Pool("chief", 1, "a2-highgpu-8g", "A100-40GB", 8), "us-west4", "", 6.6624, 24.81248),
        (Pool("chief", 1, "a3-highgpu-8g", "H100-80GB", 8), "us-central1", "", 9.46008, 78.3724),
    ],
)
def test_an_hour_by_region_and_market(
    pool: Pool, region: str, how: str, machine: float, accelerator: float
) -> None:
    found = bill(work((pool,), region=region, how=how))
    assert usd(found, f"machine/{pool.machine}") == pytest.approx(machine, rel=1e-4)
    assert usd(found, f"accelerator/{pool.accelerator}") == pytest.approx(accelerator, rel=1e-4)


@pytest.mark.parametrize(
    ("pool", "region", "how", "missing"),
    [
        (Pool("chief", 1, "n1-highmem-8"), "us-central1", "", "machine/n1-highmem-8"),
        (Pool("chief", 1, "n1-standard-8", "V100", 1), "us-west2", "", "accelerator/V100"),
        (
            Pool("chief", 1, "a3-highgpu-8g", "H100-80GB", 8),
            "us-west1",
            "",
            "accelerator/H100-80GB",
        ),
        (Pool("chief", 1, "ct6e-standard-1t", "TPU-v6e", 1), "us-south1", "spot", ""),
    ],
)
def test_what_nobody_read_has_no_price(pool: Pool, region: str, how: str, missing: str) -> None:
    found = bill(work((pool,), region=region, how=how))
    lines = {line.item: line for line in found.lines}
    text = list(cost.as_text(found))
    if missing:
        assert lines[missing].usd is None and f"known: {missing}" in found.notes[-1]
        assert any(line.endswith("no price known") for line in text)
        assert any("at least USD" in line for line in text)
    else:
        assert usd(found, "accelerator/TPU-v6e") == pytest.approx(1.35)


def test_a_tpu_is_paid_with_its_host_and_a_cluster_pays_no_fee_and_no_disks() -> None:
    tpu = Pool("chief", 1, "ct5lp-hightpu-4t", "TPU-v5e", 4)
    found = bill(work((tpu,), region=""))
    assert [line.item for line in found.lines] == ["accelerator/TPU-v5e"]
    assert found.usd == pytest.approx(4.8) and "a cluster's nodes may differ" in found.notes[0]
    assert "flex-start has rates of its own" in bill(work(how="flex-start")).notes[0]


def test_storage_images_and_builds() -> None:
    found = bill(work(CPU, 0), storage_gb=10, image_gb=2.5, months=2, build_minutes=100)
    assert usd(found, "storage/standard") == pytest.approx(10 * 2 * 0.02)
    assert usd(found, "registry/storage") == pytest.approx((2.5 - 0.5) * 2 * 0.1)
    assert usd(found, "build/e2-standard-2") == pytest.approx(0.6)
    words = "\n".join(line.what for line in found.lines)
    assert "2500 minutes a month are free" in words
    other = bill(work(CPU, 0), build_minutes=10, build_machine="e2-medium")
    assert "free" not in other.lines[-1].what  # the free minutes belong to e2-standard-2 alone
    unknown = bill(work(CPU, 0), build_minutes=10, build_machine="e2-highcpu-64")
    assert unknown.lines[-1].usd is None


# --- beside it ------------------------------------------------------------------------------------


def spot(interval: float, per_day: float, count: int = 1, seconds: float = 86_400) -> cost.Spot:
    pools = (Pool("chief", count, "n1-standard-8", "V100", 2),)
    one = work(pools, seconds)
    return cost.spot(one, TABLE, interval=interval, restart=300, per_day=per_day)


def test_a_day_on_spot_machines_by_hand() -> None:
    """Two preemptions a day; each loses half of 600 s and 300 s: T = 86400 / (1 - 1200 / 86400)."""
    found = spot(600, 2)
    assert found.seconds == pytest.approx(86_400 / (1 - 1200 / 86_400))
    assert found.restarts == pytest.approx((found.seconds or 0) * 2 / 86_400)
    assert found.usd is not None and found.standard is not None and found.usd < found.standard
    assert (spot(600, 2, count=8).seconds or 0) > (found.seconds or 0)  # any machine stops all


def test_at_the_break_even_spot_costs_what_standard_does() -> None:
    limit = spot(3600, 1).break_even
    at = spot(3600, limit)
    assert at.usd == pytest.approx(at.standard, rel=1e-3)
    never = spot(86_400, 2)
    assert (never.seconds, never.usd) == (None, None)
    text = "\n".join(cost.compared(work(), never))
    assert "never ends" in text
    answer = cost.as_json(bill(work()), never)
    assert json.loads(json.dumps(answer, allow_nan=False))["spot"]["restarts"] is None
    unknown = cost.spot(work(region="us-west2"), TABLE, interval=60, restart=60, per_day=1)
    assert "not every price is known" in "\n".join(cost.compared(work(), unknown))


@pytest.mark.parametrize(
    ("interval", "restart", "per_day"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (math.inf, 0, 0)]
)
def test_times_that_cannot_be(interval: float, restart: float, per_day: float) -> None:
    with pytest.raises(InputError):
        cost.spot(work(), TABLE, interval=interval, restart=restart, per_day=per_day)


def test_what_an_image_costs() -> None:
    costs = cost.image_costs("V100", 2_000_000_000, TABLE)
    assert costs["a month in a registry"] == "$0.20"
    assert costs["an hour of training"].startswith("$2.67 on n1-standard-4 with 1 x V100")
    assert list(cost.image_costs("CPU", 1, TABLE)) == ["a month in a registry"]
    assert cost.image_costs("V100", 1, replace(TABLE, rows={})) == {}


# --- how long, before and after -------------------------------------------------------------------


def summary(path: Path, rate: float = 100.0) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    content = {
        "examples": 6400,
        "speed": {"examples_per_second": rate},
        "time": {"wall_seconds": 100.0, "work_seconds": {"useful": 64.0}},
    }
    (path / "summary.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("arguments", "examples"),
    [
        (("--steps=1000", "--batch-size=64"), 64_000),
        (("--steps", "10", "--batch", "8"), 80),
        (("--steps=10",), None),
        (("--steps=many", "--batch-size=8"), None),
        ((), None),
    ],
)
def test_what_there_is_to_train(arguments: tuple[str, ...], examples: float | None) -> None:
    assert cost.examples_of(arguments) == examples


@pytest.mark.parametrize(
    "content", ["{}", "[]", "not json", '{"speed": {"examples_per_second": 0}}']
)
def test_a_summary_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(InputError) as caught:
        cost.measured(tmp_path)
    assert "summary.json" in caught.value.message and caught.value.fix
    with pytest.raises(InputError, match="No such file"):
        cost.measured(tmp_path / "nowhere")


def test_before_by_the_time_given_and_by_a_measured_rate(tmp_path: Path) -> None:
    ready, run = jobfiles.ready(JOB), summary(tmp_path / "run")
    assert cost.before(ready, Duration(1320)).seconds == 1320
    assert cost.before(ready, Duration(measured=run)).seconds == pytest.approx(36 + 640)
    faster = cost.before(ready, Duration(measured=run, speedup=10))
    assert faster.seconds == pytest.approx(36 + 64) and "x 10 (your factor)" in faster.basis
    for duration, message in (
        (Duration(), "how long cats runs is not known"),
        (Duration(1, tmp_path), "both say how long"),
        (Duration(measured=run, speedup=0), "must be more than 0"),
    ):
        with pytest.raises(InputError, match=message):
            cost.before(ready, duration)
    without = jobfiles.ready(JOB.replace("{steps: 1000, batch-size: 64}", "{epochs: 3}"))
    with pytest.raises(InputError, match="how much there is to train"):
        cost.before(without, Duration(measured=run))
    study = "study: {metric: a, trials: 5, parameters: {x: {values: [1, 2]}}}\n"
    assert cost.before(jobfiles.ready(JOB + study), Duration(60)).seconds == 300
    spot_job = jobfiles.ready(JOB + "scheduling: {strategy: spot}\n")
    found = bill(cost.before(spot_job, Duration(3600)))
    assert usd(found, "accelerator/V100") == pytest.approx(2 * 1.2338)


def remote(state: str = "succeeded", trials: int = 0, **fields: object) -> JobStatus:
    began = datetime(2026, 11, 21, 8, tzinfo=UTC)
    job = JobStatus(
        name="projects/1/locations/us-central1/customJobs/2",
        display_name="cats-1",
        state=state,
        region="us-central1",
        created=began,
        started=began,
        ended=None if state == "running" else began + timedelta(minutes=22),
        error="",
        labels={},
        image="x",
        output="",
        strategy="standard",
        pools=(Pool("chief", 1, "n1-standard-8", "NVIDIA_TESLA_V100", 2),),
        trials=(TrialStatus("1", "succeeded", {}, 0.5, 60.0),) * trials,
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def test_after_by_what_ran() -> None:
    ran = cost.after(remote())
    assert (ran.seconds, ran.pools) == (1320, V100)
    assert bill(ran).usd == pytest.approx(bill(work(seconds=1320)).usd)
    assert cost.after(remote(trials=3)).seconds == 180
    assert bill(cost.after(remote(strategy="spot"))).usd < bill(ran).usd
    tpu = cost.after(remote(pools=(Pool("chief", 1, "ct5lp-hightpu-4t", topology="2x2"),)))
    assert (tpu.pools[0].accelerator, tpu.pools[0].accelerators) == ("TPU-v5e", 4)
    with pytest.raises(InputError, match="has not ended"):
        cost.after(remote("running"))


# --- the table ------------------------------------------------------------------------------------


def test_every_price_names_its_source_and_when_it_was_read() -> None:
    assert all("(read 2026-" in price.source and price.usd > 0 for price in TABLE.rows.values())
    items = {item for item, _, _ in TABLE.rows}
    devices = {
        combination.device.name for combination in machines.combinations() if combination.device
    }
    known = {item.removeprefix("accelerator/") for item in items if item.startswith("acc")}
    assert known <= devices


def test_own_prices_win_row_by_row(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(
        "rows:\n- {item: accelerator/V100, price: 1.5, source: our contract}\n"
        "- {item: machine/n4-standard-8, price: 0.5, region: us-central1, spot: true}\n"
    )
    table = prices.load(tmp_path)
    own = table.find("accelerator/V100", "us-west2")
    assert own and (own.usd, own.source) == (1.5, "our contract")
    assert table.find("machine/n4-standard-8", "us-central1") is None
    assert table.find("machine/n4-standard-8", "us-central1", spot=True)
    listed = table.find("machine/n1-standard-8", "us-central1")
    assert listed and listed.usd == pytest.approx(0.38)
    more = tmp_path / "more.yaml"
    more.write_text("rows:\n- {item: accelerator/V100, price: 1}\n")
    over = prices.load(tmp_path, more).find("accelerator/V100", "x")
    assert over and over.usd == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("rows: 3\n", "no rows"),
        ("rows:\n- {item: accelerator/V100}\n", ":2: rows.0: needs item and price"),
        ("rows:\n- {item: V100, price: 1}\n", "'V100' is not an item"),
        ("rows:\n- {item: accelerator/V100, price: free}\n", "'free' is no price"),
        ("rows:\n- {item: accelerator/V100, price: nan}\n", "'nan' is no price"),
        ("rows:\n- {item: accelerator/V100, prize: 1, price: 1}\n", "prize: unknown key"),
    ],
)
def test_own_prices_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        prices.load(tmp_path)
    assert message in caught.value.message and "prices.yaml:" in caught.value.message
