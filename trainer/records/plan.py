"""Which picture goes into which file: a function of the pictures' names."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.options import Section, UsageError
from trainer.records.pictures import PictureForm
from trainer.records.sources import SEPARATOR, Item
from trainer.records.tfrecord import Target

SHARD_SIZE = 1000
"""Most examples in a file."""
MANY_SHARDS, SMALL_SHARD = 16, 64
"""There are this many files, so that several workers can read at once, unless a file would then
have fewer examples than the second number."""


def labels_of(path: str) -> tuple[str, ...]:
    """Return the names in a file, a line each. Raises UsageError."""
    labels = tuple(Path(path).read_text("utf-8-sig").splitlines())
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise UsageError(f"{path}: needs names, a line each, no two equal")
    return labels


_option = Section("options")


@dataclass(frozen=True)
class Options(PictureForm):
    """Says what a conversion makes of its pictures."""

    validation: float = _option(
        0.1,
        "share of each class that is held out, where the source has no splits",
        least=1e-6,
        most=0.999999,
    )
    labels: tuple[str, ...] = _option(
        (),
        "file of the names of classes or values, label 0 first",
        parse=labels_of,
        metavar="FILE",
        shown="classes sorted",
    )
    group_column: str = _option(
        "", "column of a CSV file whose pictures stay in one split: a patient, a video"
    )
    shard_size: int = _option(
        0, f"most examples a file; 0: {SHARD_SIZE}, fewer for few pictures", most=10**9
    )
    on_error: Literal["fail", "skip"] = _option(
        "fail", "a picture that cannot be read ends the run, or is named and left out"
    )
    workers: int = _option(0, "processes; 0: one for each core that may be used", most=1024)
    target: str = "class"
    """What a label is: see sources.Source."""


@dataclass(frozen=True)
class PlannedFile:
    """Describes a file that is to be written."""

    name: str
    items: tuple[tuple[Item, Target], ...]
    """Each with its label's number, those of several labels, or values."""

    @property
    def split(self) -> str:
        return self.name.split("-")[0]


def plan(items: Sequence[Item], names: Sequence[str], options: Options) -> list[PlannedFile]:
    """Return the files of all splits. `names` are the classes.

    The same share of each class is held out, or of all items where they have several labels or
    values: the groups, or the items, with the smallest hashes of their names, until it is reached.
    The last one of a class is not. Each
    split is shuffled by the same hash, and dealt out to its files in turn.
    """
    numbers = {name: number for number, name in enumerate(names)}
    files = []
    for split, members in _splits(items, options).items():
        members.sort(key=lambda item: _rank(item.name))
        size = options.shard_size or SHARD_SIZE
        count = -(-len(members) // size)
        if not options.shard_size:
            count = max(count, min(MANY_SHARDS, -(-len(members) // SMALL_SHARD)))
        for number in range(count):
            chosen = tuple(
                (item, _label(item, options.target, numbers)) for item in members[number::count]
            )
            name = f"{split}-{number:05d}-of-{count:05d}.tfrecord"
            files.append(PlannedFile(name, chosen))
    return files


def _splits(items: Sequence[Item], options: Options) -> dict[str, list[Item]]:
    splits: dict[str, list[Item]] = {"train": [], "validation": []}
    by_class: dict[str, list[Item]] = {}
    firsts: dict[str, Item] = {}
    for item in items:
        if item.split:
            splits.setdefault(item.split, []).append(item)
        else:
            first = firsts.setdefault(item.group or item.name, item)  # a group has one class here
            by_class.setdefault(first.label if options.target == "class" else "", []).append(item)
    divided = bool(splits["validation"])  # By the source; what it leaves open is for training.
    for alike in by_class.values():
        wanted = 0 if divided else max(1, round(len(alike) * options.validation))
        groups: dict[str, list[Item]] = {}
        for item in alike:
            groups.setdefault(item.group or item.name, []).append(item)
        ranked = sorted(groups, key=_rank)
        for number, name in enumerate(ranked, start=1):
            held = wanted > 0 and number < len(ranked)
            splits["validation" if held else "train"] += groups[name]
            wanted -= len(groups[name])
    return splits


def _rank(name: str) -> tuple[str, str]:
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest(), name


def _label(item: Item, target: str, numbers: Mapping[str, int]) -> Target:
    if target == "values":
        return values(item)
    if target == "labels":
        return tuple(sorted(numbers[name] for name in several(item)))
    return numbers[item.label]


def several(item: Item) -> set[str]:
    """Return the labels of an item that may have several."""
    return {label.strip() for label in item.label.split(SEPARATOR)} - {""}


def values(item: Item) -> tuple[float, ...]:
    """Return the numbers of an item. Raises UsageError."""
    try:
        numbers = tuple(map(float, item.label.split(SEPARATOR)))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise UsageError(f"{item.name}: its value {item.label!r} is not a number")
    return numbers


def class_names(source: Path, items: Sequence[Item], options: Options) -> tuple[str, ...]:
    """Return the classes in the order of their numbers: those given, or those found, sorted; or the
    names of the values.

    Raises UsageError where there are too few, or one that was not given.
    """
    given, target = options.labels, options.target
    if target == "values":
        return _value_names(source, items, given)
    names = {name for item in items for name in several(item)}
    names = names if target == "labels" else {item.label for item in items}
    if any("\n" in name for name in names):
        raise UsageError(f"{source}: a class name has a line break in it")
    if given:
        if unknown := sorted(names - set(given)):
            raise UsageError(f"{source}: class {unknown[0]!r} is not in --labels")
        if len(given) < 2:
            raise UsageError(f"{source}: --labels names one class, it needs two or more")
        return given
    if len(names) < 2:
        folders = ", a folder each" if target == "class" else ""
        raise UsageError(
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
            raise UsageError(f"{source}: {item.name} has {has}")
    if given and len(given) != count:
        raise UsageError(f"{source}: has {count} values, --labels names {len(given)}")
    return given or (("value",) if count == 1 else tuple(f"value{n}" for n in range(count)))
