"""Sources of pictures: a folder of class folders, or a CSV file of paths and labels.

Each gives a list of files with their classes, and any process can read any of these files on its
own.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from pathlib import Path

from trainer.options import UsageError
from trainer.records.pictures import SUFFIXES

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits in folders and CSV files, in lower case."""
_WITHOUT_LABELS = frozenset(("extra", "unlabeled", "unlabelled", "unsup"))
"""Names of folders beside splits whose pictures have no classes."""
SEPARATOR = "|"
_KINDS = " ".join(sorted(SUFFIXES))
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")
"""First bytes of JPEG, PNG, GIF, BMP, WebP and TIFF: of a picture whose name has no suffix."""
_TARGETS = {"label": "class", "class": "class", "labels": "labels", "values": "values"}
"""What a label is, by the name of its column."""
_PATHS = ("path", "image", "filename", "file_name", "file", "filepath", "image_path")
"""Names of the column of paths."""
_SHARES = {"1": True, "1.0": True, "0": False, "0.0": False, "": False}
"""What a column of one label says."""


@dataclass(frozen=True)
class Item:
    """Names one picture, and where its bytes lie."""

    name: str
    """Relative, with slashes; unique."""
    label: str
    split: str
    """"train", "validation" or "test"; "": the source does not say."""
    path: Path
    group: str = ""
    """Whose pictures stay in one split; "": it is alone."""


@dataclass(frozen=True)
class Source:
    """Lists what a source has."""

    items: tuple[Item, ...]
    left_out: tuple[str, ...]
    """Names of the files that are no pictures, or lie where no class is."""
    target: str = "class"
    """What a label is: one class, "labels" (several classes) or "values" (numbers); where there can
    be several, SEPARATOR is between them."""


def find(source: Path, group_column: str = "") -> Source:
    """Return all pictures of a source, in the order of their names. Raises UsageError."""
    if source.is_dir():
        if group_column:
            raise UsageError(f"--group-column: is for a CSV file, and {source} is a folder")
        content = _folder(source)
    elif not source.exists():
        raise UsageError(f"{source}: there is no such file or folder")
    elif source.suffix.lower() == ".csv":
        content = _csv(source, group_column)
    else:
        raise UsageError(f"{source}: is not a folder or CSV file; unpack an archive first")
    if not content.items:
        alone = [name for name in content.left_out if _is_picture(source / name)]
        if alone and source.is_dir():
            raise UsageError(
                f"{source}: {len(alone)} pictures lie in no class's folder ({alone[0]}); put each "
                "class's pictures into a folder of its own, or write a CSV file"
            )
        raise UsageError(f"{source}: no pictures found ({_KINDS})")
    return replace(content, items=tuple(sorted(content.items, key=lambda item: item.name)))


def _folder(folder: Path) -> Source:
    """Return the items of class folders, which may lie below folders of splits."""
    tops = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and not _hidden(child.name)
    )
    divided = _has_splits(folder, tops)
    items, left_out = [], []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not _hidden(name)]
        for name in filterfalse(_hidden, names):
            path = Path(root, name)
            parts = path.relative_to(folder).parts
            if len(parts) > 1 + divided and _is_picture(path):
                split = SPLITS[parts[0].lower()] if divided else ""
                items.append(_item("/".join(parts), "/".join(parts[: 1 + divided]), split, path))
            else:
                left_out.append("/".join(parts))
    _check_classes(folder, items, [] if divided else tops)
    # With a folder for training alone, the validation split is made here, as without folders.
    alone = divided and "validation" not in {item.split for item in items}
    items = [
        replace(
            item,
            label=item.label.rpartition("/")[2],
            split=item.split.replace("train", "") if alone else item.split,
        )
        for item in items
    ]
    return Source(tuple(items), tuple(sorted(left_out)))


def _has_splits(folder: Path, tops: Sequence[str]) -> bool:
    """Are the folders at the top splits? Raises UsageError where some may be, and it is not clear.

    A split holds folders of classes. So a class may be called "train", beside "bus" and "car".
    """
    splits = [top for top in tops if top.lower() in SPLITS]
    with_classes = [
        top
        for top in splits
        if any(child.is_dir() and not _hidden(child.name) for child in (folder / top).iterdir())
    ]
    others = [top for top in tops if top not in splits]
    if not with_classes:
        if len(splits) + sum(other.lower() in _WITHOUT_LABELS for other in others) < 2:
            return False
        raise UsageError(
            f"{folder}: {', '.join(splits)} are names of splits, and have no folders of classes; "
            "make one for each class below them, or write a CSV file"
        )
    if others:
        raise UsageError(
            f"{folder}: {with_classes[0]} is a split that holds classes, and {others[0]} is not a "
            f"split; move {others[0]} elsewhere, or call it train, validation or test"
        )
    if "train" not in {SPLITS[top.lower()] for top in with_classes}:
        raise UsageError(f"{folder}: has the split {with_classes[0]}, and no folder train")
    return True


