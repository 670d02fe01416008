"""What the factory says about an image: each statement's type, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builder.core.errors import CheckFailed, InputError
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.trust import provenance, vex
from builder.trust.bundle import Statement
from builder.trust.provenance import HowMade

SIGNATURE: Final = "https://sigstore.dev/cosign/sign/v1"
"""A signature of the image itself, which says nothing more (cosign 3, `cosign sign`)."""
RECEIPT: Final = "urn:training-image-factory:receipt:v1"
"""A receipt: which checks the image passed, and when (builder/prove/receipts.py)."""
BILL: Final = "https://cyclonedx.org/bom"
"""A bill of materials (builder/trust/sbom.py)."""


def signature(digest: str) -> Statement:
    """The statement that `cosign verify` asks for."""
    return Statement(digest, SIGNATURE, {})


def of_receipt(digest: str, receipt: Receipt) -> Statement:
    """A receipt as a statement about the image with this digest."""
    return Statement(digest, RECEIPT, receipt.model_dump(mode="json"))


def of_bill(digest: str, bill: Mapping[str, Any]) -> Statement:
    """A bill of materials as a statement about the image with this digest."""
    return Statement(digest, BILL, bill)


def of_provenance(digest: str, made: HowMade, environ: Mapping[str, str]) -> Statement:
    """How the image with this digest was made, as a statement. environ: tells where."""
    return Statement(digest, provenance.KIND, provenance.predicate(made, environ))


def of_vex(digest: str, document: Mapping[str, Any]) -> Statement:
    """Which advisories are accepted, as a statement about the image with this digest."""
    return Statement(digest, vex.KIND, document)


def receipt_in(statement: Statement) -> Receipt:
    """The receipt that a statement holds. Raises CheckFailed for one of another shape."""
    try:
        return receipts.of_json(statement.predicate, "the signed receipt")
    except InputError as error:
        raise CheckFailed(error.message, error.fix) from None
