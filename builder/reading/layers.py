"""What an image layer holds, read once and kept by the layer's diff id.

A layer says what it brings and what it hides of the layers below. Whiteouts are those of the OCI
image specification 1.1, "Layer Filesystem Changeset": `.wh.NAME` removes NAME of the layers below,
and `.wh..wh..opq` removes everything that its folder holds there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Final, NamedTuple, cast

from pydantic import TypeAdapter

from builder.core import confidential, files
from builder.devicecode import damage, dynamic, inventory, library, pruning, ptx, reader, records
from builder.devicecode.dynamic import Dynamic
from builder.devicecode.inventory import Inventory
from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.records import WheelRecord
from builder.reading import kept, tars


class Entry(NamedTuple):
    """A file or a folder in a layer. size in bytes."""

    size: int
    mode: int
    """Its rights, as chmod takes them."""
    uid: int
    gid: int
    link: str = ""
    """Where a symbolic link leads to."""
    hard: str = ""
    """The file that a hard link shares its bytes with."""
    capable: bool = False
    """It has capabilities (capabilities(7))."""


@dataclass(frozen=True)
class ReadLayer:
    """The content of one layer. Paths are absolute."""

    diff_id: str
    """The digest before compression."""
    removed: frozenset[str]
    """Paths that whiteouts remove, with everything below them."""
    emptied: frozenset[str]
    """Folders of which nothing below is seen."""
    files: Mapping[str, Entry]
    """Everything but folders; each hides what had its name below."""
    folders: Mapping[str, Entry]
    """Those that the layer has an entry of."""
    hooks: Mapping[str, str]
    """`.pth` files with the lines that every start of Python runs."""
    libraries: tuple[Library, ...]
    """As they were read, not yet compared with `records`, which may lie in another layer."""
    records: Mapping[str, WheelRecord]
    secrets: tuple[tuple[str, str], ...]
    """Path and kind of each, which the layer keeps whatever a later one deletes."""
    programs: Mapping[str, Dynamic] = field(default_factory=dict)
    """What the loader reads of interpreters."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What checks read of files (kept.py)."""


def read(packed: IO[bytes]) -> ReadLayer:
    """Read a layer, plain or packed, to its end. Raises one of tars.BROKEN."""
    digest, search = hashlib.sha256(), _SecretSearch()
    removed, emptied = set[str](), set[str]()
    present, folders, hooks = dict[str, Entry](), dict[str, Entry](), dict[str, str]()
    programs, texts = dict[str, Dynamic](), dict[str, str]()

    def contents() -> Iterator[tuple[str, IO[bytes]]]:
        for member, content in archive:
            path = path_of(member.name)
            if path.name == ".wh..wh..opq":
                emptied.add(str(path.parent))
            elif path.name.startswith(".wh."):
                removed.add(str(path.parent / path.name.removeprefix(".wh.")))
            elif member.isdir():
                folders[str(path)] = _entry(member)
            else:
                present[str(path)] = _entry(member)
                if content and kept.PROGRAM.search(str(path)):
                    if linked := reader.read_stream(content, str(path)).dynamic:
                        programs[str(path)] = linked
                elif content and not LIBRARY_NAME.search(path.name):
                    text = search.look_into(str(path), content, member.size)
                    if path.suffix == ".pth" and (lines := _RUN_BY_SITE.findall(text)):
                        hooks[str(path)] = b"\n".join(lines).decode("utf-8", "replace")
                    elif path.suffix == ".pth" and member.size > len(text):
                        hooks[str(path)] = f"{member.size:,} bytes of it are not read"
                    if said := kept.text(str(path), text):
                        texts[str(path)] = said
                    content = io.BytesIO(text)
                if content:
                    yield str(path), content

    with tars.members(packed, digest) as archive:
        libraries = inventory.of_stream(contents())
    return ReadLayer(
        diff_id=f"sha256:{digest.hexdigest()}",
        removed=frozenset(removed),
        emptied=frozenset(emptied),
        files=present,
        folders=folders,
        hooks=hooks,
        libraries=libraries.libraries,
        records=libraries.records,
        secrets=search.secrets(),
        programs=programs,
        texts=texts,
    )


def path_of(name: str) -> PurePosixPath:
    """Return the path that a member of a layer has in a container."""
    return PurePosixPath("/", name.lstrip("/").removeprefix("./"))


_RUN_BY_SITE: Final = re.compile(rb"^import[ \t].*$", re.MULTILINE)
"""A line of a `.pth` file that Python's site module executes."""


def _entry(member: tarfile.TarInfo) -> Entry:
    link = member.linkname if member.issym() else ""
    hard = f"/{member.linkname.lstrip('/')}" if member.islnk() else ""
    capable = "SCHILY.xattr.security.capability" in member.pax_headers
    return Entry(member.size, member.mode & 0o7777, member.uid, member.gid, link, hard, capable)


