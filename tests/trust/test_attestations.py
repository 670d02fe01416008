"""A statement in a bundle that a key signed: whose signature counts, and what is no bundle."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from builder.core.errors import CheckFailed
from builder.trust import attestations, dsse
from builder.trust.dsse import Statement
from builder.trust.keys import PublicKey, SigningKey
from tests.trust.signing import pair

STATEMENT = Statement("sha256:" + "a" * 64, "urn:test:v1", {"text": "Grüße", "list": [1, 2]})


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return pair(tmp_path_factory.mktemp("keys"), "ours").signer


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return pair(tmp_path_factory.mktemp("keys"), "other").signer


def test_a_statement_comes_back_as_its_key_signed_it(ours: SigningKey, other: SigningKey) -> None:
    bundle = ours.seal(STATEMENT.payload)
    assert attestations.verify(bundle, (other.public, ours.public)) == (STATEMENT, ours.public)
    for trusted in ((other.public,), ()):
        with pytest.raises(CheckFailed, match="signed by none of the keys"):
            attestations.verify(bundle, trusted)
    content = json.loads(bundle)
    signatures = content["dsseEnvelope"]["signatures"]
    signatures[:0] = [{"sig": base64.b64encode(other.sign(b"x")).decode()}] * dsse.SIGNATURES
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        attestations.verify(json.dumps(content).encode(), (ours.public,))


def test_every_flipped_byte_of_the_payload_is_noticed(ours: SigningKey) -> None:
    content = json.loads(ours.seal(STATEMENT.payload))
    payload = bytearray(base64.b64decode(content["dsseEnvelope"]["payload"]))
    for place in range(len(payload)):
        payload[place] ^= 1
        content["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
        payload[place] ^= 1
        with pytest.raises(CheckFailed, match="signed by none"):
            attestations.verify(json.dumps(content).encode(), (ours.public,))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("dsseEnvelope"),
        lambda content: content["dsseEnvelope"].pop("signatures"),
        lambda content: content["dsseEnvelope"].update(payloadType="text/plain"),
        lambda content: content["dsseEnvelope"].update(payload="!"),
        lambda content: content["dsseEnvelope"].update(signatures=[{}]),
        lambda content: content["dsseEnvelope"].update(signatures=7),
    ],
)
def test_what_is_no_bundle(ours: SigningKey, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(ours.seal(STATEMENT.payload))
    change(content)
    for data in (json.dumps(content).encode(), b"[" * 100_000):
        with pytest.raises(CheckFailed, match="no bundle with an in-toto statement"):
            attestations.verify(data, (ours.public,))


def test_a_signed_text_that_is_no_statement(ours: SigningKey) -> None:
    other = STATEMENT.payload.replace(b"in-toto.io", b"x.example")
    odd = STATEMENT.payload.replace(b"sha256", b"md5")
    for payload in (b"{}", b"[]", b"no JSON", odd, other):
        with pytest.raises(CheckFailed, match="no in-toto statement about one image"):
            attestations.verify(ours.seal(payload), (ours.public,))


def test_a_key_is_named_as_cosign_names_it_and_a_statement_has_one_form() -> None:
    der = base64.b64decode(
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEiAVo7jOa2zTQVWJk1XqGmVAc3rOj"
        "OKKydM/DVuoh5p7zV46bBVyiEKtnWO7e4qyjK/8YB6DdCtmhBN8CswEOAA=="
    )
    # the hint in a bundle that cosign 3.1.1 wrote with this key
    assert PublicKey(der).hint == "usFwnPqdAQ7yXdZt6Yt4Wi7a77Lv1yNaADcwdjkvmtY="
    again = Statement(STATEMENT.subject, "urn:test:v1", {"list": [1, 2], "text": "Grüße"})
    assert again.payload == STATEMENT.payload