def _check_classes(folder: Path, items: Sequence[Item], tops: Sequence[str]) -> None:
    """Refuse a class without a picture (of `tops`), and one that holds folders in place of
    pictures, which are classes rather."""
    direct = {item.label for item in items if item.name.rpartition("/")[0] == item.label}
    for name in sorted({item.label for item in items} - direct):
        below = next(item.name for item in items if item.label == name)[len(name) + 1 :]
        fix = "call splits train, validation and test, or put a class's pictures into its folder"
        if list(tops) == [name]:
            fix = f"give {folder / name} in place of {folder}, or {fix.partition('or ')[2]}"
        raise UsageError(
            f"{folder / name}: has pictures in folders below it only ({below}), as a split has; "
            f"{fix}"
        )
    if empty := sorted(set(tops) - direct):
        raise UsageError(f"{folder}/{empty[0]}: no pictures in this class ({_KINDS})")


def _is_picture(path: Path) -> bool:
    """Is it one by its suffix or, without a suffix, by its first bytes?"""
    if path.suffix or not path.is_file():
        return path.suffix.lower() in SUFFIXES
    with path.open("rb") as file:
        return looks_like_a_picture(file.read(8))


def looks_like_a_picture(content: bytes) -> bool:
    return content.startswith(_BEGINNINGS)


def _csv(path: Path, group_column: str = "") -> Source:
    """Return the items of a CSV file, whose header names the columns: path, label, split. Between
    them are commas, semicolons or tabs.

    Paths are relative to the file. A column `labels` has several classes of each, also none, and
    `values` numbers. Without any of these, each other column is a label, with 0 or 1.
    """
    lines = _rows(path)
    first = lines.pop(0)[1]
    header = [name.lower() for name in first]
    of_path, of_label, of_split = (
        next((header.index(name) for name in known if name in header), -1)
        for known in (_PATHS, _TARGETS, ("split",))
    )
    of_group = header.index(group_column.lower()) if group_column.lower() in header else -1
    if group_column and of_group < 0:
        known = f"its columns are {', '.join(first)}"
        raise UsageError(f"{path}: has no column {group_column}: {known}")
    apart = (of_path, of_split, of_group)
    columns = {n: name for n, name in enumerate(first) if name and n not in apart}
    if of_path < 0 or (of_label < 0 and len(columns) < 2):
        raise UsageError(f"{path}: its first line has to name its columns: path,label,split")
    target = _TARGETS[header[of_label]] if of_label >= 0 else "labels"
    items, seen = [], dict[str, int]()
    for number, row in lines:
        where = f"{path}, line {number}"
        row = row + [""] * (len(header) - len(row))
        name, split = row[of_path], row[of_split] if of_split >= 0 else ""
        label = row[of_label] if of_label >= 0 else _labels(where, columns, row)
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
        item = _item(name, label, SPLITS.get(split.lower(), ""), path.parent / name)
        items.append(replace(item, group=row[of_group] if of_group >= 0 else ""))
    _check_groups(path, items)
    if of_label < 0 and all(item.label and SEPARATOR not in item.label for item in items):
        target = "class"  # each row has exactly one
    return Source(tuple(items), (), target)


def _check_groups(path: Path, items: Sequence[Item]) -> None:
    """Refuse a group that the source itself divides."""
    splits: dict[str, str] = {}
    for item in items:
        split = splits.setdefault(item.group, item.split) if item.group else item.split
        if split != item.split:
            both = f"{split or 'no split'} and {item.split or 'no split'}"
            raise UsageError(f"{path}: group {item.group} is in {both}: give it one")


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV file that are not empty, each with the line that it begins on.

    Raises UsageError.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        head = text.partition("\n")[0]
        delimiter = max(",;\t", key=head.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows, begin = [], 1
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                rows.append((begin, cells))
            begin = reader.line_num + 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise UsageError(f"{path}: is empty")
    return rows


def _labels(where: str, columns: Mapping[int, str], row: Sequence[str]) -> str:
    """Return the labels of a row with a column for each. Raises UsageError."""
    for number, name in columns.items():
        if row[number] not in _SHARES:
            text = "and a column of a label has 0 or 1; call the column of labels `label`"
            raise UsageError(f"{where}: {name} is {row[number]!r}, {text}")
    return SEPARATOR.join(name for number, name in columns.items() if _SHARES[row[number]])


def _item(name: str, label: str, split: str, path: Path) -> Item:
    if not path.is_file():
        raise UsageError(f"{path}: is not a regular file")
    return Item(name, label, split, path)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")
