"""The memory of a step with PyTorch: the model of its allocator, and a step inside of the image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.core.project import tag_of
from builder.engine import Engine
from builder.facts import devices
from builder.frameworks.torch.probes.compile import MIB, Allocator, rounded
from builder.prove import smoke
from builder.prove.checks import compile as compiling
from builder.prove.session import Sandbox
from tests import commands
from tests.frameworks.torch.broken import BEGIN, TABLE, WORK, Broken

ROOT = Path(__file__).parents[3]
PROBES = "builder.frameworks.torch.probes"
PROGRAM, HOOK = "tests.frameworks.torch.convolutions", f"{PROBES}.compile"
BESIDE = (HOOK, f"{PROBES}.kernels", "builder.frameworks.hook", "builder.frameworks.cudnn")

Compile = Callable[[str, str], tuple[list[str], str]]


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2 * MIB),
        ([512, 600, MIB], 2 * MIB),  # a small segment is cut
        ([MIB, MIB, 1], 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([9 * MIB, 9 * MIB], 20 * MIB),
        ([9 * MIB, 9 * MIB, 9 * MIB], 40 * MIB),
        ([10 * MIB], 10 * MIB),
        ([10 * MIB + 1, 1], 14 * MIB),
        ([MIB, 18 * MIB + 1, MIB], 22 * MIB),
    ],
)
def test_segments_are_those_of_the_source(sizes: list[int], reserved: int) -> None:
    """c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
    kMinLargeAlloc, kRoundLarge."""
    allocator = Allocator(2**40)
    for size in sizes:
        assert allocator.take(size).size >= size
    assert allocator.reserved == allocator.peak == reserved


def test_what_was_given_back_is_joined_and_taken_again() -> None:
    allocator = Allocator(2**40)
    pieces = [allocator.take(5 * MIB) for _ in range(4)]
    for at in (1, 3, 0, 2):
        allocator.give(pieces[at])
    whole = allocator.take(rounded(19 * MIB, 512))
    assert allocator.reserved == 20 * MIB and whole.before is None
    assert not allocator.free, "a rest of at most 1 MiB is not cut off"


def test_fragments_count_and_whole_segments_go_back_where_there_is_no_more() -> None:
    allocator = Allocator(100 * MIB)
    first, second = allocator.take(40 * MIB), allocator.take(40 * MIB)
    allocator.give(first)
    allocator.take(20 * MIB)  # of the first: 20 MiB of it are left
    allocator.take(30 * MIB)
    assert allocator.peak == 110 * MIB, "what is left of the first is too small"
    allocator = Allocator(100 * MIB)
    allocator.give(allocator.take(40 * MIB))
    second = allocator.take(60 * MIB)
    allocator.give(second)
    allocator.take(90 * MIB)
    assert allocator.peak == 100 * MIB and allocator.reserved == 90 * MIB


@pytest.fixture(scope="module")
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    """Containers of the target's image."""
    commands.builder("build", "v100-torch", check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, 'v100-torch')}")
    with Sandbox(engine.client, image) as sandbox:
        sandbox.fill(smoke.RECORDS)
        yield sandbox


@pytest.fixture
def compiled(sandbox: Sandbox) -> Compile:
    """Compiles a program for a device: the problems, else the note."""

    def run(device: str, program: str) -> tuple[list[str], str]:
        chosen = devices.devices()[device]
        target = compiling.CompileTarget(chosen, "torch", cudnn="9.10.2", batch=0)
        write = f"import pathlib; pathlib.Path('/tmp/train.py').write_text({BEGIN + program!r})"
        run = "import runpy; runpy.run_path('/tmp/train.py', run_name='__main__')"
        done = target.compile(sandbox, [], ["python", "-c", f"{write}; {run}"])
        problems, seen = compiling.judge(done, chosen)
        return [problem.message for problem in problems], str(seen.get("note", ""))

    return run


IN_THE_IMAGE = (pytest.mark.engine, pytest.mark.network, pytest.mark.long)


@pytest.mark.parametrize(
    "broken",
    [pytest.param(each, id=f"{each.on}-{each.name}", marks=IN_THE_IMAGE) for each in TABLE],
)
def test_a_program_that_cannot_run_there_is_refused(compiled: Compile, broken: Broken) -> None:
    (problem,), _ = compiled(broken.on, broken.program)
    assert re.search(broken.says, problem), problem
    if broken.works:
        assert compiled(broken.works, broken.program)[0] == []


@pytest.mark.parametrize(
    ("device", "program", "says"),
    [pytest.param(*each[1:], id=f"{each[1]}-{each[0]}", marks=IN_THE_IMAGE) for each in WORK],
)
def test_a_program_beside_them_compiles(
    compiled: Compile, device: str, program: str, says: str
) -> None:
    problems, note = compiled(device, program)
    assert problems == [] and re.search(says, note), note


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
def test_a_step_is_counted_in_the_image_and_the_largest_batch_found(sandbox: Sandbox) -> None:
    """MemTracker of PyTorch 2.10 counts 6471.4 MiB of the same step, and the pictures' 27.6 not."""
    device = devices.devices()["V100"]
    request = {"memory": device.memory, "taken": 1050 * MIB, "batch": 48, "capability": "7.0"}
    request["properties"] = device.properties()
    run = sandbox.probe(PROGRAM, request, imports=BESIDE)
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    needed = (found["arguments"] + found["temporaries"]) / MIB
    assert needed == pytest.approx(6471.4 + 27.6, rel=0.005)
    assert found["step"] == "train" and found["types"] == ["float32"]
    assert found["largest_batch"] * needed / 48 == pytest.approx(15834677248 / MIB, rel=0.03)
    forward = 2 * 48 * 224**2 * 9 * 64 * (3 + 8 * 64)
    assert found["flops"] == pytest.approx(3 * forward, rel=0.01)
