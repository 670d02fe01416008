"""An image to another repository, with the receipts and statements that lie beside it.

Each blob keeps its digest, and so does the image. Of two repositories in one registry, the registry
takes a blob over itself if it can; otherwise the blob passes through a temporary file.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder.core.events import RunningStep
from builder.core.files import cache_home
from builder.pipeline.verify import RECEIPT_TYPE
from builder.registry import Descriptor, Manifest, Reference, Registry, referrers
from builder.trust import bundle, tagged


def copy(
    source: Registry,
    where: Reference,
    target: Registry,
    to: Reference,
    image: Manifest,
    running: RunningStep,
) -> int:
    """Put an image and all that lies beside it into another repository; the bytes that were sent.

    It goes under a tag that names its content: no tag that people follow moves. The statements go
    as they are, whoever signed them.
    """
    sent = sum(
        _blob(source, where, target, to, blob, running) for blob in (image.config, *image.layers)
    )
    tag = f"image-{image.digest.removeprefix('sha256:')[:16]}"
    target.put_manifest(to.repository, tag, image)
    for kind in (RECEIPT_TYPE, bundle.MEDIA_TYPE):
        _beside(source, where, target, to, image, kind)
    tagged.copy(source, where, target, to, image)
    return sent


def _beside(
    source: Registry,
    where: Reference,
    target: Registry,
    to: Reference,
    image: Manifest,
    kind: str,
) -> None:
    """Copy the artifacts of a kind that refer to the image, unless they are there."""
    known = {one.digest for one in target.referrers(to.repository, image.digest, kind)}
    listed = source.referrers(where.repository, image.digest, kind)
    found = [source.manifest(where.repository, one.digest) for one in listed]
    missing = [
        one for one in found if one and one.subject == image.digest and one.digest not in known
    ]
    for one in missing:
        for blob in (one.config, *one.layers):
            target.put_blob(to.repository, source.blob(where.repository, blob))
    if missing:
        referrers.attach(target, to.repository, *missing)


def _blob(
    source: Registry,
    where: Reference,
    target: Registry,
    to: Reference,
    blob: Descriptor,
    running: RunningStep,
) -> int:
    """Bring one blob, unless it is there; the bytes that were sent."""
    with contextlib.ExitStack() as kept:

        def download() -> Path:
            return kept.enter_context(_downloaded(source, where, blob, running))

        moved = target.put_file(
            to.repository,
            blob,
            download,
            lambda count: running.progress(count, blob.size),
            where.repository if source.host == target.host else None,
        )
    return blob.size if moved else 0


@contextlib.contextmanager
def _downloaded(
    source: Registry, where: Reference, blob: Descriptor, running: RunningStep
) -> Iterator[Path]:
    """A file with a blob; it is gone after the block."""
    folder = cache_home()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".copy.", dir=folder) as file:
        source.fetch(where.repository, blob, file, lambda count: running.progress(count, blob.size))
        file.flush()
        yield Path(file.name)
