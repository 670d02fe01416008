"""A key in Cloud KMS signs what a key file would. The service on loopback speaks Cloud KMS v1."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials

from builder import googleapi
from builder.core.errors import InputError, OutsideError
from builder.trust import attestations, dsse, kms
from tests.emulators import answers
from tests.emulators.answers import Server
from tests.trust.signing import Pair, pair
from tests.trust.test_attestations import STATEMENT

RESOURCE = "projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/3"
NAME = f"gcpkms://{RESOURCE}"
PUBLIC, SIGN = f"/v1/{RESOURCE}/publicKey", f"/v1/{RESOURCE}:asymmetricSign"


@pytest.fixture
def key(tmp_path: Path) -> Pair:
    """The key that lies in the service."""
    return pair(tmp_path, "key")


@pytest.fixture
def service(key: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    signature = key.signer.sign(dsse.signed_bytes(STATEMENT.payload))
    with answers.serving() as server:
        answer(server, PUBLIC, {"pem": key.public.read_text(), "algorithm": kms.ALGORITHM})
        answer(server, SIGN, {"signature": base64.b64encode(signature).decode()})
        monkeypatch.setattr(kms, "ENDPOINT", server.address)
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        monkeypatch.setattr(googleapi, "credentials", lambda: (anonymous, None))
        yield server


def answer(service: Server, path: str, content: dict[str, object], status: int = 200) -> None:
    service.answers[path] = (
        status,
        {"Content-Type": "application/json"},
        json.dumps(content).encode(),
    )


def test_it_signs_a_statement_that_its_public_half_accepts(service: Server, key: Pair) -> None:
    bundle = attestations.signing_key(NAME).seal(STATEMENT.payload)
    assert attestations.verify(bundle, (key.signer.public,))[0] == STATEMENT
    cosigns = attestations.public_key(NAME.replace("cryptoKeyVersions", "versions"))
    assert cosigns.hint == key.signer.public.hint


@pytest.mark.parametrize("signature", ["MEUCIQ==", "?", None])
def test_a_wrong_signature_is_noticed(service: Server, signature: str | None) -> None:
    answer(service, SIGN, {"signature": signature})
    with pytest.raises(OutsideError, match="the answer is no signature of this key"):
        attestations.signing_key(NAME).seal(STATEMENT.payload)


def test_what_the_service_refuses_is_one_line(service: Server) -> None:
    for status, reason in ((403, "not allowed"), (404, "not found"), (503, "cannot be reached")):
        answer(service, PUBLIC, {"error": {"code": status, "message": "no"}}, status)
        with pytest.raises(OutsideError, match=reason) as caught:
            attestations.public_key(NAME)
        assert "\n" not in caught.value.message
    answer(service, PUBLIC, {"algorithm": "RSA_SIGN_PSS_2048_SHA256"})
    with pytest.raises(InputError, match="its algorithm is RSA_SIGN_PSS_2048_SHA256"):
        attestations.public_key(NAME)


def test_a_name_of_another_shape_is_refused() -> None:
    for name in ("gcpkms://k", NAME.rpartition("/")[0], NAME + "/x"):
        with pytest.raises(InputError, match="no version of a key in Cloud KMS"):
            attestations.signing_key(name)
