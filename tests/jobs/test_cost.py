"""What a job costs: sums that can be checked by hand, and what is said where a price is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.jobs import cost, machines, prices
from builder.jobs.backends.protocol import JobStatus, TrialStatus
from builder.jobs.cost import Work
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


def bill(paid: Work) -> cost.Bill:
    return cost.bill(paid, TABLE)


def usd(paid: cost.Bill, item: str) -> float | None:
    (line,) = [line for line in paid.lines if line.item == item]
    return line.usd


# --- the bill -------------------------------------------------------------------------------------


def test_an_hour_of_two_v100s_line_by_line() -> None:
    paid = bill(work())
    assert usd(paid, "machine/n1-standard-8") == pytest.approx(0.38)
    assert usd(paid, "accelerator/V100") == pytest.approx(2 * 2.48)
    assert usd(paid, "fee/vertex") == pytest.approx(0.15 * (0.38 + 4.96))
    assert usd(paid, "disk/pd-ssd") == pytest.approx(100 * 0.17 / 730)
    assert paid.usd == pytest.approx(1.15 * 5.34 + 17 / 730)
    assert paid.complete and not paid.notes
    text = "\n".join(cost.as_text(paid))
    assert "total" in text and "(read 2026-11-22)" in text and "(read 2026-11-23)" in text


def test_the_fee_gives_what_the_page_of_training_says() -> None:
    """Its price of an hour of n1-standard-4, which was read: 0.21849885."""
    hour = bill(work(CPU))
    machine, fee = usd(hour, "machine/n1-standard-4"), usd(hour, "fee/vertex")
    assert machine and fee and machine + fee == pytest.approx(0.21849885, rel=1e-4)


def test_time_is_billed_in_steps_of_thirty_seconds() -> None:
    least, thirty, more = (bill(work(CPU, seconds)).usd for seconds in (1, 30, 31))
    assert least == thirty < more and bill(work(CPU, 0)).usd == 0


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
    paid = bill(work((pool,), region=region, how=how))
    assert usd(paid, f"machine/{pool.machine}") == pytest.approx(machine, rel=1e-4)
    assert usd(paid, f"accelerator/{pool.accelerator}") == pytest.approx(accelerator, rel=1e-4)


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
    paid = bill(work((pool,), region=region, how=how))
    lines = {line.item: line for line in paid.lines}
    text = list(cost.as_text(paid))
    if missing:
        assert lines[missing].usd is None and f"known: {missing}" in paid.notes[-1]
        assert any(line.endswith("no price known") for line in text)
        assert any("at least USD" in line for line in text)
    else:
        assert usd(paid, "accelerator/TPU-v6e") == pytest.approx(1.35)


def test_a_tpu_is_paid_with_its_host_and_a_cluster_pays_no_fee_and_no_disks() -> None:
    tpu = Pool("chief", 1, "ct5lp-hightpu-4t", "TPU-v5e", 4)
    paid = bill(work((tpu,), region=""))
    assert [line.item for line in paid.lines] == ["accelerator/TPU-v5e"]
    assert paid.usd == pytest.approx(4.8) and "a cluster's nodes may differ" in paid.notes[0]
    assert "flex-start has rates of its own" in bill(work(how="flex-start")).notes[0]


def test_the_same_work_on_spot_machines() -> None:
    hour, on_spot = bill(work()), bill(work(how="spot"))
    assert hour.on_spot == pytest.approx(on_spot.usd) and on_spot.usd < hour.usd
    assert "on spot machines" in "\n".join(cost.as_text(hour)) and on_spot.on_spot is None
    assert bill(work(region="us-west2")).on_spot is None  # a price is missing
    assert json.loads(json.dumps(cost.as_json(hour)))["on_spot"] == hour.on_spot


# --- how long, before and after -------------------------------------------------------------------


def test_before_by_the_time_given() -> None:
    assert cost.before(jobfiles.ready(JOB), 1320).seconds == 1320
    study = "study: {metric: a, trials: 5, parameters: {x: {values: [1, 2]}}}\n"
    assert cost.before(jobfiles.ready(JOB + study), 60).seconds == 300
    spot_job = jobfiles.ready(JOB + "scheduling: {strategy: spot}\n")
    paid = bill(cost.before(spot_job, 3600))
    assert usd(paid, "accelerator/V100") == pytest.approx(2 * 1.2338)


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
        ("", ":1: "),
        ("rows: 3\n", "rows: expected a list"),
        ("rows:\n- {item: accelerator/V100}\n", ":2: rows.0.price: is missing"),
        ("rows:\n- {item: V100, price: 1}\n", "'V100' is not an item"),
        ("rows:\n- {item: accelerator/V100, price: nan}\n", "rows.0.price: "),
        ("rows:\n- {item: accelerator/V100, prize: 1, price: 1}\n", "prize: unknown key"),
    ],
)
def test_own_prices_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        prices.load(tmp_path)
    assert message in caught.value.message and "prices.yaml:" in caught.value.message
