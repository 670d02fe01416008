"""Training images on an engine, each on its base."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from builder.bases import loading, store
from builder.bases.assembled import AssembledImage
from builder.bases.layer import Compression
from builder.core.events import OnEvent, ignore, prefixed
from builder.core.network import discover
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import BuildRequest, BuiltImage, Engine
from builder.lock import python
from builder.pipeline import append, bases, plan, records
from builder.pipeline.bases import Base
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord


def build(
    root: Path,
    settings: Settings,
    engine: Engine,
    prepared: Sequence[Prepared],
    *,
    no_cache: bool = False,
    on_event: OnEvent = ignore,
) -> tuple[ImageRecord, ...]:
    """Build the images of these targets on the engine; a base that several share is made once.

    no_cache: make every layer again. Raises OutsideError, CheckFailed.
    """
    made = bases.on_engine(root, settings, engine, prepared, no_cache=no_cache, on_event=on_event)
    return tuple(
        _image(root, engine, item, made.get(item.plan.base.hash) if item.plan.base else None,
               no_cache, prefixed(item.target, on_event))
        for item in prepared
    )  # fmt: skip


def _image(
    root: Path,
    engine: Engine,
    item: Prepared,
    base: Base | None,
    no_cache: bool,
    on_event: OnEvent,
) -> ImageRecord:
    """The training image of a target on its base, and its record."""
    began = time.monotonic()
    name = f"{LOCAL_REPOSITORY}:{item.target}"
    built = (base and _loaded(engine, item, base.image, name, on_event)) or with_buildkit(
        engine, item.plan.image, name, "engine", no_cache, on_event
    )
    pins = sorted(item.lock.packages.values(), key=lambda pin: -(pin.bytes or 0))
    record = ImageRecord(
        target=item.target,
        reference=name,
        digest=built.digest,
        image_id=built.image_id,
        inputs=item.plan.inputs_hash,
        base=base.reference if base else item.spec.base,
        base_digest=base.image.digest if base else None,
        base_origin=base.origin if base else "published",
        root=item.lock.root.origin if item.lock.root else item.spec.base,
        compressed_bytes=built.compressed_bytes,
        unpacked_bytes=built.unpacked_bytes,
        budget_bytes=item.spec.size_budget,
        packages=tuple((f"{pin.name} {pin.version}", pin.bytes or 0) for pin in pins[:5]),
        phases={**(base.phases if base else {}), "build image": time.monotonic() - began},
        engine=f"{engine.origin} {engine.version}",
        tensorflow=item.stack.tensorflow,
        prune=item.stack.prune_mode,
    )
    records.write(root, record)
    return record


def _loaded(
    engine: Engine, item: Prepared, base: AssembledImage, name: str, on_event: OnEvent
) -> BuiltImage | None:
    """The assembled training image on the engine; None where its Dockerfile does more than copy."""
    image = assembled(item, base)
    if image is None:
        return None
    loaded = loading.load(engine, image, store.of_this_machine().path, name, on_event)
    size = image.compressed_bytes
    return BuiltImage(name, image.digest, loaded.image_id, size, loaded.unpacked_bytes)


def assembled(item: Prepared, base: AssembledImage) -> AssembledImage | None:
    """The training image, assembled on its base; None where its Dockerfile does more than copy.

    It is kept by its digest, for a push.
    """
    copied = append.read(item.plan.image.dockerfile)
    if copied is None:
        return None
    kept = store.of_this_machine()
    compression = Compression.of(item.spec.compression)
    image = append.image(kept, base, copied, item.plan.image.files, compression)
    kept.keep_image(image.digest.removeprefix("sha256:"), image)
    return image


def with_buildkit(
    engine: Engine,
    image: plan.ImagePlan,
    reference: str,
    destination: Literal["engine", "registry"],
    no_cache: bool,
    on_event: OnEvent,
) -> BuiltImage:
    """The training image on its base, under `reference`, as its Dockerfile says."""
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        dockerfile = plan.stage(image, Path(scratch))
        return engine.build(
            BuildRequest(
                dockerfile=dockerfile,
                context=dockerfile.parent,
                tags=(reference,),
                contexts={"uv": str(Path(python.uv_program()).parent)} if image.installs else {},
                build_args={"REPOSITORY": reference.rsplit(":", 1)[0]},
                secrets=discover().secrets() if image.installs else {},
                destination=destination,
                no_cache=no_cache,
            ),
            on_event,
        )
