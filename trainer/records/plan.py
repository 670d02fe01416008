"""Which picture goes into which file: a function of names, and of contents if asked."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.records.options import Options
from trainer.records.sources import SEPARATOR, Item, RecordsError
from trainer.records.writing import Target, file_name

SHARD_SIZE = 1000
"""Most examples in a file."""
MANY_SHARDS, SMALL_SHARD = 16, 64
"""There are this many files, so that several workers can read at once, unless a file would then
have fewer examples than the second number."""


@dataclass(frozen=True)
class PlannedFile:
    """A file that is to be written."""

    name: str
    items: tuple[tuple[Item, Target], ...]
    """Each with its label's number, those of several labels, or values."""

    @property
    def split(self) -> str:
        return self.name.split("-")[0]


def plan(
    items: Sequence[Item],
    names: Sequence[str],
    keys: Mapping[str, str],
    options: Options,
) -> list[PlannedFile]:
    """Return the files of all splits. `names` are the classes; `keys` has a hash by each item's
    name.

    The same share of each class is held out, or of all items where they have several labels or
    values: the items with the smallest keys. Each split is
    shuffled by the hash of the names, and dealt out to its files in turn.
    """
    numbers = {name: number for number, name in enumerate(names)}
    files = []
    for split, members in _splits(items, keys, options).items():
        members.sort(key=lambda item: (digest(item.name), item.name))
        size = options.shard_size or SHARD_SIZE
        count = -(-len(members) // size)
        if not options.shard_size:
            count = max(count, min(MANY_SHARDS, -(-len(members) // SMALL_SHARD)))
        for number in range(count):
            chosen = tuple(
                (item, _told(item, options.target, numbers)) for item in members[number::count]
            )
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
            alike = item.label if options.target == "class" else ""
            by_class.setdefault(alike, []).append(item)
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


def _told(item: Item, target: str, numbers: Mapping[str, int]) -> Target:
    if target == "values":
        return values(item)
    if target == "labels":
        return tuple(sorted(numbers[name] for name in several(item)))
    return numbers[item.label]


def several(item: Item) -> set[str]:
    """Return the labels of an item that may have several."""
    return {label.strip() for label in item.label.split(SEPARATOR)} - {""}


def values(item: Item) -> tuple[float, ...]:
    """Return the numbers of an item. Raises RecordsError."""
    try:
        numbers = tuple(map(float, item.label.split(SEPARATOR)))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise RecordsError(f"{item.name}: its value {item.label!r} is not a number")
    return numbers


def class_names(
    source: Path, items: Sequence[Item], given: tuple[str, ...], target: str
) -> tuple[str, ...]:
    """Return the classes in the order of their numbers: those given, or those found, sorted; or the
    names of the values.

    Raises RecordsError where there are too few, or one that was not given.
    """
    if target == "values":
        return _value_names(source, items, given)
    names = {name for item in items for name in several(item)}
    names = names if target == "labels" else {item.label for item in items}
    if any("\n" in name for name in names):
        raise RecordsError(f"{source}: a class name has a line break in it")
    if given:
        if unknown := sorted(names - set(given)):
            raise RecordsError(f"{source}: class {unknown[0]!r} is not in --labels")
        if len(given) < 2:
            raise RecordsError(f"{source}: --labels names one class, it needs two or more")
        return given
    if len(names) < 2:
        folders = ", a folder each" if target == "class" else ""
        raise RecordsError(
            f"{source}: needs two or more classes{folders}; has {len(names)} "
            f"({', '.join(sorted(names))})"
        )
    numbers = all(name.isdecimal() for name in names)  # Then 2 comes before 10.
    return tuple(sorted(names, key=lambda name: (int(name) if numbers else 0, name)))


def _value_names(source: Path, items: Sequence[Item], given: tuple[str, ...]) -> tuple[str, ...]:
    count = len(values(items[0]))
    for item in items:
        if len(values(item)) != count:
            has = f"{len(values(item))} values, {items[0].name} has {count}"
            raise RecordsError(f"{source}: {item.name} has {has}")
    if given and len(given) != count:
        raise RecordsError(f"{source}: has {count} values, --labels names {len(given)}")
    return given or (("value",) if count == 1 else tuple(f"value{n}" for n in range(count)))


def digest(name: str) -> str:
    """Return SHA-256 of a name, in hex."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def content_digest(item: Item) -> str:
    """Return SHA-256 of an item's bytes; of its name where it cannot be read."""
    try:
        return hashlib.sha256(item.path.read_bytes()).hexdigest()
    except OSError:
        return digest(item.name)
