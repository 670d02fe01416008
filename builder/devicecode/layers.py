"""What an image layer holds, read once and kept by the layer's diff id.

A layer says what it brings and what it hides of the layers below. Whiteouts are those of the OCI
image specification 1.1, "Layer Filesystem Changeset": `.wh.NAME` removes NAME of the layers below,
and `.wh..wh..opq` removes everything that its folder holds there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Final, NamedTuple, cast

from pydantic import TypeAdapter

from builder.core import confidential, files
from builder.devicecode import (
    damage,
    inventory,
    library,
    linking,
    ptx,
    reader,
    records,
    secrets,
    tars,
)
from builder.devicecode.inventory import Inventory
from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.records import Record
from builder.devicecode.secrets import Secrets


class Entry(NamedTuple):
    """A file or a folder in a layer. size in bytes; mode: its rights, as chmod takes them; link:
    where a symbolic link leads to; hard: the file that a hard link shares its bytes with; capable:
    it has capabilities (capabilities(7))."""

    size: int
    mode: int
    uid: int
    gid: int
    link: str = ""
    hard: str = ""
    capable: bool = False


@dataclass(frozen=True)
class Layer:
    """The content of one layer. Paths are absolute.

    diff_id: the digest before compression. removed: paths that whiteouts remove, with everything
    below them. emptied: folders of which nothing below is seen. files: everything but folders; each
    hides what had its name below. folders: those that the layer has an entry of. hooks: `.pth`
    files with the lines that every start of Python runs. libraries: as they were read, not yet
    compared with `records`, which may lie in another layer. secrets: path and kind of each, which
    the layer keeps whatever a later one deletes.
    """

    diff_id: str
    removed: frozenset[str]
    emptied: frozenset[str]
    files: Mapping[str, Entry]
    folders: Mapping[str, Entry]
    hooks: Mapping[str, str]
    libraries: tuple[Library, ...]
    records: Mapping[str, Record]
    secrets: Secrets


def read(packed: IO[bytes]) -> Layer:
    """Read a layer, plain or packed, to its end. Raises one of tars.BROKEN."""
    digest, search = hashlib.sha256(), secrets.Search()
    removed, emptied = set[str](), set[str]()
    present, folders, hooks = dict[str, Entry](), dict[str, Entry](), dict[str, str]()

    def contents() -> Iterator[tuple[str, IO[bytes]]]:
        for member, content in archive:
            path = PurePosixPath("/", member.name.lstrip("/").removeprefix("./"))
            if path.name == ".wh..wh..opq":
                emptied.add(str(path.parent))
            elif path.name.startswith(".wh."):
                removed.add(str(path.parent / path.name.removeprefix(".wh.")))
            elif member.isdir():
                folders[str(path)] = _entry(member)
            else:
                present[str(path)] = _entry(member)
                if content and not LIBRARY_NAME.search(path.name):
                    text = search.look_into(str(path), content, member.size)
                    if path.suffix == ".pth" and (lines := _RUN_BY_SITE.findall(text)):
                        hooks[str(path)] = b"\n".join(lines).decode("utf-8", "replace")
                    content = io.BytesIO(text)
                if content:
                    yield str(path), content

    with tars.members(packed, digest) as archive:
        libraries = inventory.of_stream(contents())
    return Layer(
        diff_id=f"sha256:{digest.hexdigest()}",
        removed=frozenset(removed),
        emptied=frozenset(emptied),
        files=present,
        folders=folders,
        hooks=hooks,
        libraries=libraries.libraries,
        records=libraries.records,
        secrets=search.secrets(),
    )


_RUN_BY_SITE: Final = re.compile(rb"^import[ \t].*$", re.MULTILINE)
"""A line of a `.pth` file that Python's site module executes."""


def _entry(member: tarfile.TarInfo) -> Entry:
    link = member.linkname if member.issym() else ""
    hard = f"/{member.linkname.lstrip('/')}" if member.islnk() else ""
    capable = "SCHILY.xattr.security.capability" in member.pax_headers
    return Entry(member.size, member.mode & 0o7777, member.uid, member.gid, link, hard, capable)


def visible(layers: Sequence[Layer]) -> Iterator[tuple[Layer, Callable[[str], bool]]]:
    """Yield each layer, the highest first, and whether a container sees a path of it.

    layers: the lowest first.
    """
    hidden = set[str]()  # these paths, and everything below them
    emptied = set[str]()  # everything below these folders, not the folders themselves

    def seen(path: str) -> bool:
        parents = set(map(str, PurePosixPath(path).parents))
        return path not in hidden and not parents & hidden and not parents & emptied

    for layer in reversed(layers):
        yield layer, seen
        hidden |= {*layer.removed, *layer.files}
        emptied |= layer.emptied


def merge(layers: Sequence[Layer]) -> tuple[Library, ...]:
    """Return the libraries that a container of these layers would see, sorted by path.

    One with several names (uv links what it installs to its cache) has that of an installed file.
    """
    libraries: list[Library] = []
    recorded: dict[str, Record] = {}
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


class LayerCache:
    """The layers that this machine has read: `<diff id>-<version of the reader>.json.gz`.

    A registry, and an engine with the containerd store, name a layer by the digest that it has when
    it is packed. `<digest>.layer` says which diff id that is.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or files.cache_home() / "layer-contents"

    def find(self, diff_id: str) -> Layer | None:
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

    def read(self, packed: IO[bytes], digest: str = "") -> Layer:
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
def _json() -> TypeAdapter[Layer]:
    """Return what writes a layer as JSON, and reads it back."""
    return TypeAdapter(Layer)


_READERS: Final = (
    *(confidential, damage, inventory, library),
    *(linking, ptx, reader, records, secrets, tars),
)


@cache
def _version() -> str:
    """Return a hash of the reader: with another reader, every layer is read again."""
    own = [Path(__file__), confidential.RULES]
    own += [Path(str(module.__file__)) for module in _READERS]
    pruning = sorted((Path(__file__).parent / "pruning").glob("*.py"))
    return files.hash_of(*(path.read_text(encoding="utf-8") for path in (*own, *pruning)))[:16]
