"""Machine x accelerator x count x region: all that is on offer, and nothing beside it."""

from __future__ import annotations

import math
import re

import pytest

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.backends.vertex import messages
from builder.jobs.machines import Placement
from builder.jobs.ready import Image
from tests.jobs import jobfiles

ALL = machines.combinations()
DEVICES = tuple(machines.offer().devices.values())
SLICES = [one for one in ALL if one.topology]
ONE_EACH = list({(one.device, bool(one.topology)): one for one in ALL if one.device}.values())
"""A placement of each accelerator."""


def region_of(one: Placement) -> str:
    if one.device is None:
        return "us-central1"
    return (one.device.pods if one.pod and one.device.pod_multiple else one.device.regions)[0]


def test_everything_on_offer_renders_as_it_was_asked_for() -> None:
    image = Image(f"example.pkg.dev/p/r/i@{jobfiles.DIGEST}", jobfiles.DIGEST)
    for one in [*ONE_EACH, *SLICES, Placement("n1-standard-8")]:
        asked = one.written.replace(", ", "\n").replace(" without accelerators", "")
        text = f"image: {image.reference}\nregion: {region_of(one)}\n{asked}\n"
        ready = jobfiles.checked(jobfiles.job(text), image)
        body = messages.body(ready)
        machine = body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
        assert (machine["machineType"], machine.get("tpuTopology")) == (one.machine, one.topology)
        if one.device is not None and not one.topology:
            assert machine["acceleratorType"] == one.device.type
            assert machine["acceleratorCount"] == one.count


def test_everything_on_offer_is_taken() -> None:
    for one in ALL:
        name = one.device.name if one.device and not one.topology else None
        assert machines.place(one.machine, name, one.count, one.topology) == one


def suggested(fix: str) -> Placement:
    """What a refusal suggests, which has to be on offer itself."""
    machine = re.search(r"machine: (\S+?)(?:,|$| )", fix)
    number = re.search(r"accelerators: (\d+) x ([\w-]+)", fix)
    topology = re.search(r"topology: (\S+?)(?:,|$| )", fix)
    assert machine, fix
    return machines.place(
        machine[1],
        number[2] if number else None,
        int(number[1]) if number else 0,
        topology[1] if topology else None,
    )


def test_what_lies_one_step_beside_is_refused_with_something_that_works() -> None:
    offered = {(one.machine, one.device, one.count) for one in ALL}
    for one in ONE_EACH:
        assert one.device is not None
        counts = {1, 3, one.count + 1, one.count * 2}
        for count in counts if one.device.machines else ():
            multiple = one.device.pod_multiple
            if (one.machine, one.device, count) in offered or (multiple and count % multiple == 0):
                continue
            with pytest.raises(InputError) as caught:
                machines.place(one.machine, one.device.name, count)
            first, _, other = caught.value.fix.partition(", or machine: ")
            number = re.search(r"(\d+) x", first)
            if "machine:" in first:
                suggested(first)
            else:
                assert number and machines.place(one.machine, one.device.name, int(number[1]))
            assert not other or machines.place(other, one.device.name, count)
        for other_device in DEVICES:  # an accelerator that it does not carry
            if one.machine not in other_device.machines and other_device is not one.device:
                with pytest.raises(InputError):
                    machines.place(one.machine, other_device.name, 1)


def test_slices_have_as_many_chips_as_their_sides_say_and_no_other_shape_is_taken() -> None:
    assert len(SLICES) == 27
    for one in SLICES:
        sides = [int(side) for side in str(one.topology).split("x")]
        assert one.device is not None and one.count == math.prod(sides)
        for shape in ([*sides, 2], [side * 2 for side in sides], [7, 7]):
            topology = "x".join(map(str, shape))
            if topology in one.device.topologies[one.machine]:
                continue
            with pytest.raises(InputError, match="has no topology") as caught:
                machines.place(one.machine, topology=topology)
            assert suggested(caught.value.fix).topology
        with pytest.raises(InputError) as caught:
            machines.place(one.machine, one.device.name, one.count)
        assert one.device.refused or "by its topology" in caught.value.message
        with pytest.raises(InputError, match="needs a topology"):
            machines.place(one.machine)


