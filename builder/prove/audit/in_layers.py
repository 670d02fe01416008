"""The secrets in every layer of an image on an engine, those that a later layer removed, too.

A layer that this machine has not looked into is read from the factory's own blobs, or else streamed
out of the engine. What it holds is kept by its diff id (the digest before packing), so that a base
is read once for all images on it. Which diff id a blob has is kept, too: the containerd store names
layers by their blobs.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from builder.core import confidential, files
from builder.devicecode import records
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.prove.audit import suspects, tars
from builder.prove.audit.reader import Chunks
from builder.prove.audit.suspects import LayerSecret, Suspects

if TYPE_CHECKING:
    import docker

Secrets = tuple[tuple[str, str], ...]
"""Path and kind of each secret of a layer."""


def of_image(
    client: docker.DockerClient,
    image: Any,
    blobs: Mapping[str, Path],
    kept_in: Path | None = None,
) -> tuple[tuple[LayerSecret, ...], tuple[str, ...]]:
    """The secrets of all layers, the lowest first, and the diff ids of those that could not be
    read.

    image: the engine's object. blobs: the file of a layer by its diff id, packed or not. kept_in:
    the folder where results are kept, the user's cache by default. Raises what the engine's client
    raises.
    """
    folder = kept_in or files.cache_home() / "layer-secrets"
    layers: Sequence[str] = image.attrs["RootFS"].get("Layers") or ()
    known = {one: found for one in layers if (found := _remembered(folder, one)) is not None}
    for one in layers:
        if one not in known and one in blobs and blobs[one].is_file():
            with blobs[one].open("rb") as file:
                known |= _read(folder, file)
    if any(one not in known for one in layers):
        for name, saved in _saved(client, image):
            if _layer_of(folder, name) not in known:
                known |= _read_blob(folder, name, saved)
    secrets = tuple(
        LayerSecret(path, kind, one) for one in layers for path, kind in known.get(one, ())
    )
    return secrets, tuple(one for one in layers if one not in known)


def _read(folder: Path, packed: IO[bytes]) -> dict[str, Secrets]:
    """The secrets of a layer by its diff id, which are kept; {} for what is no layer."""
    digest, looked = hashlib.sha256(), Suspects()
    try:
        with tars.opened(packed, digest) as members:
            for archive, member in members:
                path = "/" + member.name.removeprefix("./").lstrip("/")
                if member.isfile() and not LIBRARY_NAME.search(path):
                    looked.look_into(
                        path, cast(IO[bytes], archive.extractfile(member)), member.size
                    )
    except tars.BROKEN:
        return {}
    name, found = f"sha256:{digest.hexdigest()}", looked.secrets()
    files.write(_kept(folder, name), json.dumps(found).encode())
    return {name: found}


def _read_blob(folder: Path, name: str, packed: IO[bytes]) -> dict[str, Secrets]:
    """As `_read`; which layer a blob is, is kept where it has the bytes that its name says."""
    digest = hashlib.sha256()
    found = _read(folder, cast(IO[bytes], tars.Digested(packed, digest)))
    if digest.hexdigest() == name:
        for layer in found:
            files.write(_note(folder, name), layer.encode())
    return found


def _saved(client: docker.DockerClient, image: Any) -> Iterator[tuple[str, IO[bytes]]]:
    """What may be a layer in an engine's archive of the image, with its name: each file but the
    JSON ones.

    Engines name layers by diff id (Docker 25 and later), by blob (with the containerd store) or by
    an id of their own.
    """
    stream = client.api.get_image(image.id, chunk_size=1 << 20)
    with tarfile.open(fileobj=Chunks(stream), mode="r|") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # tarfile keeps each header otherwise
            name = member.name.rpartition("/")[2].removesuffix(".tar")
            other = name.endswith(".json") or name in ("VERSION", "repositories")
            if member.isfile() and not other:
                yield name, cast(IO[bytes], archive.extractfile(member))


def _layer_of(folder: Path, name: str) -> str:
    """The diff id of what has this name in an engine's archive: the blob's, if this machine has
    read it; else the name itself."""
    try:
        return _note(folder, name).read_text()
    except OSError:
        return f"sha256:{name}"


def _note(folder: Path, name: str) -> Path:
    return folder / f"{name}.layer"


def _kept(folder: Path, layer: str) -> Path:
    return folder / f"{layer.removeprefix('sha256:')}-{_version()}.json"


@cache
def _version() -> str:
    """Of the rules: with others, every layer is read again."""
    modules = (confidential, records, suspects, tars)
    return files.hash_of(*(Path(str(one.__file__)).read_text() for one in modules))[:16]


def _remembered(folder: Path, layer: str) -> Secrets | None:
    try:
        content = json.loads(_kept(folder, layer).read_bytes())
        return tuple((str(path), str(kind)) for path, kind in content)
    except (OSError, ValueError, TypeError):
        return None  # never read, or torn
