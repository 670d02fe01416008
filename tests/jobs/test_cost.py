"""What a job costs: sums that can be checked by hand, and what is said where a price is missing."""

from __future__ import annotations

import json

import pytest

from builder.facts import DATA, read_table
from builder.jobs import cost, machines
from builder.jobs.ready import Ready
from tests.jobs import jobfiles

V100 = "n1-standard-8, accelerators: 2 x V100"
CPU = "n1-standard-4"


def bill(
    written: str = V100,
    seconds: float = 3600,
    region: str = "us-central1",
    strategy: str = "standard",
) -> cost.Bill:
    """The bill of a job on these machines."""
    text = f"{{image: x.y/z, machine: {written}, scheduling: {{strategy: {strategy}}}}}"
    job = jobfiles.job(text)
    (pool,) = job.pools
    asked = (pool.machine, pool.accelerator, pool.accelerators, pool.topology)
    ready = Ready(job, jobfiles.image(), region, (machines.place(*asked),))
    return cost.bill(ready, seconds, "the time given")


def usd(paid: cost.Bill, item: str) -> float | None:
    (line,) = [line for line in paid.lines if line.item == item]
    return line.usd


def test_an_hour_of_two_v100s_line_by_line_and_on_spot_machines() -> None:
    paid, on_spot = bill(), bill(strategy="spot")
    assert usd(paid, "machine/n1-standard-8") == pytest.approx(0.38)
    assert usd(paid, "accelerator/V100") == pytest.approx(2 * 2.48)
    assert usd(paid, "fee/vertex") == pytest.approx(0.15 * (0.38 + 4.96))
    assert paid.usd == pytest.approx(1.15 * 5.34) and paid.complete and not paid.notes
    assert paid.on_spot == pytest.approx(on_spot.usd) and on_spot.usd < paid.usd
    assert on_spot.on_spot is None and bill(region="us-west2").on_spot is None  # a price is missing
    text = "\n".join(cost.as_text(paid))
    assert "total" in text and "on spot machines" in text and "(read 2026-11-22)" in text
    assert json.loads(json.dumps(cost.as_json(paid)))["on_spot"] == paid.on_spot


def test_the_fee_is_what_the_page_says_and_time_has_steps_of_thirty_seconds() -> None:
    """The page's price of an hour of n1-standard-4, which was read: 0.21849885."""
    hour = bill(CPU)
    machine, fee = usd(hour, "machine/n1-standard-4"), usd(hour, "fee/vertex")
    assert machine and fee and machine + fee == pytest.approx(0.21849885, rel=1e-4)
    least, thirty, more = (bill(CPU, seconds).usd for seconds in (1, 30, 31))
    assert least == thirty < more and bill(CPU, 0).usd == 0


@pytest.mark.parametrize(
    ("written", "region", "strategy", "machine", "accelerator"),
    [
        ("n1-standard-8, accelerators: V100", "asia-east1", "spot", 0.09062, 0.4856),
        ("g2-standard-24, accelerators: 2 x L4", "europe-west4", "spot", 0.48576, 0.6178),
        ("a3-highgpu-8g, accelerators: 8 x H100", "us-central1", "standard", 9.46008, 78.3724),
    ],
)
def test_an_hour_by_region_and_market(
    written: str, region: str, strategy: str, machine: float, accelerator: float
) -> None:
    prices = [line.usd for line in bill(written, 3600, region, strategy).lines]
    assert prices[:2] == pytest.approx([machine, accelerator], rel=1e-4)


@pytest.mark.parametrize(
    ("written", "region", "missing"),
    [
        ("n1-highmem-8", "us-central1", "machine/n1-highmem-8"),
        ("n1-standard-8, accelerators: V100", "us-west2", "accelerator/V100"),
    ],
)
def test_what_nobody_read_has_no_price(written: str, region: str, missing: str) -> None:
    paid = bill(written, region=region)
    text = list(cost.as_text(paid))
    assert usd(paid, missing) is None and f"known: {missing}" in paid.notes[-1]
    assert any(line.endswith("no price known") for line in text)
    assert any("at least USD" in line for line in text)


def test_a_tpu_is_paid_with_its_host_and_a_cluster_pays_no_fee() -> None:
    paid = bill("ct5lp-hightpu-4t, topology: 2x2", region="")
    assert [line.item for line in paid.lines] == ["accelerator/TPU-v5e"]
    assert paid.usd == pytest.approx(4.8) and "a cluster's nodes may differ" in paid.notes[0]
    assert "flex-start has rates of its own" in bill(strategy="flex-start").notes[0]


def test_every_price_names_its_source_and_a_known_accelerator() -> None:
    assert all("(read 2026-" in source and usd > 0 for usd, source in cost.rows().values())
    priced = {item for item, _, _ in cost.rows() if item.startswith("accelerator/")}
    assert priced <= {f"accelerator/{name}" for name in machines.devices()}


def test_an_accelerator_on_offer_has_a_price_or_is_named_as_unread() -> None:
    assert cost.gaps() == ()
    table = read_table(DATA / cost.TABLE)
    table["prices"] = [row for row in table["prices"] if row["item"] != "accelerator/L4"]
    table["unread"] = [*set(table["unread"]) - {"B200"}, "T4", "K80"]
    assert [line.split(",")[0].split(": take")[0] for line in cost.gaps(table)] == [
        "prices.yaml: no price of B200",
        "prices.yaml: no price of L4",
        "prices.yaml: unread: K80 is not on offer",
        "prices.yaml: unread: T4 has a price",
    ]
