"""The receipt of an image that anybody made: it lies beside the image in its registry."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from builder import registry
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent
from builder.core.settings import Settings
from builder.pipeline import repository, signing, verify
from builder.prove import receipts, suites
from builder.prove.audit import Gpu
from builder.prove.receipts import CheckResult, Spent
from builder.reading.images import find_image
from builder.registry import Manifest, Reference, Registry


def image_at(name: str, on_event: OnEvent) -> tuple[Reference, Manifest]:
    """Return the image for linux/amd64 that a name leads to, by its digest, so that what is read
    is what the receipt is about. Raises InputError for a name without a registry, OutsideError."""
    reference = registry.parse(name) if "/" in name else None
    if reference is None:
        raise InputError(f"{name}: is in no registry", "name it as HOST/REPOSITORY:TAG")
    with repository.opened(reference, on_event, f"find {name}") as client:
        get = functools.partial(client.manifest, reference.repository)
        manifest = find_image(reference, get, reference.target)
    return reference.at(manifest.digest), manifest


def push(
    image: Reference,
    manifest: Manifest,
    gpu: Gpu | None,
    checks: Sequence[CheckResult],
    spent: Sequence[Spent],
    settings: Settings,
) -> str:
    """Attach the receipt of what was asked of an image now, and sign it where the settings name a
    key; say so. gpu: what it was judged for, None for no GPU. spent: what that took. Raises
    CheckFailed where a check could not look into all of it: nothing was proven then."""
    receipt = receipts.of(
        suites.IMAGE.name,
        checks,
        target=image.repository,
        accelerator=gpu.name if gpu else "CPU",
        reference=str(image),
        digest=manifest.digest,
        image_id=manifest.config.digest,
        inputs="",
        ledger=tuple(spent),
    )
    validity = suites.IMAGE.holds(receipt, manifest.digest)
    if not validity:
        fix = 'see docs/any-image.md, "How the loader is followed"'
        raise CheckFailed(f"{image}: no receipt is attached: {validity.reason}", fix)
    key = signing.key_of(settings.trust)
    with Registry(image.host) as client:
        attached = verify.attach(client, image, manifest, receipt)
        signed = signing.attest(client, image, manifest, receipt, None, settings.trust, key)
    return f"{image}: its receipt {attached} is attached{' and signed' if signed else ''}"