_SUMS: Final = re.compile(r"/var/lib/dpkg/(info|status\.d)/[^/]+\.md5sums$")
"""Where dpkg, and distroless images, keep the MD5 of each file that a package brought."""


class _SecretSearch:
    """Looks into the files of one layer, one after the other, for what looks like a secret.

    A file that a wheel installed is public as long as it has the size that RECORD gives it, one of
    a Debian package as long as it has its checksum.
    """

    def __init__(self) -> None:
        self._suspects: dict[str, tuple[str, int, str]] = {}
        self._public: dict[str, int] = {}
        self._sums: dict[str, str] = {}

    def look_into(self, path: str, file: IO[bytes], size: int) -> bytes:
        """Return the content of a file that may be a secret or a record; b"" of a larger one."""
        if records.is_record(path):
            text = file.read(records.LARGEST)
            site = PurePosixPath(path).parent.parent
            for name, _, recorded in records.rows_of(text.decode("utf-8", "replace")):
                self._public[str(site / name)] = recorded
            return text
        if _SUMS.search(path):
            text = file.read(records.LARGEST)
            for line in text.decode("utf-8", "replace").splitlines():
                checksum, _, name = line.partition("  ")
                self._sums[f"/{name}"] = checksum
            return text
        content = file.read() if size <= confidential.READ_AT_MOST else b""
        if "/__pycache__/" not in path and (kind := confidential.secret(path, content)):
            self._suspects[path] = kind, size, hashlib.md5(content).hexdigest()
        return content

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """Return path and kind of each secret, once every file was looked into."""
        return tuple(
            (path, kind)
            for path, (kind, size, checksum) in sorted(self._suspects.items())
            if self._public.get(path) != size
            # where /lib is a link to /usr/lib, a package may name the file by the link
            and checksum not in (self._sums.get(path), self._sums.get(path.removeprefix("/usr")))
        )


def visible(layers: Sequence[ReadLayer]) -> Iterator[tuple[ReadLayer, Callable[[str], bool]]]:
    """Yield each layer, the highest first, and whether a container sees a path of it.

    layers: the lowest first.
    """
    hidden = set[str]()  # these paths, and everything below them
    emptied = set[str]()  # everything below these folders, not the folders themselves

    known: dict[str, bool] = {}

    def covered(folder: str) -> bool:
        """Tell whether nothing below a folder is seen."""
        below = []  # a loop, since a path may have thousands of folders
        while folder not in known:
            below.append(folder)
            if folder in hidden or folder in emptied or folder in ("/", ""):
                known[folder] = folder in hidden or folder in emptied
                break
            folder = posixpath.dirname(folder)
        known.update(dict.fromkeys(below, known[folder]))
        return known[folder]

    def seen(path: str) -> bool:
        return path not in hidden and not covered(posixpath.dirname(path))

    for layer in reversed(layers):
        yield layer, seen
        hidden |= {*layer.removed, *layer.files}
        emptied |= layer.emptied
        known.clear()


def merge(layers: Sequence[ReadLayer]) -> tuple[Library, ...]:
    """Return the libraries that a container of these layers would see, sorted by path.

    One with several names (uv links what it installs to its cache) has that of an installed file.
    """
    libraries: list[Library] = []
    recorded: dict[str, WheelRecord] = {}
    for layer, seen in visible(layers):
        linked: dict[str, list[str]] = {}
        for path, entry in layer.files.items():
            linked.setdefault(entry.hard, []).append(path)
        for each in layer.libraries:
            names = filter(seen, (each.path, *linked.get(each.path, ())))
            path = max(names, key=lambda name: "-packages/" in name, default="")
            libraries += [replace(each, path=path)] if path else []
        recorded |= {path: record for path, record in layer.records.items() if seen(path)}
    libraries.sort(key=lambda library: library.path)
    return Inventory(tuple(libraries), recorded).compared()


_LINKS: Final = 40
"""Links that Linux follows on the way to one file (path_resolution(7))."""
_FOLDER: Final = Entry(0, 0o755, 0, 0)


