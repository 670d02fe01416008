"""Machine x accelerator x count x region: all that is on offer, and nothing beside it."""

from __future__ import annotations

import math

import pytest

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.backends.vertex import messages
from builder.jobs.machines import Placement
from builder.jobs.ready import JobImage
from tests.jobs import jobfiles

ALL = machines.combinations()
SLICES = [each for each in ALL if each.topology]
ONE_EACH = list({(each.device, bool(each.topology)): each for each in ALL if each.device}.values())
"""A placement of each accelerator."""


def region_of(each: Placement) -> str:
    if each.device is None:
        return "us-central1"
    return each.device.regions[0]


def test_everything_on_offer_renders_as_it_was_asked_for() -> None:
    image = JobImage(f"example.pkg.dev/p/r/i@{jobfiles.DIGEST}", jobfiles.DIGEST)
    for each in [*ONE_EACH, *SLICES, Placement("n1-standard-8")]:
        asked = each.written.replace(", ", "\n").replace(" without accelerators", "")
        text = f"image: {image.reference}\nregion: {region_of(each)}\n{asked}\n"
        ready = jobfiles.checked(jobfiles.job(text), image)
        body = messages.body(ready)
        machine = body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
        assert (machine["machineType"], machine.get("tpuTopology")) == (each.machine, each.topology)
        if each.device is not None and not each.topology:
            assert machine["acceleratorType"] == each.device.type
            assert machine["acceleratorCount"] == each.count


def test_everything_on_offer_is_taken_and_a_topology_has_its_chips() -> None:
    for each in ALL:
        name = each.device.name if each.device and not each.topology else None
        assert machines.place(each.machine, name, each.count, each.topology) == each
    assert len(SLICES) == 27
    for each in SLICES:
        assert each.count == math.prod(int(side) for side in str(each.topology).split("x"))


@pytest.mark.parametrize(
    ("machine", "name", "count", "topology", "fix"),
    [
        ("n1-standard-16", "V100", 1, None, "n1-standard-8, accelerators: 1 x V100"),
        ("n1-standard-8", "A100", 1, None, "a2-highgpu-1g, accelerators: 1 x A100-40GB"),
        ("n1-standard-8", "H100", 8, None, "a3-highgpu-8g, accelerators: 8 x H100-80GB"),
        ("n1-standard-8", "L4", 1, None, "g2-standard-8, accelerators: 1 x L4"),
        ("a2-highgpu-4g", "A100-80GB", 4, None, "a2-ultragpu-4g, accelerators: 4 x A100-80GB"),
        ("cloud-tpu", "TPU-v3", 16, None, "cloud-tpu, accelerators: 8 x TPU-v3"),
        ("ct5lp-hightpu-4t", "TPU-v5e", 4, None, "ct5lp-hightpu-4t, topology: 2x2"),
        ("ct5lp-hightpu-4t", None, 0, "7x7", "ct5lp-hightpu-4t, topology: 2x2"),
        ("ct5lp-hightpu-8t", None, 0, None, "ct5lp-hightpu-8t, topology: 2x4"),
        ("n1-highcpu-8", "T4", 1, None, "n1-highcpu-16, accelerators: 1 x T4"),
        ("g2-standard-8", None, 0, None, "g2-standard-8, accelerators: 1 x L4"),
        ("n1-standard-8", None, 0, "2x2", "n1-standard-8 without accelerators"),
        ("n1-standard-5", None, 0, None, "n1-standard-4 without accelerators"),
    ],
)
def test_what_is_not_on_offer_is_refused_with_the_nearest(
    machine: str, name: str | None, count: int, topology: str | None, fix: str
) -> None:
    with pytest.raises(InputError, match=f"training has no {machine} with") as caught:
        machines.place(machine, name, count, topology)
    assert caught.value.fix == f"write machine: {fix}"


@pytest.mark.parametrize(
    ("name", "problem", "fix"),
    [
        ("K80", "K80 is no longer offered", "write machine: n1-standard-8, accelerators: 1 x T4"),
        ("V10", "no accelerator is called 'V10'", "write V100; known: P4"),
    ],
)
def test_an_accelerator_that_is_not_there(name: str, problem: str, fix: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        machines.place("n1-standard-8", name, 1)
    assert caught.value.fix.startswith(fix)


def test_the_machine_says_which_a100_is_meant() -> None:
    assert machines.place("a2-highgpu-1g", "A100", 1).device is machines.device("A100-40GB")
    assert machines.place("a2-ultragpu-1g", "A100", 1).device is machines.device("A100-80GB")
    assert machines.device("NVIDIA_TESLA_A100").name == "A100-40GB"  # the API's name has no size
    assert machines.device("nvidia-a100-80gb").name == "A100-80GB"
    assert machines.device("nvidia-tesla-v100").name == "V100"


@pytest.mark.parametrize(
    ("machine", "name", "region", "fix"),
    [
        ("n1-standard-8", "V100", "europe-west1", "europe-west4"),
        ("g2-standard-8", "L4", "us-west4", "us-west1"),
        ("n1-standard-8", "V100", "us-centrall1", "us-central1"),
    ],
)
def test_the_nearest_region(machine: str, name: str, region: str, fix: str) -> None:
    with pytest.raises(InputError, match=f"{region} has no {name} for training") as caught:
        machines.check_region(machines.place(machine, name, 1), region)
    assert fix in caught.value.fix
    machines.check_region(machines.place("n1-standard-8"), region)  # every region has these
