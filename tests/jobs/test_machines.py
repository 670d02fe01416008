"""Machine x accelerator x count x region: all that is on offer, and nothing beside it."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.core.errors import InputError
from builder.jobs import machines
from builder.jobs.machines import Placement
from builder.jobs.places.vertex import checks
from builder.jobs.places.vertex import messages as vertex
from builder.jobs.ready import Image
from tests.jobs import jobfiles

ALL = machines.combinations()
OFFERED = {(one.machine, one.device and one.device.name, one.count) for one in ALL}
DEVICES = [one for one in machines.offer().devices.values() if one.machines]


def written(one: Placement, region: str) -> str:
    """The job's file that asks for a placement."""
    lines = f"image: example.pkg.dev/p/r/i@{jobfiles.DIGEST}\nregion: {region}\n"
    lines += f"machine: {one.machine}\n"
    if one.topology:
        return lines + f"topology: {one.topology}\n"
    if one.device:
        return lines + f"accelerators: {one.count} x {one.device.name}\n"
    return lines


def region_of(one: Placement) -> str:
    if one.device is None:
        return "us-central1"
    pod = one.device.pod_multiple and one.count >= one.device.pod_multiple
    return (one.device.pods if pod else one.device.regions)[0]


@pytest.mark.parametrize("one", ALL, ids=str)
def test_everything_on_offer_renders_and_validates(one: Placement) -> None:
    job = jobfiles.job(written(one, region_of(one)))
    image = Image(job.image, jobfiles.DIGEST)
    ready = checks.ready(job, image, job.region)
    told = vertex.to_dict(vertex.message(ready))
    machine = told["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]
    assert machine["machineType"] == one.machine
    assert machine.get("tpuTopology") == one.topology
    if one.device is None or one.topology:
        assert "acceleratorType" not in machine
    else:
        assert machine["acceleratorType"] == one.device.type
        assert machine["acceleratorCount"] == one.count


def neighbours(one: Placement) -> list[tuple[str, str, int]]:
    """What lies one step beside: a count more or less, half, double, another accelerator."""
    assert one.device is not None
    counts = {one.count - 1, one.count + 1, one.count * 2, one.count // 2, 3, 5, 16}
    found = [(one.machine, one.device.name, count) for count in counts if count > 0]
    found += [(one.machine, other.name, one.count) for other in DEVICES if other is not one.device]
    return [asked for asked in found if asked not in OFFERED and not is_pod(asked)]


def is_pod(asked: tuple[str, str, int]) -> bool:
    machine, name, count = asked
    device = machines.offer().devices[name]
    return (
        bool(device.pod_multiple)
        and count % device.pod_multiple == 0
        and (machine in device.machines)
    )


def suggested(fix: str) -> list[tuple[str | None, str | None, int]]:
    """The machines and accelerators that a suggestion names."""
    machine = re.search(r"machine: (\S+?)(?:,|$| )", fix)
    accelerator = re.search(r"accelerators: (\d+) x ([\w-]+)", fix)
    return [
        (
            machine[1] if machine else None,
            accelerator[2] if accelerator else None,
            int(accelerator[1]) if accelerator else 0,
        )
    ]


@pytest.mark.parametrize("one", [one for one in ALL if one.device and not one.topology], ids=str)
def test_every_neighbour_is_refused_with_something_that_works(one: Placement) -> None:
    for machine, name, count in neighbours(one):
        with pytest.raises(InputError) as caught:
            machines.place(machine, name, count)
        ((other, accelerator, number),) = suggested(caught.value.fix)
        assert accelerator, caught.value.fix
        # what is suggested works: as it stands, and the part before an "or" by itself
        alone = other if ", or machine:" not in caught.value.fix else machine
        machines.place(alone or machine, accelerator, number)
        if ", or machine:" in caught.value.fix:
            machines.place(str(other), name, count)


# --- topologies -----------------------------------------------------------------------------------

SLICES = [one for one in ALL if one.topology]
SHAPES = {(one.machine, one.topology) for one in SLICES}


def shapes_beside(one: Placement) -> list[tuple[str, str]]:
    """What lies one step beside: a side half, double, one more or less, a dimension more or less,
    the sides the other way round; the same on the other machines, and the shapes of the others."""
    sides = [int(side) for side in str(one.topology).split("x")]
    near = [
        [*sides[:at], side, *sides[at + 1 :]]
        for at in range(len(sides))
        for side in {sides[at] // 2, sides[at] * 2, sides[at] - 1, sides[at] + 1} - {0}
    ]
    near += [sides[::-1], [*sides, 1], [*sides, 2], sides[:2], [sides[0]]]
    found = {(one.machine, "x".join(map(str, shape))) for shape in near}
    found |= {(other.machine, str(one.topology)) for other in ALL}
    found |= {(one.machine, str(other.topology)) for other in SLICES}
    return sorted(found - SHAPES)  # fmt: skip


def test_the_table_has_the_topologies_of_the_documentation() -> None:
    assert len(SLICES) == 27
    assert {one.machine for one in SLICES if one.device and one.device.name == "TPU-v5e"} == {
        f"ct5lp-hightpu-{chips}t" for chips in (1, 4, 8)
    }
    for one in SLICES:  # a slice has as many chips as its sides say
        assert one.count == math.prod(int(side) for side in str(one.topology).split("x"))


@pytest.mark.parametrize("one", SLICES, ids=str)
def test_every_shape_beside_a_topology_is_refused_with_something_that_works(one: Placement) -> None:
    for machine, topology in shapes_beside(one):
        with pytest.raises(InputError) as caught:
            machines.place(machine, topology=topology)
        written_ = caught.value.fix
        other = re.search(r"machine: (\S+?)(?:,|$| )", written_)
        shape = re.search(r"topology: (\S+?)(?:,|$| )", written_)
        wanted = re.search(r"accelerators: (\d+) x ([\w-]+)", written_)
        assert other, written_
        if wanted:
            machines.place(other[1], wanted[2], int(wanted[1]))
        else:
            machines.place(other[1], topology=shape[1] if shape else None)


@pytest.mark.parametrize("one", SLICES, ids=str)
def test_a_slice_is_not_asked_for_by_a_number_or_by_its_machine_alone(one: Placement) -> None:
    assert one.device is not None
    for count in (1, one.count, one.count + 1):
        with pytest.raises(InputError, match="by its topology") as caught:
            machines.place(one.machine, one.device.name, count)
        shape = re.search(r"topology: (\S+?),", caught.value.fix)
        assert shape and machines.place(one.machine, topology=shape[1]).device is one.device
    with pytest.raises(InputError, match="needs a topology") as caught:
        machines.place(one.machine)
    assert (one.machine, caught.value.fix.removeprefix("add topology: ")) in SHAPES
    for other in DEVICES:  # an accelerator that it does not carry
        with pytest.raises(InputError):
            machines.place(one.machine, other.name, 1)


@given(
    st.sampled_from(sorted({one.machine for one in ALL} | {"ct4p-hightpu-4t"})),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_no_other_topology_is_taken(machine: str, sides: list[int]) -> None:
    topology = "x".join(map(str, sides))
    try:
        found = machines.place(machine, topology=topology)
    except InputError as error:
        assert (machine, topology) not in SHAPES
        assert error.fix.startswith("write ") and "\n" not in error.message
    else:
        assert (found.machine, found.topology) in SHAPES


@given(
    st.sampled_from(sorted({one.machine for one in ALL} | {"n1-standard-2", "p4d-24xlarge"})),
    st.sampled_from([one.name for one in machines.offer().devices.values()]),
    st.integers(1, 64),
)
@settings(deadline=None, max_examples=300)
def test_nothing_else_is_taken(machine: str, name: str, count: int) -> None:
    try:
        found = machines.place(machine, name, count)
    except InputError as error:
        assert (machine, name, count) not in OFFERED or machines.offer().devices[name].topologies
        assert error.fix.startswith("write ") and "\n" not in error.message
    else:
        assert (found.machine, found.device and found.device.name, found.count) in OFFERED or (
            is_pod((machine, name, count))
        )


@pytest.mark.parametrize("one", [one for one in ALL if one.device], ids=str)
def test_every_region_has_it_for_training_or_names_one_that_has(one: Placement) -> None:
    assert one.device is not None
    for region in machines.offer().regions:
        try:
            machines.check_region(one, region)
        except InputError as error:
            nearest = error.fix.split(";")[0].removeprefix("write region: ")
            machines.check_region(one, nearest)
            if region in one.device.listed:
                assert "for predictions, not for training" in error.message
        else:
            assert region in one.device.regions


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
    with pytest.raises(InputError, match="has no topology 3x3"):
        machines.place("ct5lp-hightpu-4t", topology="3x3")
    with pytest.raises(InputError, match="n1-standard-8 has no topology"):
        machines.place("n1-standard-8", topology="2x2")


def test_the_machine_says_which_a100_is_meant() -> None:
    assert machines.place("a2-highgpu-1g", "A100", 1).device is machines.device("A100-40GB")
    assert machines.place("a2-ultragpu-1g", "A100", 1).device is machines.device("A100-80GB")
    assert machines.device("NVIDIA_TESLA_A100").name == "A100-40GB"  # the API's name has no size
    assert machines.device("nvidia-a100-80gb").name == "A100-80GB"
    assert machines.device("nvidia-tesla-v100").name == "V100"


@pytest.mark.parametrize(
    ("name", "region", "said", "fix"),
    [
        ("V100", "europe-west1", "europe-west1 has no V100", "europe-west4"),
        ("L4", "us-west4", "for predictions, not for training", "us-west1"),
        ("V100", "us-central2", "'us-central2' is no region", "us-central1"),
    ],
)
def test_the_nearest_region(name: str, region: str, said: str, fix: str) -> None:
    one = next(one for one in ALL if one.device and one.device.name == name)
    with pytest.raises(InputError) as caught:
        machines.check_region(one, region)
    assert said in caught.value.message and fix in caught.value.fix.split(";")[0]


def test_a_pod_is_in_fewer_regions_than_a_device() -> None:
    device = machines.place("cloud-tpu", "TPU-v2", 8)
    machines.check_region(device, "asia-east1")
    with pytest.raises(InputError, match="asia-east1 has no TPU-v2 pods"):
        machines.check_region(machines.place("cloud-tpu", "TPU-v2", 32), "asia-east1")
