"""The memory of a step with PyTorch: the model of its allocator, and a step inside of the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.project import tag_of
from builder.engine import Engine
from builder.frameworks.torch.probes.compile import MIB, Allocator, rounded, workspace
from builder.prove.session import Sandbox
from tests import commands

ROOT = Path(__file__).parents[3]
PROGRAM, HOOK = "tests.frameworks.torch.convolutions", "builder.frameworks.torch.probes.compile"
ON_A_GPU = "tests.frameworks.torch.as_on_a_gpu"
V100 = {"memory": 16935682048, "taken": 1050 * MIB, "batch": 48, "capability": "7.0"}


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
    assert (allocator.used, allocator.most) == (20 * MIB, 20 * MIB)
    allocator.give(whole)
    assert (allocator.used, allocator.most) == (0, 20 * MIB)


def test_cublas_has_a_workspace_from_the_first_product_on() -> None:
    """aten/src/ATen/cuda/CublasHandlePool.cpp: ":4096:2:16:8", 32 MiB from Hopper on."""
    assert workspace("7.5") == workspace("8.9") == 8519680
    assert workspace("9.0") == workspace("10.0") == 32 * MIB


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


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
def test_a_step_is_counted_in_the_image_and_the_largest_batch_found(engine: Engine) -> None:
    """MemTracker of PyTorch 2.10 counts 6471.4 MiB of the same step, and not the pictures' 27.6 and
    cuBLAS's 8.1. These lie in a free piece of 588 MiB, which no activation can take again."""
    commands.builder("build", "v100-torch", check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, 'v100-torch')}")
    with Sandbox(engine.client, image) as sandbox:
        sandbox.fill(Path("builder/prove/records"))
        run = sandbox.probe(PROGRAM, V100, imports=(HOOK, "builder.frameworks.hook"))
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    needed = (found["arguments"] + found["temporaries"]) / MIB
    assert found["allocated"] / MIB == pytest.approx(6471.4 + 27.6 + 8.1, rel=0.001)
    assert needed == pytest.approx(found["allocated"] / MIB + 588 - 8.1, rel=0.001)
    assert found["step"] == "train" and found["types"] == ["float32"]
    assert found["largest_batch"] * needed / 48 == pytest.approx(15834677248 / MIB, rel=0.03)
    forward = 2 * 48 * 224**2 * 9 * 64 * (3 + 8 * 64)
    assert found["flops"] == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "allocated", "types"),
    [("dropout", 64 + 64 + 16, []), ("autocast", 64 + 8.2, ["float16"]), ("attention", 132, [])],
)
def test_a_step_goes_the_way_of_a_gpu(
    engine: Engine, step: str, allocated: float, types: list[str]
) -> None:
    commands.builder("build", "v100-torch", check=True)
    image = engine.client.images.get(f"training:{tag_of(ROOT, 'v100-torch')}")
    with Sandbox(engine.client, image) as sandbox:
        request = {**V100, "named": step}
        run = sandbox.probe(ON_A_GPU, request, imports=(HOOK, "builder.frameworks.hook"))
    assert run.answer is not None and run.exit_code == 0, run.tail
    found = run.answer["compile"]
    assert found["types"] == types
    assert found["allocated"] / MIB == pytest.approx(allocated, rel=0.01)
