"""What the factory says about an image: each statement's type, and what it holds."""

from __future__ import annotations

from typing import Final

from builder.core.errors import CheckFailed, InputError
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.trust.bundle import Statement

SIGNATURE: Final = "https://sigstore.dev/cosign/sign/v1"
"""A signature of the image itself, which says nothing more (cosign 3, `cosign sign`)."""
RECEIPT: Final = "urn:training-image-factory:receipt:v1"
"""A receipt: which checks the image passed, and when (builder/prove/receipts.py)."""


def signature(digest: str) -> Statement:
    """The statement that `cosign verify` asks for."""
    return Statement(digest, SIGNATURE, {})


def of_receipt(digest: str, receipt: Receipt) -> Statement:
    """A receipt as a statement about the image with this digest."""
    return Statement(digest, RECEIPT, receipt.model_dump(mode="json"))


def receipt_in(statement: Statement) -> Receipt:
    """The receipt that a statement holds. Raises CheckFailed for one of another shape."""
    try:
        return receipts.of_json(statement.predicate, "the signed receipt")
    except InputError as error:
        raise CheckFailed(error.message, error.fix) from None
