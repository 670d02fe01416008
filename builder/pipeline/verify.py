"""An image in a registry and the receipt beside it: put it there, and check the image against it.

The receipt is an OCI artifact that refers to the image's manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.pipeline import repository
from builder.prove import receipts
from builder.prove.receipts import Receipt, Validity
from builder.prove.suite import Suite
from builder.registry import Descriptor, Manifest, Reference, Registry, referrers
from builder.tensorflow import suite as suites
from builder.trust import policy
from builder.trust.policy import ListedReceipt, Policy

RECEIPT_TYPE: Final = "application/vnd.training-image-factory.receipt.v1+json"
ACCELERATOR: Final = "training-image-factory.accelerator"
"""The label of an image that names the accelerator that it was made for."""

_CREATED: Final = "org.opencontainers.image.created"

Holds = Callable[[Receipt, Sequence[str], Mapping[str, str]], Validity]
"""Whether a receipt proves the image with these names (digest, id) and labels."""


@dataclass(frozen=True)
class Verification:
    """An image in a registry that its receipt proves.

    image_id: digest of its config. signer: the key that signed the receipt; "" where nobody asked.
    """

    reference: str
    digest: str
    image_id: str
    labels: Mapping[str, str]
    receipt: Receipt
    receipt_digest: str
    signer: str = ""


def verify(
    reference: str,
    settings: Settings,
    *,
    suite: Suite | None = None,
    on_event: OnEvent = ignore,
) -> Verification:
    """Check an image in a registry against the receipt that lies beside it.

    reference: a whole one, or a tag or digest of the project's own repository. suite: the suite of
    checks that the receipt must be of; by default the one that the image's own label names. Raises
    CheckFailed where the image is not proven, OutsideError where it is not there.
    """
    where = repository.resolve(reference, settings)
    trusted = policy.of(settings.trust)
    with repository.opened(where, on_event, f"verify {where}") as there:
        return proven(there, where, holds_of(suite), trusted)[0]


def attach(there: Registry, where: Reference, image: Manifest, receipt: Receipt) -> str:
    """Put the receipt beside the image, unless it is there; the digest of its manifest."""
    data = receipts.dump(receipt)
    made = registry.artifact(
        RECEIPT_TYPE,
        registry.Descriptor.of(RECEIPT_TYPE, data),
        {
            _CREATED: receipt.made_at,
            "training-image-factory.target": receipt.target,
        },
        image.descriptor,
    )
    listed = there.referrers(where.repository, image.digest, RECEIPT_TYPE)
    if all(one.digest != made.digest for one in listed):
        there.put_blob(where.repository, registry.EMPTY)
        there.put_blob(where.repository, data)
        referrers.attach(there, where.repository, made)
    return made.digest


def holds_of(suite: Suite | None = None) -> Holds:
    """Judges a receipt by this suite; by default, by the suite that the image's label names."""

    def holds(receipt: Receipt, names: Sequence[str], labels: Mapping[str, str]) -> Validity:
        return (suite or suites.of_image(labels)).holds(receipt, names)

    return holds


def of_any_version(receipt: Receipt, names: Sequence[str], _: Mapping[str, str]) -> Validity:
    """Judges a receipt by the checks that it holds, whatever their version."""
    return receipts.valid_for(receipt, names, {})


def proven(
    there: Registry, where: Reference, holds: Holds, trusted: Policy | None
) -> tuple[Verification, Manifest]:
    """The image at `where` with the newest receipt that proves it, and its manifest.

    trusted: where there is one, only receipts that one of its keys signed count. Raises what
    `verify` raises.
    """
    image = there.manifest(where.repository, where.target)
    if image is None:
        raise OutsideError(
            f"{where}: {where.host} has no such image", "correct the reference, or push it first"
        )
    if image.is_index:
        raise CheckFailed(
            f"{where} is a list of images ({image.media_type}), and the factory proves single ones",
            "name one image by its digest",
        )
    labels = there.labels(where.repository, image)
    listed = (
        policy.receipts(there, where, image.digest, trusted)
        if trusted
        else _unsigned(there, where, image.digest)
    )
    problems = []
    for one in listed:
        problem = one.problem
        if one.receipt is not None:
            problem = _problem(one.receipt, image, labels, holds)
            if not problem:
                verification = Verification(
                    reference=str(where.at(image.digest)),
                    digest=image.digest,
                    image_id=image.config.digest,
                    labels=labels,
                    receipt=one.receipt,
                    receipt_digest=one.digest,
                    signer=one.signer,
                )
                return verification, image
        problems.append(problem)
    reason = problems[0] if problems else "no receipt lies beside it"  # that of the newest
    sign = " --key KEY" if trusted else ""
    raise CheckFailed(
        f"{where} ({image.digest}) is not proven: {reason}",
        f"do not use it; prove and push it again: builder smoke TARGET, builder push TARGET{sign}",
    )


def _unsigned(there: Registry, where: Reference, image: str) -> Iterator[ListedReceipt]:
    """The receipts beside the image with this digest, whoever wrote them, the newest first."""
    listed = there.referrers(where.repository, image, RECEIPT_TYPE)
    for one in sorted(listed, key=_created, reverse=True):
        receipt, problem = _receipt(there, where, one, image)
        yield ListedReceipt(receipt, problem, one.digest)


def _receipt(
    there: Registry, where: Reference, one: Descriptor, image: str
) -> tuple[Receipt | None, str]:
    """A receipt beside an image, or why it cannot be read."""
    made = there.manifest(where.repository, one.digest)
    if made is None:
        return None, f"its receipt {one.digest} is gone"
    if made.subject != image:
        return None, f"the receipt that lies beside it is for {made.subject}"
    if [layer.media_type for layer in made.layers] != [RECEIPT_TYPE]:
        return None, f"what lies beside it as {RECEIPT_TYPE} holds no receipt"
    data = there.blob(where.repository, made.layers[0])
    try:
        return receipts.parse(data, f"receipt {one.digest}"), ""
    except InputError as error:
        return None, error.message


def _problem(receipt: Receipt, image: Manifest, labels: Mapping[str, str], holds: Holds) -> str:
    """Why a receipt does not prove an image; "" where it does."""
    try:
        held = holds(receipt, [image.digest if receipt.digest else image.config.digest], labels)
    except InputError as error:  # an accelerator that this factory does not know
        return error.message
    if not held:
        return held.reason
    said = labels.get(ACCELERATOR, receipt.accelerator)
    if said != receipt.accelerator:
        return f"its label says {said}, its receipt {receipt.accelerator}"
    return ""


def _created(receipt: Descriptor) -> str:
    return receipt.annotations.get(_CREATED, "")
