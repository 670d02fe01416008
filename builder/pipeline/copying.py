"""An image copied to another repository by digest, with its receipts and attestations."""

from __future__ import annotations

import contextlib
from pathlib import Path

from builder.core.events import RunningStep
from builder.image import content_store
from builder.pipeline.verify import RECEIPT_TYPE
from builder.registry import Descriptor, Manifest, Registry, referrers
from builder.trust import dsse


def copy(
    source: Registry,
    repository: str,
    target: Registry,
    to: str,
    image: Manifest,
    running: RunningStep,
) -> int:
    """Copy an image and its referrers from `repository` to the repository `to`; return bytes sent.

    The image goes under a tag that names its content, so that no tag that people follow moves. The
    attestations go as they are, whoever signed them. Of two repositories in one registry, the
    registry takes a blob over itself if it can; otherwise it passes through a file in the cache.
    """
    sent = sum(
        _copy_blob(source, repository, target, to, blob, running)
        for blob in (image.config, *image.layers)
    )
    target.put_manifest(to, f"image-{image.digest.removeprefix('sha256:')[:16]}", image)
    for artifact_type in (RECEIPT_TYPE, dsse.BUNDLE):
        copied = {each.digest for each in target.referrers(to, image.digest, artifact_type)}
        listed = source.referrers(repository, image.digest, artifact_type)
        missing = [each.digest for each in listed if each.digest not in copied]
        manifests = [source.manifest(repository, digest) for digest in missing]
        artifacts = [each for each in manifests if each and each.subject == image.digest]
        for artifact in artifacts:
            for blob in (artifact.config, *artifact.layers):
                target.put_blob(to, source.blob(repository, blob))
        if artifacts:
            referrers.attach(target, to, *artifacts)
    return sent


def _copy_blob(
    source: Registry,
    repository: str,
    target: Registry,
    to: str,
    blob: Descriptor,
    running: RunningStep,
) -> int:
    """Copy a blob, unless it is there; return the bytes that were sent."""

    def progress(count: int) -> None:
        running.progress(count, blob.size)

    with contextlib.ExitStack() as stack:

        def download() -> Path:
            store = content_store.of_this_machine()
            store.sweep()
            file = stack.enter_context(store.writing())
            source.fetch(repository, blob, file, progress)
            file.flush()
            return Path(file.name)

        also_in = repository if source.host == target.host else None
        uploaded = target.put_file(to, blob, download, progress, also_in)
    return blob.size if uploaded else 0
