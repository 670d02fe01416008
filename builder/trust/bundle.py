"""A statement about an image, sealed: an in-toto statement, in a DSSE envelope, in a bundle.

Sources: in-toto/attestation spec v1, and sigstore/protobuf-specs sigstore_bundle.proto v0.3. cosign
3 writes and reads the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import CheckFailed
from builder.trust import envelope
from builder.trust.identities import OidcIdentity
from builder.trust.keyless import KeylessSigner
from builder.trust.keys import KeySigner, PublicKey

Signer = KeySigner | KeylessSigner
Trusted = PublicKey | OidcIdentity
"""Whose word counts."""

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""Of a bundle; also the artifact type of a manifest that holds one."""

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
        """The in-toto statement; the same statement is the same bytes.

        Its subject has an empty name, because Sigstore's library asks for one.
        """
        algorithm, _, value = self.digest.partition(":")
        content = {
            "_type": _STATEMENT,
            "subject": [{"name": "", "digest": {algorithm: value}}],
            "predicateType": self.kind,
            "predicate": self.predicate,
        }
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()


def seal(statement: Statement, signer: Signer) -> bytes:
    """The bundle of a statement that this signer signs. Raises OutsideError of its services."""
    payload = statement.payload
    if isinstance(signer, KeylessSigner):
        return signer.sealed(payload)
    content = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": signer.public.hint}},
        "dsseEnvelope": envelope.content(payload, signer.sign(envelope.signed(payload))),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def unseal(data: bytes, trusted: Sequence[Trusted]) -> tuple[Statement, Trusted]:
    """The statement in a bundle, and whoever of `trusted` signed it.

    Raises CheckFailed where none of them did, or where these bytes are no such bundle.
    """
    refused = CheckFailed("it is signed by none of the keys that are trusted")
    for one in trusted:
        try:
            payload = one.opened(data)
        except CheckFailed as error:
            refused = error
        else:
            return _statement(payload), one
    raise refused


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
