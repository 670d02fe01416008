"""What is in a folder of records: the report of each file, and dataset.json from all of them."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainer.records.pictures import PictureForm, StoredPicture
from trainer.records.plan import Options
from trainer.records.sources import Item
from trainer.records.tfrecord import Target

FORMAT = 4
"""Version of dataset.json and of the records."""
NAMED = 20
"""Most copies that dataset.json lists by name."""


@dataclass
class Report:
    """Says what is in one file."""

    name: str
    split: str
    length: int = 0
    """In bytes."""
    sha256: str = ""
    jpegs: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Width and height of each picture."""
    classes: Counter[int] = field(default_factory=Counter)
    """Examples of each class, by its number."""
    digests: list[tuple[str, str]] = field(default_factory=list)
    """SHA-256 of each source file, and its name."""
    skipped: list[str] = field(default_factory=list)

    def add(self, item: Item, label: Target, content: bytes, picture: StoredPicture) -> None:
        """Count an example: `content` is the source file, `picture` what is stored of it."""
        self.sizes.append((picture.width, picture.height))
        self.jpegs += picture.jpeg
        self.digests.append((hashlib.sha256(content).hexdigest(), item.name))
        numbers = (label,) if isinstance(label, int) else label
        self.classes.update(number for number in numbers if isinstance(number, int))

    @property
    def sides(self) -> tuple[int, int, int]:
        """Return the least and the most of the pictures' shorter sides, and the longest side.

        They are zeros where one picture is not a JPEG. From them a reader knows that it meets no
        other format, no JPEG smaller than its crop, none so large that it should be decoded at half
        its size, and whether all have one size.
        """
        if not self.sizes or self.jpegs < len(self.sizes):
            return 0, 0, 0
        shorter = list(map(min, self.sizes))
        return min(shorter), max(shorter), max(map(max, self.sizes))


def describe(
    names: Sequence[str], reports: Sequence[Report], options: Options, ignored: int
) -> dict[str, Any]:
    """Return dataset.json: what is in the folder, for people and for `trainer.input`.

    `ignored` files of the source are not pictures.
    """
    splits: dict[str, Any] = {}
    for report in reports:
        split = splits.setdefault(report.split, {"records": 0, "classes": Counter(), "files": {}})
        split["records"] += len(report.sizes)
        split["classes"].update(report.classes)
        split["files"][report.name] = {
            "records": len(report.sizes),
            "bytes": report.length,
            "sha256": report.sha256,
            "jpeg": report.sides,
        }
    for split in splits.values():
        split["classes"] = {name: split["classes"][n] for n, name in enumerate(names)}
    sizes = [size for report in reports for size in report.sizes]
    widths, heights = ([size[side] for size in sizes] for side in (0, 1))
    copies = _copies(reports)
    return {
        "format": FORMAT,
        "target": options.target,
        "classes": list(names),
        "splits": {name: split for name, split in splits.items() if split["records"]},
        "form": {field.name: getattr(options, field.name) for field in fields(PictureForm)},
        "statistics": {
            "width": {"least": min(widths, default=0), "most": max(widths, default=0)},
            "height": {"least": min(heights, default=0), "most": max(heights, default=0)},
            "not_pictures": ignored,
        },
        "copies_in_several_splits": {"pictures": len(copies), "named": copies[:NAMED]},
        "skipped": sorted(problem for report in reports for problem in report.skipped),
    }


def _copies(reports: Sequence[Report]) -> list[list[str]]:
    """Return the names of source files with the same bytes, where they are in several splits."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for report in reports:
        for digest, name in report.digests:
            groups.setdefault(digest, []).append((name, report.split))
    several = [group for group in groups.values() if len({split for _, split in group}) > 1]
    return sorted(sorted(name for name, _ in group) for group in several)
