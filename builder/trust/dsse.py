"""In-toto statements about an image, and the DSSE envelopes that carry them in a Sigstore bundle.

Sources: in-toto/attestation spec v1; secure-systems-lab/dsse protocol.md; sigstore/protobuf-specs
sigstore_bundle.proto v0.3. cosign 3 reads and writes the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import CheckFailed

BUNDLE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""The media type of a bundle, and the artifact type of a manifest that holds one."""
PAYLOAD: Final = "application/vnd.in-toto+json"
"""The type of a payload that is an in-toto statement."""

SIGNATURE: Final = "https://sigstore.dev/cosign/sign/v1"
"""Predicate type of a signature of the image itself, which says nothing more (`cosign sign`)."""
RECEIPT: Final = "urn:training-image-factory:receipt:v1"
"""Predicate type of a receipt: which checks the image passed (builder/prove/receipts.py)."""
SBOM: Final = "https://cyclonedx.org/bom"
"""Predicate type of a bill of materials (builder/trust/sbom.py)."""
LAYERS: Final = "urn:training-image-factory:layers:v1"
"""Predicate type of lines of images/layers.lock that were made again
(builder/trust/rebuilders.py)."""
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
"""Predicate type of what an image was built from (builder/trust/provenance.py)."""

SIGNATURES: Final = 20
"""How many signatures of a bundle are looked at: verifying one takes time."""

_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_STATEMENTS: Final = (_STATEMENT, "https://in-toto.io/Statement/v0.1")


@dataclass(frozen=True)
class Statement:
    """An in-toto statement about one image."""

    subject: str
    """The digest of the image's manifest."""
    predicate_type: str
    """A URI."""
    predicate: Mapping[str, Any]
    """A JSON object."""

    @property
    def payload(self) -> bytes:
        """The statement as JSON; the same statement is the same bytes.

        The subject has an empty name, because sigstore-python asks for one.
        """
        algorithm, _, value = self.subject.partition(":")
        content = {
            "_type": _STATEMENT,
            "subject": [{"name": "", "digest": {algorithm: value}}],
            "predicateType": self.predicate_type,
            "predicate": self.predicate,
        }
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()


def statement(payload: bytes) -> Statement:
    """Parse the payload of an envelope. Raises CheckFailed for any other JSON."""
    try:
        content = json.loads(payload)
        (subject,) = content["subject"]
        digest = f"sha256:{subject['digest']['sha256']}"
        predicate_type, predicate = content["predicateType"], content["predicate"]
        if content["_type"] not in _STATEMENTS or not isinstance(predicate, dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckFailed("its payload is no in-toto statement about one image") from None
    return Statement(digest, predicate_type, predicate)


def signed_bytes(payload: bytes) -> bytes:
    """Return what a signature covers: DSSE's pre-authentication encoding of a payload."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def bundle(payload: bytes, signature: bytes, hint: str) -> bytes:
    """Return the bundle of a payload that a key signed. hint: names the key, as cosign does."""
    content = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode()}],
        },
    }
    return json.dumps(content, separators=(",", ":")).encode()


def envelope(bundle: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the payload in a bundle, and its first signatures, which nobody has checked yet.

    Raises CheckFailed for other bytes.
    """
    try:
        content = json.loads(bundle)["dsseEnvelope"]
        if content["payloadType"] != PAYLOAD:
            raise ValueError
        payload = base64.b64decode(content["payload"], validate=True)
        signatures = [
            base64.b64decode(each["sig"], validate=True)
            for each in content["signatures"][:SIGNATURES]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise not_a_bundle() from None
    return payload, tuple(signatures)


def not_a_bundle() -> CheckFailed:
    return CheckFailed("it is no bundle with an in-toto statement")
