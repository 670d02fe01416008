"""The libraries of an image in a registry. Nothing is pulled, and nothing of the image runs.

Its layers are streamed. What each one holds is kept by its digest, so that a layer is read once.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

from builder import registry
from builder.core import files
from builder.core.errors import CheckFailed, InputError, refusal
from builder.devicecode.inventory import Library, from_files
from builder.devicecode.layers import ReadLayer, merge
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.verdict import Audit
from builder.prove.audit import tars
from builder.prove.audit.reader import Chunks, as_library, program
from builder.prove.audit.suspects import LayerSecret, Suspects


@dataclass(frozen=True)
class LayerContent:
    """What one layer of an image brings, and what it hides of the layers below. Absolute paths.

    removed: paths that whiteouts remove, with everything below them. emptied: folders of which no
    lower layer shows anything. files: everything but folders; each hides what had its name below.
    secrets: path and kind of each, which the layer keeps whatever a later one deletes.
    """

    removed: frozenset[str]
    emptied: frozenset[str]
    files: frozenset[str]
    libraries: tuple[Library, ...]
    secrets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LayeredImage:
    """What an image in a registry holds: the libraries that a container would see, and the secrets
    of all layers, the lowest first."""

    found: Audit
    secrets: tuple[LayerSecret, ...]


def of_registry(
    reference: registry.Reference,
    kept_in: Path | None = None,
    on_layer: Callable[[registry.Descriptor, bool], None] = lambda *_: None,
) -> LayeredImage:
    """Every library and every secret of an image in a registry (of its linux/amd64 part), layer by
    layer.

    A layer does not say what it holds, so a layer that this machine has not seen is streamed. What
    was found in it is kept by its digest in `kept_in` (the user's cache by default), so a layer of
    several images is read once. on_layer: called with each layer, and whether it was known.
    Raises InputError where there is no such image, CheckFailed for a layer that cannot be unpacked,
    OutsideError for what the registry or this machine refuses.
    """
    folder = kept_in or files.cache_home() / "layers"
    with registry.Registry(reference.host) as client:
        found = client.manifest(reference.repository, reference.target)
        if found and found.is_index:
            found = client.manifest(reference.repository, _amd64(reference, found))
        if found is None or "layers" not in found.content:
            raise InputError(f"{reference}: there is no such image", "correct its name")
        read, secrets = [], []
        for layer in found.layers:
            known = _remembered(folder, layer.digest)
            on_layer(layer, known is not None)
            if known is None:
                try:
                    with client.stream(reference.repository, layer) as chunks:
                        known = read_layer(cast(IO[bytes], Chunks(chunks)))
                except tars.BROKEN as error:
                    raise CheckFailed(
                        f"{reference}: a layer cannot be unpacked: {error}", "push the image again"
                    ) from error
                except OSError as error:
                    raise refusal(error, tempfile.gettempdir()) or error from error
                _remember(folder, layer.digest, known)
            read.append(known)
            secrets += [LayerSecret(path, kind, layer.digest) for path, kind in known.secrets]
    return LayeredImage(Audit(merge(reversed(read))), tuple(secrets))


def _kept(folder: Path, digest: str) -> Path:
    """The file that keeps a layer's content: named by its digest, and by the reader's version."""
    return folder / f"{digest.removeprefix('sha256:')}-{_reader_version()}.json.gz"


@cache
def _reader_version() -> str:
    return files.hash_of(*(content.decode() for content in program().values()))[:16]


def _remembered(folder: Path, digest: str) -> LayerContent | None:
    try:
        content = json.loads(gzip.decompress(_kept(folder, digest).read_bytes()))
        return LayerContent(
            frozenset(content["removed"]),
            frozenset(content["emptied"]),
            frozenset(content["files"]),
            tuple(map(as_library, content["libraries"])),
            tuple((str(path), str(kind)) for path, kind in content["secrets"]),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None  # never read, or torn


def _remember(folder: Path, digest: str, layer: LayerContent) -> None:
    text = json.dumps(asdict(layer), default=sorted)
    files.write(_kept(folder, digest), gzip.compress(text.encode(), mtime=0))


def _amd64(reference: registry.Reference, index: registry.Manifest) -> str:
    if one := index.of_platform("linux", "amd64"):
        return one.digest
    raise InputError(f"{reference}: has no image for linux/amd64", "audit another one")


def read_layer(packed: IO[bytes]) -> LayerContent:
    """The content of a layer, a tar archive. It is read to its end, because the digest covers all
    of it.

    Raises one of tars.BROKEN for what cannot be unpacked.
    """
    layer, suspects = ReadLayer(), Suspects()

    def members(
        found: Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]],
    ) -> Iterator[tuple[str, IO[bytes]]]:
        for archive, member in found:
            path = layer.brings(member.name, member.isdir())
            file = archive.extractfile(member) if path and member.isfile() else None
            if file and not LIBRARY_NAME.search(path):
                file = io.BytesIO(suspects.look_into(path, file, member.size))
            if file:
                yield path, file

    with tars.opened(packed) as found:
        libraries = tuple(from_files(members(found)))
    while packed.read(1 << 20):
        pass
    return LayerContent(
        frozenset(layer.removed),
        frozenset(layer.emptied),
        frozenset(layer.files),
        libraries,
        suspects.secrets(),
    )
