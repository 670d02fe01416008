"""A statement about an image, sealed: an in-toto statement, in a DSSE envelope, in a bundle.

Sources: in-toto/attestation spec v1, secure-systems-lab/dsse protocol.md, and
sigstore/protobuf-specs sigstore_bundle.proto v0.3. cosign 3 writes and reads the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import CheckFailed
from builder.trust.keys import PublicKey, Signer

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""Of a bundle; also the artifact type of a manifest that holds one."""

_PAYLOAD: Final = "application/vnd.in-toto+json"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_STATEMENTS: Final = (_STATEMENT, "https://in-toto.io/Statement/v0.1")


@dataclass(frozen=True)
class Statement:
    """What someone says about an image.

    digest: of the image's manifest. kind: the predicate's type, a URI. predicate: JSON.
    """

    digest: str
    kind: str
    predicate: Mapping[str, Any]

    @property
    def payload(self) -> bytes:
        """The in-toto statement; the same statement is the same bytes."""
        algorithm, _, value = self.digest.partition(":")
        content = {
            "_type": _STATEMENT,
            "subject": [{"digest": {algorithm: value}}],
            "predicateType": self.kind,
            "predicate": self.predicate,
        }
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()


def seal(statement: Statement, signer: Signer) -> bytes:
    """The bundle of a statement that this key signs."""
    payload = statement.payload
    content = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": signer.public.hint}},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signer.sign(_signed(payload))).decode()}],
        },
    }
    return json.dumps(content, separators=(",", ":")).encode()


def unseal(data: bytes, keys: Sequence[PublicKey]) -> tuple[Statement, PublicKey]:
    """The statement in a bundle, and the key of `keys` that signed it.

    Raises CheckFailed where none of them did, or where these bytes are no such bundle.
    """
    payload, signatures = _envelope(data)
    signed = _signed(payload)
    for key in keys:
        if any(key.accepts(signature, signed) for signature in signatures):
            return _statement(payload), key
    raise CheckFailed("it is signed by none of the keys that are trusted")


def _signed(payload: bytes) -> bytes:
    """What the signature is over: DSSE's pre-authentication encoding."""
    kind = _PAYLOAD.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _envelope(data: bytes) -> tuple[bytes, list[bytes]]:
    """The payload and the signatures of a bundle. Raises CheckFailed for other bytes."""
    try:
        envelope = json.loads(data)["dsseEnvelope"]
        if envelope["payloadType"] != _PAYLOAD:
            raise ValueError
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckFailed("it is no bundle with an in-toto statement") from None
    return payload, signatures


def _statement(payload: bytes) -> Statement:
    """The statement in a payload. Raises CheckFailed for one of another shape."""
    try:
        content = json.loads(payload)
        (subject,) = content["subject"]
        digest, kind, predicate = (
            f"sha256:{subject['digest']['sha256']}",
            content["predicateType"],
            content["predicate"],
        )
        if content["_type"] not in _STATEMENTS or not isinstance(predicate, dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckFailed("its payload is no in-toto statement about one image") from None
    return Statement(digest, kind, predicate)
