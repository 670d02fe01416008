"""What an image costs: kept in a registry, and for the least hour on its accelerator."""

from __future__ import annotations

from dataclasses import replace

from builder.jobs.cost import hour, prices


def test_the_least_hour_is_that_of_the_smallest_machine() -> None:
    table = prices.table()
    found = hour.costs("V100", 2_000_000_000, table)
    assert found["a month in a registry"] == "$0.20"
    machine, _ = table.machine("n1-highmem-2", 1)
    one = table.accelerator("V100")
    assert machine and one
    said = found["an hour of training"]
    assert said.startswith(f"${machine.usd + one.usd:.2f} on n1-highmem-2 with 1 x V100")
    assert table.as_of in said


def test_a_machine_that_carries_its_gpus_is_paid_once() -> None:
    machine, carries = prices.table().machine("a2-highgpu-1g", 1)
    assert machine and carries
    said = hour.costs("A100", 1, prices.table())["an hour of training"]
    assert said.startswith(f"${machine.usd:.2f} on a2-highgpu-1g")


def test_what_is_not_known_is_left_out() -> None:
    table = prices.table()
    rows = {item: row for item, row in table.rows.items() if item != "accelerator/V100"}
    assert list(hour.costs("V100", 1, replace(table, rows=rows, regional={}))) == [
        "a month in a registry"
    ]
    assert list(hour.costs("CPU", 1, table)) == ["a month in a registry"]
