"""A key in Cloud KMS signs what a key file would. The service on loopback speaks Cloud KMS v1."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.auth.credentials import AnonymousCredentials

from builder.core import googleapi
from builder.core.errors import InputError, OutsideError
from builder.trust import bundle, keys, kms
from builder.trust.bundle import Statement
from tests.emulators.web import LoopbackServer

RESOURCE = "projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/3"
NAME = f"gcpkms://{RESOURCE}"
SAID = Statement("sha256:" + "a" * 64, "urn:test:said:v1", {"text": "hello"})


@dataclass
class Service:
    """Cloud KMS with one key. status: of every answer; signs: with another key where it is not."""

    private: ec.EllipticCurvePrivateKey
    algorithm: str = kms.ALGORITHM
    status: int = 200
    signs: ec.EllipticCurvePrivateKey | None = None


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    there = Service(ec.generate_private_key(ec.SECP256R1()))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == f"/v1/{RESOURCE}/publicKey"
            pem = there.private.public_key().public_bytes(
                Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            )
            self.answer({"pem": pem.decode(), "algorithm": there.algorithm})

        def do_POST(self) -> None:
            assert self.path == f"/v1/{RESOURCE}:asymmetricSign"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            digest = base64.b64decode(body["digest"]["sha256"])
            key = there.signs or there.private
            signature = key.sign(digest, ec.ECDSA(utils.Prehashed(SHA256())))
            self.answer({"signature": base64.b64encode(signature).decode()})

        def answer(self, value: dict[str, str]) -> None:
            if there.status != 200:
                value = {"error": {"code": there.status, "message": "no"}}  # type: ignore[dict-item]
            data = json.dumps(value).encode()
            self.send_response(there.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    monkeypatch.setattr(kms, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(googleapi, "credentials", lambda: (anonymous, None))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield there
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_signs_a_statement_that_its_public_half_accepts(service: Service) -> None:
    signer = keys.signer(NAME)
    data = bundle.seal(SAID, signer)
    assert bundle.unseal(data, (keys.public(NAME),)) == (SAID, signer.public)
    cosigns = NAME.replace("cryptoKeyVersions", "versions")
    assert keys.public(cosigns).hint == signer.public.hint


def test_a_wrong_signature_is_seen(service: Service) -> None:
    service.signs = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(OutsideError, match="the answer is no signature of this key"):
        keys.signer(NAME).sign(b"hello")


@pytest.mark.parametrize(
    ("status", "says"), [(403, "not allowed"), (404, "not found"), (503, "cannot be reached")]
)
def test_what_the_service_refuses_is_one_line(service: Service, status: int, says: str) -> None:
    service.status = status
    with pytest.raises(OutsideError, match=says) as caught:
        keys.public(NAME)
    assert "\n" not in caught.value.message


def test_a_key_of_another_kind_is_refused(service: Service) -> None:
    service.algorithm = "RSA_SIGN_PSS_2048_SHA256"
    with pytest.raises(InputError, match="its algorithm is RSA_SIGN_PSS_2048_SHA256"):
        keys.public(NAME)


def test_a_name_of_another_shape_is_refused() -> None:
    for name in ("gcpkms://k", NAME.rpartition("/")[0], NAME + "/x"):
        with pytest.raises(InputError, match="no version of a key in Cloud KMS"):
            keys.signer(name)
