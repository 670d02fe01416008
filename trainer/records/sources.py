"""Sources of pictures: a folder of class folders, a CSV file, a zip or tar archive.

Each kind of source gives a list of files with their classes, and any process can read any of these
files on its own. Archives are not unpacked; a compressed tar is decompressed once, into a file
beside the output.
"""

import csv
import functools
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from trainer.records.pictures import SUFFIXES

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""Names of splits in folders and CSV files. Vertex AI's CSV files use TRAINING and so on."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
SEPARATOR = "|"
_KINDS = " ".join(sorted(SUFFIXES))
_PATHS = ("path", "image", "file", "filename", "image_path", "gcs_file_path")
_CLASSES = ("label", "class", "category", "target")
_SEVERAL = ("labels", "classes", "tags")
_VALUES = ("value", "values")
_SETS = ("split", "set", "subset", "ml_use")


class RecordsError(Exception):
    """Something cannot be turned into records; one line that says what."""


@dataclass(frozen=True)
class Item:
    """One picture, and where its bytes lie."""

    name: str
    """Relative, with slashes; unique."""
    label: str
    split: str
    """"train", "validation" or "test"; "": the source does not say."""
    container: str
    """Path of the file itself, or of the archive it lies in."""
    offset: int
    """Byte in a tar, number of the entry in a zip, -1 for a file."""
    size: int
    version: str
    """Changes with the content: a time of change, or a checksum."""

    def read(self) -> bytes:
        """Return all bytes. Raises OSError."""
        if self.offset < 0:
            return Path(self.container).read_bytes()
        if self.container.lower().endswith(".zip"):
            try:
                archive = zipfile_of(self.container)
                return archive.read(archive.infolist()[self.offset])
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
                raise OSError(f"cannot be read from the archive: {error}") from error
        with Path(self.container).open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) != self.size:
            raise OSError("the archive is cut short")
        return content


@dataclass(frozen=True)
class Found:
    """What a source has."""

    items: tuple[Item, ...]
    ignored: int
    """Number of files whose names are not those of pictures."""
    target: str = "class"
    """What a label is: one class, "labels" (several classes) or "values" (numbers); where there can
    be several, SEPARATOR is between them."""


def find(source: Path, work: Path, decompressing: Callable[[], None] = lambda: None) -> Found:
    """Return all pictures of a source, in the order of their names. Raises RecordsError.

    A compressed archive is decompressed into the folder `work`; `decompressing` is called before.
    """
    if source.is_dir():
        return _folder(source)
    if not source.exists():
        raise RecordsError(f"{source}: there is no such file or folder")
    name = source.name.lower()
    if name.endswith(ARCHIVES):
        return _zip(source) if name.endswith(".zip") else _tar(source, work, decompressing)
    if name.endswith((".csv", ".txt")):
        return _csv(source)
    raise RecordsError(f"{source}: is not a folder, CSV file or archive ({', '.join(ARCHIVES)})")


def _folder(folder: Path) -> Found:
    entries = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _hidden(name)]
        for name in names:
            path = Path(root, name)
            entries[path.relative_to(folder).as_posix()] = functools.partial(_file, path=path)
    # An empty folder is an empty class, which `_by_folder` refuses.
    classes = [child.name for child in folder.iterdir() if child.is_dir()]
    return _by_folder(str(folder), entries, [name for name in classes if not _hidden(name)])


def _by_folder(
    source: str,
    entries: Mapping[str, Callable[[str, str, str], Item]],
    folders: Sequence[str] = (),
) -> Found:
    """Return items of class folders, which may lie below folders of splits, and in an archive below
    one more folder.

    `entries` maps relative names to functions that make an Item of (name, label, split).
    """
    wanted, ignored = [], 0
    for name, make in sorted(entries.items()):
        parts = PurePosixPath(name).parts
        if any(map(_hidden, parts)):
            continue
        if PurePosixPath(name).suffix.lower() in SUFFIXES:
            wanted.append((name, parts, make))
        else:
            ignored += 1
    while wanted and not folders and len({parts[0] for _, parts, _ in wanted}) == 1:
        if min(len(parts) for _, parts, _ in wanted) <= 2:
            break
        wanted = [(name, parts[1:], make) for name, parts, make in wanted]
    tops = set(folders) or {parts[0] for _, parts, _ in wanted if len(parts) > 1}
    # With a folder for training alone, the validation split is made here, as without folders.
    divided = bool(tops) and tops <= SPLITS.keys() and "train" in {SPLITS[top] for top in tops}
    items, classes = [], set() if divided else set(folders)
    for name, parts, make in wanted:
        if len(parts) < (3 if divided else 2):
            ignored += 1
            continue
        label = parts[1] if divided else parts[0]
        items.append(make(name, label, SPLITS[parts[0]] if divided else ""))
    if "validation" not in {item.split for item in items}:
        items = [replace(item, split=item.split.replace("train", "")) for item in items]
    empty = sorted(classes - {item.label for item in items})
    if empty:
        raise RecordsError(f"{source}/{empty[0]}: no pictures in this class ({_KINDS})")
    return _checked(source, items, ignored)


