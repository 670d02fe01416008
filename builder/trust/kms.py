"""A signing key in Google Cloud KMS; its private half never leaves the service.

Source: Cloud KMS v1, projects.locations.keyRings.cryptoKeys.cryptoKeyVersions: `getPublicKey` and
`asymmetricSign`. The name of a key is cosign's (sigstore/sigstore, pkg/signature/kms/gcp).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from builder import googleapi
from builder.core.errors import InputError, OutsideError
from builder.core.settings import CLOUD_KEY
from builder.googleapi import Advice
from builder.trust import keys
from builder.trust.keys import PublicKey, SigningKey

ENDPOINT = "https://cloudkms.googleapis.com"
ALGORITHM: Final = "EC_SIGN_P256_SHA256"

_NAME: Final = re.compile(
    r"(projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+)"
    r"/(?:cryptoKeyVersions|versions)/(\d+)"
)
_EXAMPLE: Final = "projects/P/locations/L/keyRings/R/cryptoKeys/K/cryptoKeyVersions/1"
_ADVICE: Final = Advice(
    api="cloudkms.googleapis.com",
    forbidden="ask for roles/cloudkms.signerVerifier on the key",
    missing="correct the name, or create the key: gcloud kms keys create",
    quota="wait, or ask for more quota of Cloud KMS",
    refused=f"use a key for signing, of the algorithm {ALGORITHM}",
    precondition="look whether this version of the key is enabled",
    unreachable="look whether Cloud KMS can be reached from here, and run this again",
)


@dataclass(frozen=True)
class KmsKey(SigningKey):
    """One version of a key. resource: its full name in Cloud KMS; source: as it was written."""

    resource: str
    source: str

    @classmethod
    def of(cls, name: str) -> KmsKey:
        """Return the key of a name that begins with gcpkms://. Raises InputError."""
        match = _NAME.fullmatch(name.removeprefix(CLOUD_KEY))
        if not match:
            raise InputError(
                f"{name}: this is no version of a key in Cloud KMS",
                f"write {CLOUD_KEY}{_EXAMPLE}",
            )
        return cls(f"{match[1]}/cryptoKeyVersions/{match[2]}", name)

    @cached_property
    def public(self) -> PublicKey:
        """The public half, from the service. Raises OutsideError, InputError."""
        answer = self._call("GET", "/publicKey")
        if answer.get("algorithm") != ALGORITHM:
            raise InputError(
                f"{self.source}: its algorithm is {answer.get('algorithm')}", _ADVICE.refused
            )
        return keys.public_of_pem(str(answer.get("pem")), self.source)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of these bytes, checked. Raises OutsideError."""
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer = self._call("POST", ":asymmetricSign", {"digest": {"sha256": digest}})
        signature = b""
        with contextlib.suppress(ValueError):
            signature = base64.b64decode(str(answer.get("signature")))
        if not self.public.accepts(signature, data):
            raise OutsideError(
                f"{self.source}: the answer is no signature of this key", _ADVICE.unreachable
            )
        return signature

    def _call(self, method: str, verb: str, body: object = None) -> dict[str, Any]:
        from google.api_core import exceptions

        url = f"{ENDPOINT}/v1/{self.resource}{verb}"
        with googleapi.explaining(self.source, _ADVICE):
            session = googleapi.session(googleapi.credentials()[0])
            answer = session.request(method, url, json=body, timeout=60)
            if answer.status_code != 200:
                raise exceptions.from_http_response(answer)  # type: ignore[no-untyped-call]
            content = answer.json()
        return content if isinstance(content, dict) else {}