class Tree:
    """The files that a container of these layers (the lowest first) would see, by path.

    files, folders: by path; a folder that no layer describes has the rights that an unpacked one
    gets. layer: the diff id of the layer that has a file. hooks, texts, records: see `Layer`.
    """

    def __init__(self, layers: Sequence[ReadLayer]) -> None:
        self.files: dict[str, Entry] = {}
        self.folders: dict[str, Entry] = {}
        self.layer: dict[str, str] = {}
        self.hooks: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.records: dict[str, WheelRecord] = {}
        for layer, seen in visible(layers):
            present = {path: entry for path, entry in layer.files.items() if seen(path)}
            self.files |= present
            self.layer |= dict.fromkeys(present, layer.diff_id)
            hooks = {path: layer.hooks.get(at.hard or path, "") for path, at in present.items()}
            self.hooks |= {path: lines for path, lines in hooks.items() if lines}
            texts = {path: layer.texts.get(at.hard or path, "") for path, at in present.items()}
            self.texts |= {path: text for path, text in texts.items() if text}
            self.records |= {path: each for path, each in layer.records.items() if seen(path)}
            folders = {path: entry for path, entry in layer.folders.items() if seen(path)}
            self.folders = folders | self.folders
        known = {"/"}  # an image may have no file
        for path in (*self.files, *self.folders):
            parent = posixpath.dirname(path)
            while parent not in known:
                known.add(parent)
                parent = posixpath.dirname(parent)
        self.folders = dict.fromkeys(known, _FOLDER) | self.folders

    def resolve(self, path: str) -> str | None:
        """Return where a path leads once every link is followed, None where nothing is there."""
        *_, at = self.visited(path)
        return at if at in self.files or at in self.folders else None

    def visited(self, path: str) -> Iterator[str]:
        """Yield each place on the way to where a path leads, which is last; "" for endless links,
        and for a path that is too long for a kernel."""
        at, rest, links = "/", path.split("/") if len(path) < tars.LONGEST_NAME else [], 0
        if not rest:
            yield ""
        while rest:
            at = posixpath.normpath(posixpath.join(at, rest.pop(0)))
            yield at
            entry = self.files.get(at)
            if entry and entry.link:
                links += 1
                if links > _LINKS:
                    yield ""
                    return
                rest = [*entry.link.split("/"), *rest]
                at = "/" if entry.link.startswith("/") else posixpath.dirname(at)

    def named(self, name: str) -> Iterator[str]:
        return (path for path in self.files if path.endswith(f"/{name}"))

    def program(self, word: str, search: str, folder: str = "/") -> str | None:
        """Return the file that a command starts. search: PATH; folder: where it is started."""
        places = [folder] if "/" in word else search.split(":")
        files = (self.resolve(posixpath.join(place, word)) for place in places)
        return next((file for file in files if file in self.files), None)


class LayerCache:
    """The layers that this machine has read: `<diff id>-<version of the reader>.json.gz`.

    A registry, and an engine with the containerd store, name a layer by the digest that it has when
    it is packed. `<digest>.layer` says which diff id that is.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or files.cache_home() / "layer-contents"

    def find(self, diff_id: str) -> ReadLayer | None:
        """Return a layer that was read; None if it was not, or if its entry is torn."""
        try:
            return _json().validate_json(gzip.decompress(self._path(diff_id).read_bytes()))
        except (OSError, EOFError, ValueError):
            return None

    def diff_id(self, digest: str) -> str | None:
        """Return the diff id of the layer that has this digest when it is packed, if known."""
        try:
            return self._note(digest).read_text()
        except OSError:
            return None

    def read(self, packed: IO[bytes], digest: str = "") -> ReadLayer:
        """Read a layer, and keep what it holds. digest: under which its packed bytes are looked for
        later, if they have it. Raises one of tars.BROKEN."""
        actual = hashlib.sha256()
        layer = read(cast(IO[bytes], tars.Digested(packed, actual)) if digest else packed)
        content = gzip.compress(_json().dump_json(layer), mtime=0)
        files.write(self._path(layer.diff_id), content)
        if digest == f"sha256:{actual.hexdigest()}":
            files.write(self._note(digest), layer.diff_id)
        return layer

    def _path(self, diff_id: str) -> Path:
        return self.folder / f"{diff_id.removeprefix('sha256:')}-{_version()}.json.gz"

    def _note(self, digest: str) -> Path:
        return self.folder / f"{digest.removeprefix('sha256:')}.layer"


@cache
def _json() -> TypeAdapter[ReadLayer]:
    return TypeAdapter(ReadLayer)


_READERS: Final = (
    *(confidential, damage, dynamic, inventory, kept, library),
    *(ptx, reader, records, tars),
)


@cache
def _version() -> str:
    """Return a hash of the reader: with another reader, every layer is read again."""
    return files.hash_of(*(path.read_text(encoding="utf-8") for path in _sources()))[:16]


def _sources() -> list[Path]:
    """Return the files that decide what is read of a layer."""
    own = [Path(__file__), confidential.RULES]
    own += [Path(str(module.__file__)) for module in _READERS]
    return [*own, *sorted(Path(str(pruning.__file__)).parent.glob("*.py"))]
