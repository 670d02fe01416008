"""The memory that PyTorch reserves: a model of its caching allocator, with and without segments
that grow."""

from __future__ import annotations

import pytest

from builder.frameworks.torch.probes.allocator import MIB, Allocator, grows, rounded


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


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2 * MIB),
        ([MIB, MIB, 1], 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([10 * MIB], 20 * MIB),
        ([30 * MIB, 30 * MIB], 60 * MIB),  # 40, and 20 more
        ([18 * MIB + 1, MIB + 1, MIB + 1], 40 * MIB),
        ([19 * MIB + 1, MIB - 512], 22 * MIB),  # a large one and a small one
    ],
)
def test_a_segment_grows_by_pages(sizes: list[int], reserved: int) -> None:
    """c10/cuda/CUDACachingAllocator.cpp: try_allocate_expandable_block, map_block."""
    allocator = Allocator(2**40, grows=True)
    for size in sizes:
        assert allocator.take(size).size == rounded(size, 512)
    assert allocator.reserved == allocator.peak == reserved


def test_what_is_free_at_the_end_grows_where_a_segment_of_its_own_would_be_too_small() -> None:
    """Each activation is a little larger than the one before, which is gone."""
    peaks = []
    for grow in (False, True):
        allocator = Allocator(2**40, grows=grow)
        for size in range(100, 200, 20):
            allocator.give(allocator.take(size * MIB))
        peaks.append(allocator.peak)
    assert peaks == [sum(range(100, 200, 20)) * MIB, 180 * MIB]


def test_the_piece_that_can_grow_is_taken_last() -> None:
    allocator = Allocator(2**40, grows=True)
    hole, _, end = (allocator.take(size * MIB) for size in (40, 20, 20))
    allocator.give(hole)
    allocator.give(end)
    piece = allocator.take(15 * MIB)
    assert piece.before is None, "20 MiB at the end would have been enough"
    assert allocator.peak == 80 * MIB


def test_free_pages_go_back_where_there_is_no_more() -> None:
    allocator = Allocator(100 * MIB, grows=True)
    first = allocator.take(50 * MIB)  # two pages of 20 MiB, and 10 of the third
    allocator.take(30 * MIB)
    allocator.give(first)
    allocator.take(60 * MIB)
    assert allocator.peak == 100 * MIB and allocator.used == 90 * MIB
    allocator.take(10 * MIB)  # of the third page
    assert allocator.reserved == 100 * MIB
    allocator.take(1 * MIB + 1)
    assert allocator.peak == 120 * MIB


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}, True),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
        (
            {
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            },
            False,
        ),
    ],
)
def test_the_environment_says_whether_segments_grow(
    environment: dict[str, str], expected: bool
) -> None:
    assert grows(environment) == expected
