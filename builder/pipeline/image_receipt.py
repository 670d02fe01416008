"""The receipt of an image that anybody made: it lies beside the image in its registry, as ours do.

Its suite is SUITE, the least of all. No image needs this suite by its label, so such a receipt
counts only where somebody asks for it (`builder verify --suite image`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from builder import __version__, registry
from builder.core.errors import InputError
from builder.core.events import OnEvent
from builder.core.settings import Settings
from builder.pipeline import repository, signing, verify
from builder.prove import receipts
from builder.prove.any_image import CHECKS, Result
from builder.prove.audit import Gpu
from builder.prove.receipts import CheckResult, Receipt, Validity
from builder.reading.images import find_image
from builder.registry import Manifest, Reference, Registry

SUITE: Final = "image"
"""The suite of an image that was read, and perhaps started."""
VERSIONS: Final = dict.fromkeys(CHECKS, 1) | dict.fromkeys(
    ("environment", "permissions", "certificates"), 2
)
"""The checks that a receipt has to hold. Raise a version when its check begins to ask for more."""


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


def of_results(
    image: Reference, manifest: Manifest, gpu: Gpu | None, results: Sequence[Result]
) -> Receipt:
    """Return the receipt of what was asked of an image now."""
    checks = tuple(
        CheckResult(
            name=result.check,
            version=VERSIONS.get(result.check, 1),
            passed=result.status != "refused",
            seconds=0,
            problems=result.problems,
            seen={
                "status": result.status,
                "note": result.note,
                "findings": [finding.message for finding in result.findings],
            },
        )
        for result in results
    )
    return Receipt(
        target=image.repository,
        accelerator=gpu.name if gpu else "CPU",
        reference=str(image),
        digest=manifest.digest,
        image_id=manifest.config.digest,
        inputs="",
        made_by=__version__,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device="CPU",
        suite=SUITE,
        checks=checks,
    )


def push(image: Reference, manifest: Manifest, receipt: Receipt, settings: Settings) -> str:
    """Attach a receipt to its image, and sign it where the settings name a key; say so."""
    key = signing.key_of(settings.trust)
    with Registry(image.host) as client:
        attached = verify.attach(client, image, manifest, receipt)
        signed = signing.attest(client, image, manifest, receipt, None, settings.trust, key)
    return f"{image}: its receipt {attached} is attached{' and signed' if signed else ''}"


def judge(receipt: Receipt, names: Sequence[str], _: Mapping[str, str]) -> Validity:
    """Tell whether a receipt of SUITE proves an image. A receipt of a suite that asks for more is
    judged by that suite's own rule (verify.judge_of)."""
    if receipt.suite != SUITE:
        return Validity(False, f"the receipt is of the suite {receipt.suite}, not {SUITE}")
    return receipts.valid_for(receipt, names, VERSIONS)