def _csv(path: Path) -> Found:
    """Return items of a CSV file.

    Columns are named by a header (path, label, split). Without a header they are `path,label`,
    `path,label,split` or Vertex AI's `split,path,label`. Paths are relative to the file. A
    column `labels` has several classes of each, also none, and `values` numbers.
    """
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordsError(f"{path}: is not a CSV file in UTF-8: {error}") from error
    lines = [(number, [cell.strip() for cell in row]) for number, row in enumerate(rows, start=1)]
    lines = [(number, row) for number, row in lines if any(row)]
    if not lines:
        raise RecordsError(f"{path}: is empty")
    columns, target = _columns(lines[0][1]), "class"
    if columns:
        named = lines.pop(0)[1][columns[1]].lower()
        target = "labels" if named in _SEVERAL else "values" if named in _VALUES else "class"
    else:
        first = lines[0][1]
        use_first = len(first) > 2 and first[0].lower() in {*SPLITS, "unassigned"}
        columns = (1, 2, 0) if use_first else (0, 1, 2)
    items, seen = [], dict[str, int]()
    for number, row in lines:
        where = f"{path}, line {number}"
        row = row + [""] * (3 - len(row))
        name, label = row[columns[0]], row[columns[1]]
        use = row[columns[2]] if 0 <= columns[2] < len(row) else ""
        if not name or not (label or target == "labels"):
            raise RecordsError(f"{where}: needs a path and a label")
        if use and use.lower() not in {*SPLITS, "unassigned"}:
            raise RecordsError(f"{where}: {use!r} is not a split: train, validation or test")
        if "://" in name:
            raise RecordsError(f"{where}: {name}: copy the files to a disk first")
        if name in seen:
            raise RecordsError(f"{where}: {name} is on line {seen[name]} already")
        seen[name] = number
        file = path.parent / name
        if not file.is_file():
            raise RecordsError(f"{where}: there is no {file}")
        items.append(_file(name, label, SPLITS.get(use.lower(), ""), file))
    return replace(_checked(str(path), items, 0), target=target)


def _columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the numbers of the columns path, label and split (-1: none); None: no header."""
    names = [name.lower() for name in header]

    def column(known: Sequence[str]) -> int:
        return next((names.index(name) for name in known if name in names), -1)

    path, label = column(_PATHS), column((*_CLASSES, *_SEVERAL, *_VALUES))
    return (path, label, column(_SETS)) if path >= 0 and label >= 0 else None


def _zip(path: Path) -> Found:
    try:
        archive = zipfile_of(str(path))
    except zipfile.BadZipFile as error:
        raise RecordsError(f"{path}: is not a zip archive, or cut short: {error}") from error

    def make(name: str, label: str, split: str, number: int, info: zipfile.ZipInfo) -> Item:
        version = f"{info.CRC:08x}"
        return Item(name, label, split, str(path), number, info.file_size, version)

    entries = {}
    for number, info in enumerate(archive.infolist()):
        if info.flag_bits & 1:
            raise RecordsError(f"{path}: {info.filename} is encrypted")
        if not info.is_dir():
            entries[info.filename] = functools.partial(make, number=number, info=info)
    return _by_folder(str(path), entries)


def _tar(path: Path, work: Path, decompressing: Callable[[], None]) -> Found:
    try:
        if not path.name.lower().endswith(".tar"):
            path = _decompressed(path, work, decompressing)
        with tarfile.open(path, "r:") as archive:
            members = [member for member in archive if member.isreg()]
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise RecordsError(f"{path}: is not a tar archive, or cut short: {error}") from error

    def make(name: str, label: str, split: str, member: tarfile.TarInfo) -> Item:
        offset, version = member.offset_data, str(member.mtime)
        return Item(name, label, split, str(path), offset, member.size, version)

    entries = {m.name.removeprefix("./"): functools.partial(make, member=m) for m in members}
    return _by_folder(str(path), entries)


def _decompressed(path: Path, work: Path, decompressing: Callable[[], None]) -> Path:
    """Path of the decompressed tar, which is kept so that a run after a kill need not repeat it."""
    import bz2
    import gzip
    import lzma
    import shutil

    about = path.stat()
    target = work / f"source-{about.st_size}-{about.st_mtime_ns}.tar"
    if target.exists():
        return target
    decompressing()
    name = path.name.lower()
    kind = gzip if name.endswith("gz") else bz2 if name.endswith("bz2") else lzma
    temporary = target.with_suffix(f".tmp-{os.getpid()}")
    try:
        with kind.open(path, "rb") as compressed, temporary.open("wb") as plain:
            shutil.copyfileobj(compressed, plain, 1 << 20)
        temporary.rename(target)
    except lzma.LZMAError as error:
        raise OSError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


@functools.lru_cache(maxsize=4)
def zipfile_of(path: str) -> zipfile.ZipFile:
    """Return the archive, opened once per process. Raises zipfile.BadZipFile."""
    return zipfile.ZipFile(path)


def _checked(source: str, items: list[Item], ignored: int) -> Found:
    if not items:
        raise RecordsError(f"{source}: no pictures found ({_KINDS})")
    return Found(tuple(sorted(items, key=lambda item: item.name)), ignored)


def _file(name: str, label: str, split: str, path: Path) -> Item:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise RecordsError(f"{path}: is not a regular file")
    return Item(name, label, split, str(path), -1, about.st_size, str(about.st_mtime_ns))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")
