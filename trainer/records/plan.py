"""Which picture or sound goes into which file: a function of names, and of contents if asked."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.records.options import Options
from trainer.records.sources import Item, RecordsError
from trainer.records.writing import file_name

SHARD_SIZE = 1000
"""Most examples in a file."""
MANY_SHARDS, SMALL_SHARD = 16, 64
"""There are this many files, so that several workers can read at once, unless a file would then
have fewer examples than the second number."""


@dataclass(frozen=True)
class PlannedFile:
    """A file that is to be written."""

    name: str
    items: tuple[tuple[Item, int], ...]
    """Each with its label's number."""

    @property
    def split(self) -> str:
        return self.name.split("-")[0]


def plan(
    items: Sequence[Item],
    names: Sequence[str],
    keys: Mapping[str, str],
    options: Options,
) -> list[PlannedFile]:
    """The files of all splits. `names` are the classes; `keys` has a hash by each item's name.

    The same share of each class is held out: the items with the smallest keys. Each split is
    shuffled by the hash of the names, and dealt out to its files in turn.
    """
    labels = {name: number for number, name in enumerate(names)}
    files = []
    for split, members in _splits(items, keys, options).items():
        members.sort(key=lambda item: (digest(item.name), item.name))
        size = options.shard_size or SHARD_SIZE
        count = -(-len(members) // size)
        if not options.shard_size:
            count = max(count, min(MANY_SHARDS, -(-len(members) // SMALL_SHARD)))
        for number in range(count):
            chosen = tuple((item, labels[item.label]) for item in members[number::count])
            files.append(PlannedFile(file_name(split, number, count), chosen))
    return files


def _splits(
    items: Sequence[Item], keys: Mapping[str, str], options: Options
) -> dict[str, list[Item]]:
    splits: dict[str, list[Item]] = {"train": [], "validation": []}
    by_class: dict[str, list[Item]] = {}
    for item in items:
        if item.split:
            splits.setdefault(item.split, []).append(item)
        else:
            by_class.setdefault(item.label, []).append(item)
    divided = bool(splits["validation"])  # By the source; what it leaves open is for training.
    for group in by_class.values():
        ranked = sorted(group, key=lambda item: (keys[item.name], item.name))
        count = 0 if divided else min(max(1, round(len(group) * options.validation)), len(group))
        # All items with the key of the last one, so that equal contents stay together.
        last = keys[ranked[count - 1].name] if count else ""
        held_out = [item for item in ranked if keys[item.name] <= last]
        splits["validation"] += held_out
        splits["train"] += ranked[len(held_out) :]
    return splits


def class_names(source: Path, items: Sequence[Item], given: tuple[str, ...]) -> tuple[str, ...]:
    """The classes in the order of their numbers: those given, or those found, sorted.

    Raises RecordsError where there are too few, or one that was not given.
    """
    found = {item.label for item in items}
    if any("\n" in name for name in found):
        raise RecordsError(f"{source}: a class name has a line break in it")
    if given:
        if unknown := sorted(found - set(given)):
            raise RecordsError(f"{source}: class {unknown[0]!r} is not in --labels")
        return given
    if len(found) < 2:
        raise RecordsError(
            f"{source}: needs two or more classes, a folder each; has {len(found)} "
            f"({', '.join(sorted(found))})"
        )
    numbers = all(name.isdecimal() for name in found)  # Then 2 comes before 10.
    return tuple(sorted(found, key=lambda name: (int(name) if numbers else 0, name)))


def digest(name: str) -> str:
    """SHA-256 of a name, in hex."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def content_digest(item: Item) -> str:
    """SHA-256 of an item's bytes; of its name where it cannot be read."""
    try:
        return hashlib.sha256(item.read()).hexdigest()
    except OSError:
        return digest(item.name)
