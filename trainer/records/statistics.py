"""What a conversion found out: the report of each file, and dataset.json from all of them."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer.records.options import FORMAT, Options
from trainer.records.pictures import StoredPicture
from trainer.records.plan import PlannedFile, several, values
from trainer.records.sources import Item

NAMED = 20
"""Most duplicates of a kind that dataset.json lists by name."""


@dataclass
class Report:
    """Statistics of one file, in whole numbers, so that any order of adding gives the same sum."""

    records: int = 0
    skipped: list[str] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    values: list[tuple[float, ...]] = field(default_factory=list)
    source_bytes: int = 0
    jpegs: int = 0
    widths: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    digests: list[tuple[str, str, str]] = field(default_factory=list)
    """SHA-256 of the source file, its name, its label."""

    def add(self, item: Item, content: bytes, made: StoredPicture, target: str) -> None:
        """Count an example: `content` is the source file, `made` what is stored of it."""
        self.records += 1
        if target == "values":
            self.values.append(values(item))
        else:
            self.classes.update(several(item) if target == "labels" else [item.label])
        self.facts.update(made.facts)
        self.source_bytes += len(content)
        self.digests.append((hashlib.sha256(content).hexdigest(), item.name, item.label))
        self.jpegs += made.jpeg
        self.widths.append(made.width)
        self.heights.append(made.height)


def dataset(
    names: Sequence[str],
    files: Sequence[PlannedFile],
    reports: Sequence[Mapping[str, Any]],
    options: Options,
    ignored: int,
) -> dict[str, Any]:
    """Return dataset.json: what is in the folder, for people and for `trainer.input`.

    `reports` has the fields of each file's Report, its bytes and its sha256.
    """
    facts: Counter[str] = Counter()
    for report in reports:
        facts.update(report["facts"])
    form = asdict(options.form)
    if options.form.encoding == "png":
        del form["quality"], form["subsampling"]
    sizes = {
        side: _spread([value for report in reports for value in report[f"{side}s"]])
        for side in ("width", "height")
    }
    return {
        "format": FORMAT,
        "kind": "pictures",
        "target": options.target,
        "classes": list(names),
        "splits": _splits(names, files, reports),
        "form": form,
        "statistics": {
            **sizes,
            "source_bytes": sum(report["source_bytes"] for report in reports),
            "bytes": sum(report["bytes"] for report in reports),
            "pictures": dict(sorted(facts.items())),
            "not_pictures": ignored,
            **_of_values(names, reports),
        },
        "duplicates": _duplicates(files, reports),
        "skipped": sorted(problem for report in reports for problem in report["skipped"]),
    }


def _splits(
    names: Sequence[str],
    files: Sequence[PlannedFile],
    reports: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return records, classes and files of each split that has any records."""
    splits: dict[str, Any] = {}
    for file, report in zip(files, reports, strict=True):
        split = splits.setdefault(file.split, {"records": 0, "classes": Counter(), "files": {}})
        split["records"] += report["records"]
        split["classes"].update(report["classes"])
        totals = {key: report[key] for key in ("records", "bytes", "sha256")}
        split["files"][file.name] = totals | {"jpeg": _jpegs(report)}
    for split in splits.values():
        split["classes"] = {name: split["classes"].get(name, 0) for name in names}
    return {name: split for name, split in splits.items() if split["records"]}


def _of_values(
    names: Sequence[str], reports: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return how large the values of each name are; {}: there are none."""
    rows = [row for report in reports for row in report.get("values", ())]
    if not rows:
        return {}
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {"values": {name: _spread(column, 6) for name, column in columns}}


def _jpegs(report: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return, of a file's pictures, the least and the most of the shorter sides, and the longest
    side.

    Zeros where one picture is not a JPEG. From these numbers a reader knows that it meets no other
    format, no JPEG smaller than its crop, none so large that it should be decoded at half its size,
    and whether all have one size.
    """
    if not report["records"] or report["jpegs"] < report["records"]:
        return 0, 0, 0
    shorter = list(map(min, report["widths"], report["heights"]))
    return min(shorter), max(shorter), max(report["widths"] + report["heights"])


def _spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    spread = {
        "least": ordered[0],
        "median": ordered[len(values) // 2],
        "mean": sum(values) / len(values),
        "most": ordered[-1],
    }
    return {key: round(value, digits) for key, value in spread.items()}


def _duplicates(
    files: Sequence[PlannedFile], reports: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Source files with the same bytes: the number of copies, of copies in another split, and of
    copies with another label."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for file, report in zip(files, reports, strict=True):
        for digest, name, label in report["digests"]:
            groups.setdefault(digest, []).append((name, label, file.split))
    several = [sorted(group) for group in groups.values() if len(group) > 1]
    kinds = {
        "all": several,
        "in_several_splits": [g for g in several if len({split for *_, split in g}) > 1],
        "with_several_labels": [g for g in several if len({label for _, label, _ in g}) > 1],
    }
    return {
        kind: {
            "pictures": sum(len(group) - 1 for group in alike),
            "named": sorted([name for name, *_ in group] for group in alike)[:NAMED],
        }
        for kind, alike in kinds.items()
    }
