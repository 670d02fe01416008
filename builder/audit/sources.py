"""What a person names to audit: paths, images in files, on the engine and in a registry."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from builder import registry
from builder.audit.audited import Audited, Gpu, known_gpus
from builder.core import docker_sdk
from builder.core.docker_sdk import refusals
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.devicecode.verdict import Audit
from builder.reading import images, tars
from builder.reading.images import Blobs, ImageContent
from builder.registry import Manifest, manifests
from builder.registry.manifests import OCI_MANIFEST

if TYPE_CHECKING:
    import docker

_FILE = re.compile(r"^(/|\.{1,2}/)|\.(whl|tar|tgz|gz|so[.\d]*)$")
"""What a person names as a file, and no image has for a name."""
_ANSWER_SECONDS, _API_SECONDS = 10, 600
"""How long the engine may take for its first answer, and for any other."""

T = TypeVar("T")
ReadOnEngine = Callable[[str], ImageContent | None]
"""Reads an image of an engine, by name or ID; None where the engine does not have it."""


def audit(
    names: Iterable[str],
    read: Callable[[str], Audited],
    gpus: tuple[Gpu, ...] = (),
    on_event: OnEvent = ignore,
    no_paths: Container[str] = (),
) -> tuple[Audited, ...]:
    """Read and judge paths and other names. Paths are taken together, as one image would hold them.

    read: reads what is no path. gpus: to judge paths for; none are all that are known. no_paths:
    names that mean something else, although a file may have them. Raises InputError, and what
    `read` raises.
    """
    names = tuple(dict.fromkeys(names))
    local = [Path(name) for name in names if name not in no_paths and Path(name).exists()]
    sources = []
    if local:
        with step("audit " + ", ".join(map(str, local[:3])), on_event):
            content = images.of_paths(local)
        name = str(local[0]) if len(local) == 1 else f"{local[0]} and {len(local) - 1} more"
        sources.append(audited(name, content, gpus))
    return (*sources, *(read(name) for name in names if Path(name) not in local))


def audited(name: str, content: ImageContent, gpus: tuple[Gpu, ...]) -> Audited:
    """Return what was read, to be judged for these GPUs, or for all that are known."""
    secrets = tuple(map(str, content.secrets))
    libraries = Audit(content.libraries)
    return Audited(name, libraries, gpus or known_gpus(), bool(gpus), secrets=secrets)


def of_name(
    name: str,
    engine: Callable[[], ReadOnEngine],
    on_event: OnEvent = ignore,
    default: str | None = None,
    targets: Iterable[str] = (),
) -> ImageContent:
    """Read an image in files, on the engine or in a registry. See `found`."""
    with step(f"read {name}", on_event) as running:
        of_registry = partial(
            images.of_registry, on_layer=partial(_log_layer, running), on_bytes=running.progress
        )
        return found(name, images.of_archive, engine, of_registry, default, targets)


def found(
    name: str,
    of_archive: Callable[[Path], T],
    engine: Callable[[], Callable[[str], T | None]],
    of_registry: Callable[[registry.Reference], T],
    default: str | None = None,
    targets: Iterable[str] = (),
) -> T:
    """Read an image by what its name leads to: files, this machine's engine, or a registry.

    engine: connects, and returns what reads there. default: the repository of a name that is a tag
    alone; None for none. targets: names that a person may have meant. Raises InputError,
    OutsideError.
    """
    if Path(name).exists():
        return of_archive(Path(name))
    if _FILE.search(name):
        raise InputError(f"{name}: no such file or folder", "correct the path")
    in_registry = "/" in name or default
    read: Callable[[str], T | None] | None = None
    try:
        read = engine()
    except OutsideError as error:  # to read from a registry needs no engine
        if not in_registry:
            raise OutsideError(
                f"{name} may be an image, but no engine runs that could hold it: {error.message}",
                f"{error.fix}; or write HOST/REPOSITORY:TAG for an image in a registry",
            ) from error
    if read and (there := read(name)):
        return there
    if in_registry:
        return of_registry(registry.parse(name if "/" in name else f"{default}:{name}"))
    what, others = "", ""
    if targets:
        what, others = "target, no ", f"targets are {', '.join(targets)}; "
    raise InputError(
        f"{name} is no {what}file or folder, and no image on the engine",
        f"{others}write HOST/REPOSITORY:TAG for an image in a registry",
    )


def _log_layer(running: RunningStep, layer: registry.Descriptor, known: bool) -> None:
    size = "read before" if known else f"{layer.size / 1e6:,.1f} MB"
    running.log(f"layer {layer.digest[7:19]}: {size}")


def on_machine() -> ReadOnEngine:
    """Return what reads the images of the engine that `docker` on this machine talks to. Raises
    OutsideError where none answers."""
    from docker.errors import ImageNotFound

    host, _ = docker_sdk.machine_host()
    with docker_sdk.answering(host):
        docker_sdk.client(host, os.environ, _ANSWER_SECONDS).ping()
    client = docker_sdk.client(host, os.environ, _API_SECONDS)

    def read(name: str) -> ImageContent | None:
        with refusals(name), contextlib.suppress(ImageNotFound):
            return of_engine(client, str(client.images.get(name).id))
        return None

    return read


def of_engine(
    client: docker.DockerClient,
    name: str,
    files: Mapping[str, Path] | None = None,
    store: Sequence[Path] = (),
) -> ImageContent:
    """Read an image on an engine, by reference or id.

    files: the files of layers that this machine has, by diff id. store: the folders in which the
    engine may keep blobs; a layer that is found there is read alone, because an engine gives out
    whole images only. Raises OutsideError.
    """

    def save() -> Blobs:
        stream = client.api.get_image(str(image.id), chunk_size=1 << 20)
        return images.archived(tars.stream(stream))

    with refusals(name):
        image = client.images.get(name)
        diff_ids = image.attrs["RootFS"].get("Layers") or ()
        configuration = manifests.of_engine(image.attrs.get("Config"), image.history())
        manifest = (image.attrs.get("Descriptor") or {}).get("digest") or str(image.id)
        stored = next(filter(None, (_stored(each, manifest, diff_ids) for each in store)), {})
        try:
            content = images.of_saved(diff_ids, save, {**stored, **(files or {})})
            return replace(content, configuration=configuration, image_id=str(image.id))
        except tars.BROKEN as error:
            raise OutsideError(
                f"{name}: the engine gives out an archive that cannot be read: {error}",
                "pull or build the image again",
            ) from error


def _stored(store: Path, digest: str, diff_ids: Sequence[str]) -> dict[str, Path]:
    """Return the files of an image's layers in containerd's content store, by diff id; none where
    it has no manifest of this digest, or may not be read. A file's content is its diff id's
    business: of_saved takes no other."""

    def get(digest: str) -> Manifest | None:
        return Manifest((store / digest.removeprefix("sha256:")).read_bytes(), OCI_MANIFEST)

    try:
        layers = images.find_image(digest, get, digest).layers
        found = zip(diff_ids, layers, strict=True)
        paths = {diff_id: store / layer.digest.removeprefix("sha256:") for diff_id, layer in found}
        return {diff_id: path for diff_id, path in paths.items() if os.access(path, os.R_OK)}
    except (OSError, ValueError, FactoryError):
        return {}
