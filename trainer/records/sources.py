"""Sources of pictures: a folder of class folders, or a CSV file of paths and labels.

Each gives a list of files with their classes, and any process can read any of these files on its
own.
"""

import csv
import os
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.options import UsageError
from trainer.records.pictures import SUFFIXES

SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
"""Names of splits in folders and CSV files."""
SEPARATOR = "|"
_KINDS = " ".join(sorted(SUFFIXES))
_TARGETS = {"label": "class", "labels": "labels", "values": "values"}
"""What a label is, by the name of its column."""


@dataclass(frozen=True)
class Item:
    """Names one picture, and where its bytes lie."""

    name: str
    """Relative, with slashes; unique."""
    label: str
    split: str
    """"train", "validation" or "test"; "": the source does not say."""
    path: Path


@dataclass(frozen=True)
class Source:
    """Lists what a source has."""

    items: tuple[Item, ...]
    ignored: int
    """Number of files whose names are not those of pictures."""
    target: str = "class"
    """What a label is: one class, "labels" (several classes) or "values" (numbers); where there can
    be several, SEPARATOR is between them."""


def find(source: Path) -> Source:
    """Return all pictures of a source, in the order of their names. Raises UsageError."""
    if source.is_dir():
        content = _folder(source)
    elif not source.exists():
        raise UsageError(f"{source}: there is no such file or folder")
    elif source.suffix.lower() == ".csv":
        content = _csv(source)
    else:
        raise UsageError(f"{source}: is not a folder or CSV file; unpack an archive first")
    if not content.items:
        raise UsageError(f"{source}: no pictures found ({_KINDS})")
    return replace(content, items=tuple(sorted(content.items, key=lambda item: item.name)))


def _folder(folder: Path) -> Source:
    """Return the items of class folders, which may lie below folders of splits."""
    tops = {child.name for child in folder.iterdir() if child.is_dir() and not _hidden(child.name)}
    # With a folder for training alone, the validation split is made here, as without folders.
    divided = bool(tops) and tops <= SPLITS.keys() and "train" in {SPLITS[top] for top in tops}
    items, ignored = [], 0
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _hidden(name)]
        for name in names:
            path = Path(root, name)
            parts = path.relative_to(folder).parts
            if path.suffix.lower() in SUFFIXES and len(parts) > 1 + divided and not _hidden(name):
                split = SPLITS[parts[0]] if divided else ""
                items.append(_item("/".join(parts), parts[divided], split, path))
            else:
                ignored += not _hidden(name)
    if "validation" not in {item.split for item in items}:
        items = [replace(item, split=item.split.replace("train", "")) for item in items]
    if empty := sorted(set() if divided else tops - {item.label for item in items}):
        raise UsageError(f"{folder}/{empty[0]}: no pictures in this class ({_KINDS})")
    return Source(tuple(items), ignored)


def _csv(path: Path) -> Source:
    """Return the items of a CSV file, whose header names the columns: path, label, split.

    Paths are relative to the file. A column `labels` has several classes of each, also none, and
    `values` numbers.
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: is not a CSV file in UTF-8: {error}") from error
    lines = [(number, [cell.strip() for cell in row]) for number, row in enumerate(rows, start=1)]
    lines = [(number, row) for number, row in lines if any(row)]
    if not lines:
        raise UsageError(f"{path}: is empty")
    header = [name.lower() for name in lines.pop(0)[1]]
    of_path, of_label, of_split = (
        next((header.index(name) for name in known if name in header), -1)
        for known in (("path", "image"), _TARGETS, ("split",))
    )
    if of_path < 0 or of_label < 0:
        raise UsageError(f"{path}: its first line has to name its columns: path,label,split")
    target = _TARGETS[header[of_label]]
    items, seen = [], dict[str, int]()
    for number, row in lines:
        where = f"{path}, line {number}"
        row = row + [""] * (len(header) - len(row))
        name, label, split = row[of_path], row[of_label], row[of_split] if of_split >= 0 else ""
        if not name or not (label or target == "labels"):
            raise UsageError(f"{where}: needs a path and a label")
        if split and split.lower() not in SPLITS:
            raise UsageError(f"{where}: {split!r} is not a split: train, validation or test")
        if "://" in name:
            raise UsageError(f"{where}: {name}: copy the files to a disk first")
        if name in seen:
            raise UsageError(f"{where}: {name} is on line {seen[name]} already")
        seen[name] = number
        if not (path.parent / name).exists():
            raise UsageError(f"{where}: there is no {path.parent / name}")
        items.append(_item(name, label, SPLITS.get(split.lower(), ""), path.parent / name))
    return Source(tuple(items), 0, target)


def _item(name: str, label: str, split: str, path: Path) -> Item:
    if not path.is_file():
        raise UsageError(f"{path}: is not a regular file")
    return Item(name, label, split, path)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")
