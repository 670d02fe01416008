"""A signing key in Google Cloud KMS: the private half never leaves the service.

Source: Cloud KMS v1, projects.locations.keyRings.cryptoKeys.cryptoKeyVersions: `getPublicKey` and
`asymmetricSign`. The name of a key is cosign's (sigstore/sigstore, pkg/signature/kms/gcp).
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from builder.core import googleapi
from builder.core.errors import InputError, OutsideError
from builder.core.googleapi import Advice
from builder.core.trustsettings import CLOUD_KEY
from builder.trust import keys
from builder.trust.keys import PublicKey

ENDPOINT = "https://cloudkms.googleapis.com"
ALGORITHM: Final = "EC_SIGN_P256_SHA256"

_NAME: Final = re.compile(
    r"(projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+)"
    r"/(?:cryptoKeyVersions|versions)/(\d+)"
)
_EXAMPLE: Final = (
    f"write {CLOUD_KEY}projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1"
)
_ADVICE: Final = Advice(
    api="cloudkms.googleapis.com",
    forbidden="ask for roles/cloudkms.signerVerifier on the key",
    missing="correct the name, or create the key: gcloud kms keys create",
    quota="wait, or ask for more quota of Cloud KMS",
    refused=f"use a key for signing, of the algorithm {ALGORITHM}",
    precondition="look whether this version of the key is enabled",
    unreachable="look whether Cloud KMS can be reached from here, and run this again",
)
_TIMEOUT: Final = 60.0


@dataclass(frozen=True)
class KmsKey:
    """One version of a key. resource: its full name in Cloud KMS; source: as it was written."""

    resource: str
    source: str

    @classmethod
    def of(cls, text: str) -> KmsKey:
        """The key of a name that begins with gcpkms://. Raises InputError for another shape."""
        found = _NAME.fullmatch(text.removeprefix(CLOUD_KEY))
        if not found:
            raise InputError(f"{text}: this is no version of a key in Cloud KMS", _EXAMPLE)
        return cls(f"{found[1]}/cryptoKeyVersions/{found[2]}", text)

    @cached_property
    def public(self) -> PublicKey:
        """The public half, from the service. Raises OutsideError, InputError."""
        answer = self._ask("GET", f"{self.resource}/publicKey")
        if answer.get("algorithm") != ALGORITHM:
            raise InputError(
                f"{self.source}: its algorithm is {answer.get('algorithm')}", _ADVICE.refused
            )
        return keys.of_pem(str(answer.get("pem")), self.source)

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes, checked. Raises OutsideError."""
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer = self._ask(
            "POST", f"{self.resource}:asymmetricSign", {"digest": {"sha256": digest}}
        )
        try:
            signature = base64.b64decode(answer["signature"], validate=True)
        except (KeyError, TypeError, ValueError):
            signature = b""
        if not self.public.accepts(signature, data):
            raise OutsideError(
                f"{self.source}: the answer is no signature of this key", _ADVICE.unreachable
            )
        return signature

    def _ask(self, method: str, place: str, body: object = None) -> dict[str, Any]:
        from google.api_core import exceptions
        from google.auth.transport.requests import AuthorizedSession

        with googleapi.explaining(self.source, _ADVICE):
            session: Any = AuthorizedSession  # the library has no types
            session = session(googleapi.credentials()[0])
            answer = session.request(method, f"{ENDPOINT}/v1/{place}", json=body, timeout=_TIMEOUT)
            if answer.status_code != 200:
                raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
            found = answer.json()
        return found if isinstance(found, dict) else {}
