"""A statement in a bundle: whose signature counts, and what is no bundle."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from builder.core.errors import CheckFailed
from builder.trust import bundle, keys
from builder.trust.bundle import Statement
from builder.trust.keys import KeySigner, PublicKey

SAID = Statement("sha256:" + "a" * 64, "urn:test:said:v1", {"text": "Grüße", "list": [1, 2]})


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeySigner, KeySigner]:
    """Two keys with an empty password."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("one", "two"):
        keys.create(folder / f"{name}.key", "")
    return keys.signer(str(folder / "one.key")), keys.signer(str(folder / "two.key"))


def test_a_statement_comes_back_as_it_was_signed(signers: tuple[KeySigner, KeySigner]) -> None:
    one, two = signers
    data = bundle.seal(SAID, one)
    assert bundle.unseal(data, (two.public, one.public)) == (SAID, one.public)


def test_another_key_does_not_count(signers: tuple[KeySigner, KeySigner]) -> None:
    one, two = signers
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        bundle.unseal(bundle.seal(SAID, one), (two.public,))
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        bundle.unseal(bundle.seal(SAID, one), ())


def test_every_flipped_byte_of_the_payload_is_seen(signers: tuple[KeySigner, KeySigner]) -> None:
    one, _ = signers
    content = json.loads(bundle.seal(SAID, one))
    payload = base64.b64decode(content["dsseEnvelope"]["payload"])
    for place in range(len(payload)):
        flipped = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
        content["dsseEnvelope"]["payload"] = base64.b64encode(flipped).decode()
        with pytest.raises(CheckFailed, match="signed by none"):
            bundle.unseal(json.dumps(content).encode(), (one.public,))


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["dsseEnvelope"].pop(name)


@pytest.mark.parametrize(
    "change",
    [
        _without("payload"),
        _without("signatures"),
        _without("payloadType"),
        lambda content: content.pop("dsseEnvelope"),
        lambda content: content["dsseEnvelope"].update(payloadType="text/plain"),
        lambda content: content["dsseEnvelope"].update(payload="!"),
        lambda content: content["dsseEnvelope"].update(signatures=[{}]),
        lambda content: content["dsseEnvelope"].update(signatures=7),
    ],
)
def test_what_is_no_bundle(
    signers: tuple[KeySigner, KeySigner], change: Callable[[dict[str, Any]], object]
) -> None:
    one, _ = signers
    content = json.loads(bundle.seal(SAID, one))
    change(content)
    with pytest.raises(CheckFailed, match="no bundle with an in-toto statement"):
        bundle.unseal(json.dumps(content).encode(), (one.public,))
    with pytest.raises(CheckFailed, match="no bundle with an in-toto statement"):
        bundle.unseal(b"[" * 100_000, (one.public,))


@pytest.mark.parametrize(
    "payload", [b"{}", b"[]", b"no JSON", SAID.payload.replace(b"sha256", b"md5")]
)
def test_a_signed_text_that_is_no_statement(
    signers: tuple[KeySigner, KeySigner], payload: bytes
) -> None:
    one, _ = signers

    class Text:
        """Stands in for a statement that has this payload."""

        def __init__(self) -> None:
            self.payload = payload

    with pytest.raises(CheckFailed, match="no in-toto statement about one image"):
        bundle.unseal(bundle.seal(Text(), one), (one.public,))  # type: ignore[arg-type]


def test_the_key_is_named_as_cosign_names_it() -> None:
    der = base64.b64decode(
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEiAVo7jOa2zTQVWJk1XqGmVAc3rOj"
        "OKKydM/DVuoh5p7zV46bBVyiEKtnWO7e4qyjK/8YB6DdCtmhBN8CswEOAA=="
    )
    # the hint in a bundle that cosign 3.1.1 wrote with this key
    assert PublicKey(der).hint == "usFwnPqdAQ7yXdZt6Yt4Wi7a77Lv1yNaADcwdjkvmtY="


def test_the_same_statement_is_the_same_bytes() -> None:
    again = Statement(SAID.digest, SAID.kind, {"list": [1, 2], "text": "Grüße"})
    assert again.payload == SAID.payload
