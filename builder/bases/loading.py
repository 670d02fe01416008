"""Putting an image into an engine: the archive is streamed, with only the layers that it lacks.

An engine does not tell which blobs it has. Its images name their layers before packing, which says
enough: what is left out on that ground is looked at again afterwards, and where the engine then
lacks something, everything is sent.

A pull from a registry on loopback is not faster: 2.3 GB in 20 layers (4.6 GB unpacked) took the
private engine 30 s to load and 35 s to pull on two busy cores, after the upload to that registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from builder.bases.archive import Archive, Blobs
from builder.bases.assembled import AssembledImage
from builder.bases.layer import Layer
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.engine import Engine, EngineImage, buildx
from builder.engine.docker import sdk_client
from builder.engine.progress import first_line

_SECONDS = 3600
"""How long the engine may unpack the layers without a word."""


def load(
    engine: Engine,
    image: AssembledImage,
    blobs: Blobs,
    name: str,
    on_event: OnEvent = ignore,
) -> EngineImage:
    """Put the image under `name` (REPOSITORY:TAG) into the engine, unless it has it.

    Its id is the digest of its manifest or of its configuration, whichever this engine uses; the
    engine checks every layer against the configuration. Raises OutsideError where the engine
    refuses the image or its disk is full.
    """
    with step(f"load {name}", on_event) as loading:
        found = present(engine, image, name)
        loading.cached, plain = found is not None, not reads_zstd(engine)
        layers = [layer.diff_id for layer in image.layers]
        if found is None and (known := _known(engine, layers, name.rpartition(":")[0])):
            _send(engine, Archive(image, blobs, name, known, plain), loading)
            found = present(engine, image, name)
        if found is None:
            said = _send(engine, Archive(image, blobs, name, plain=plain), loading)
            found = present(engine, image, name)
        if found is None:
            raise _refused(engine, name, said)
        return found


def present(engine: Engine, image: AssembledImage, name: str) -> EngineImage | None:
    """The image on the engine, whole and under this name; None where it has to be sent."""
    for asked in (name, image.digest, image.config_digest):
        found = engine.image(asked)
        if not (found and found.image_id in (image.digest, image.config_digest)):
            continue
        if engine.knows_content and found.compressed_bytes is None:
            continue  # some of its layers are missing
        if asked == name:
            return found
        repository, _, tag = name.rpartition(":")
        engine.client.api.tag(asked, repository, tag)
        return engine.image(name)
    return None


def reuses_layers(engine: Engine) -> bool:
    """Whether layers that this engine has may be left out of an archive."""
    return engine.knows_content or not engine.containerd_store


def lacked(engine: Engine, layers: Sequence[Layer | None], repository: str) -> tuple[bool, ...]:
    """Which of an image's layers, the lowest first, are sent to the engine. A layer that was not
    made yet is None, and is sent."""
    known = _known(engine, [one.diff_id if one else "" for one in layers], repository)
    return tuple(one is None or one.diff_id not in known for one in layers)


def _known(engine: Engine, diff_ids: Sequence[str], repository: str) -> frozenset[str]:
    """The layers of an image, by their digest before packing, that may be left out.

    The engine's images of the same repository are looked at. With Docker's graph drivers the lowest
    layers may be left out, as far as they are those of one such image. With the containerd store
    and with Podman they may be any. The containerd store before 28 cannot say afterwards whether an
    image is whole, and gets all.
    """
    if not reuses_layers(engine):
        return frozenset()
    api: Any = engine.client.api
    there = filter(None, (engine.image(one["Id"]) for one in api.images(repository)))
    stacks = [one.layers for one in there]
    if engine.containerd_store or engine.product == "Podman":
        return frozenset(diff_ids) & frozenset(one for stack in stacks for one in stack)
    return frozenset(diff_ids[: max((_shared(diff_ids, stack) for stack in stacks), default=0)])


def _shared(one: Iterable[str], other: Iterable[str]) -> int:
    """How many of the lowest layers are the same ones."""
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


def reads_zstd(engine: Engine) -> bool:
    """Whether this engine unpacks layers of zstd. Docker does since 23.0."""
    return engine.product != "Docker" or engine.release >= (23, 0)


def _send(engine: Engine, archive: Archive, loading: RunningStep) -> str:
    """Stream an archive to the engine. Returns what the engine said of an error, "" for none."""
    loading.detail = f"{archive.size / 1e6:.0f} MB of {archive.image.compressed_bytes / 1e6:.0f}"
    pieces = archive.stream(lambda count: loading.progress(count, archive.size))
    client: Any = sdk_client(engine.host, engine.environment, _SECONDS)
    said = ""
    try:
        for line in client.api.load_image(pieces, quiet=True):
            said = said or str(line.get("error") or "")
            if "unpacking image" in str(line.get("stream")):
                said = said or str(line["stream"]).strip()
    except OSError as error:  # of requests, whose errors of the API are among them
        return said or str(getattr(error, "explanation", None) or error)
    return said


def _refused(engine: Engine, name: str, said: str) -> OutsideError:
    if "no space left on device" in said.lower():
        return buildx.full(engine)
    return OutsideError(
        f"{name}: the engine did not take the image: {first_line(said) or 'it gives no reason'}",
        "see the engine's log; builder doctor shows its state",
    )
