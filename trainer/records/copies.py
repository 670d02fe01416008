"""Pictures that are in a source several times: the same bytes, or the same to the eye."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainer.records.tfrecord import Target

NAMED = 20
"""Most of each kind that dataset.json lists by name."""
BITS = 3
"""Most bits of 64 in which the likenesses of near copies differ."""
_TURN, _NEIGHBOURS = 16, 16
"""Hashes that differ in three bits are equal in one of four quarters: then they lie near each other
where they are sorted from there on. So many neighbours are looked at."""


@dataclass(frozen=True)
class Seen:
    """A picture that was stored."""

    name: str
    split: str
    label: Target
    digest: str
    """SHA-256 of its file."""
    likeness: int | None
    """See pictures.likeness."""


def found(pictures: Sequence[Seen]) -> dict[str, Any]:
    """Return the copies as dataset.json has them: groups of names, which have several splits, or
    labels that conflict."""
    ordered = sorted(pictures, key=lambda one: (one.digest, one.name))
    same = [tuple(group) for _, group in groupby(ordered, key=lambda one: one.digest)]
    kinds = {}
    for kind, groups in (("", same), ("near_", _near(pictures))):
        for where, of in (("splits", "split"), ("classes", "label")):
            several = [group for group in groups if len({getattr(one, of) for one in group}) > 1]
            names = sorted(sorted(one.name for one in group) for group in several)
            kinds[f"{kind}in_several_{where}"] = {"pictures": len(names), "named": names[:NAMED]}
    return kinds


def _near(pictures: Sequence[Seen]) -> list[tuple[Seen, ...]]:
    """Return the pairs that look alike, without those of the same bytes."""
    import numpy as np

    known = [one for one in pictures if one.likeness is not None]
    hashes, pairs = np.array([one.likeness for one in known], np.uint64), set()
    for turn in range(0, 64, _TURN):
        order = np.argsort((hashes << turn) | (hashes >> (64 - turn) % 64), kind="stable")
        for step in range(1, _NEIGHBOURS + 1):
            one, other = order[:-step], order[step:]
            near = np.bitwise_count(hashes[one] ^ hashes[other]) <= BITS
            pairs |= set(zip(one[near].tolist(), other[near].tolist(), strict=True))
    found = {tuple(sorted(pair)) for pair in pairs}
    both = ((known[one], known[other]) for one, other in sorted(found))
    return [(one, other) for one, other in both if one.digest != other.digest]
