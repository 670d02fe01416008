"""What a push signs about an image."""

from __future__ import annotations

from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry
from builder.trust import beside, statements
from builder.trust.keys import Signer


def sign(
    there: Registry, where: Reference, image: Manifest, receipt: Receipt, signer: Signer
) -> tuple[str, ...]:
    """Sign what does not lie beside the image yet; the digests of the new manifests."""
    said = (
        statements.signature(image.digest),
        statements.of_receipt(image.digest, receipt),
    )
    return beside.attach(there, where, image, said, signer, receipt.made_at)