def test_every_region_has_it_for_training_or_names_one_that_has() -> None:
    for one in ONE_EACH:
        assert one.device is not None
        for region in machines.offer().regions:
            try:
                machines.check_region(one, region)
            except InputError as error:
                near = error.fix.split(";")[0].removeprefix("write region: ")
                machines.check_region(one, near)
                predicts = "for predictions, not for training" in error.message
                assert predicts == (region in one.device.listed)


@pytest.mark.parametrize(
    ("machine", "name", "count", "said", "fix"),
    [
        ("n1-standard-16", "V100", 1, "takes 2, 4 or 8 x V100, not 1", "accelerators: 2 x V100"),
        ("g2-standard-32", "L4", 2, "takes 1 x L4, not 2", "machine: g2-standard-24"),
        ("n1-standard-8", "L4", 1, "takes no L4", "machine: g2-standard-8"),
        ("a2-highgpu-4g", "A100-80GB", 4, "takes no A100-80GB", "machine: a2-ultragpu-4g"),
        ("n1-standard-8", "K80", 1, "K80 is no longer offered", "accelerators: 1 x T4"),
        ("cloud-tpu", "TPU-v3", 16, "takes 8, or a multiple of 32 x TPU-v3 cores", "8 x TPU-v3"),
        ("ct5lp-hightpu-4t", "TPU-v5e", 4, "by its topology", "topology: 2x2"),
        ("n1-highcpu-8", "T4", 1, "no machine type n1-highcpu-8", "machine: n1-highcpu-16"),
        ("n1-standard-8", "V10", 1, "no accelerator is called 'V10'", "write V100"),
    ],
)
def test_the_traps(machine: str, name: str, count: int, said: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        machines.place(machine, name, count)
    assert said in caught.value.message and fix in caught.value.fix


def test_machines_that_say_nothing_of_what_they_carry() -> None:
    with pytest.raises(InputError, match="always carries 1 x L4"):
        machines.place("g2-standard-8")
    with pytest.raises(InputError, match="needs a topology"):
        machines.place("ct5lp-hightpu-8t")
    with pytest.raises(InputError, match="n1-standard-8 has no topology"):
        machines.place("n1-standard-8", topology="2x2")
    with pytest.raises(InputError, match="no machine type p4d-24xlarge") as caught:
        machines.place("p4d-24xlarge")
    assert "write machine: " in caught.value.fix


def test_the_machine_says_which_a100_is_meant() -> None:
    assert machines.place("a2-highgpu-1g", "A100", 1).device is machines.device("A100-40GB")
    assert machines.place("a2-ultragpu-1g", "A100", 1).device is machines.device("A100-80GB")
    assert machines.device("NVIDIA_TESLA_A100").name == "A100-40GB"  # the API's name has no size
    assert machines.device("nvidia-a100-80gb").name == "A100-80GB"
    assert machines.device("nvidia-tesla-v100").name == "V100"


@pytest.mark.parametrize(
    ("machine", "name", "region", "said", "fix"),
    [
        ("n1-standard-8", "V100", "europe-west1", "europe-west1 has no V100", "europe-west4"),
        ("g2-standard-8", "L4", "us-west4", "for predictions, not for training", "us-west1"),
        ("n1-standard-8", "V100", "us-central2", "'us-central2' is no region", "us-central1"),
        ("n1-standard-8", None, "mars-north1", "'mars-north1' is no region", "known: "),
    ],
)
def test_the_nearest_region(
    machine: str, name: str | None, region: str, said: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        machines.check_region(machines.place(machine, name, 1 if name else 0), region)
    assert said in caught.value.message and fix in caught.value.fix


def test_a_pod_is_in_fewer_regions_than_a_device() -> None:
    machines.check_region(machines.place("cloud-tpu", "TPU-v2", 8), "asia-east1")
    with pytest.raises(InputError, match="asia-east1 has no TPU-v2 pods"):
        machines.check_region(machines.place("cloud-tpu", "TPU-v2", 32), "asia-east1")
    for region in machines.offer().regions:
        machines.check_region(machines.place("n1-standard-8"), region)
