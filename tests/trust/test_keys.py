"""A key pair: made, read again, and read by cosign; what is no key is refused."""

from __future__ import annotations

import stat
from pathlib import Path
from unittest import mock

import pytest

from builder.core.errors import InputError
from builder.trust import keys
from tests.trust.programs import PASSWORD, cosign
from tests.trust.signing import Pair

ED25519 = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """A pair whose private key is sealed under PASSWORD."""
    monkeypatch.setenv(keys.PASSWORD, PASSWORD)
    with mock.patch.dict(keys._SCRYPT, N=2):
        keys.create(tmp_path / "prover.key", PASSWORD)
    return Pair(tmp_path / "prover.key")


def test_a_pair_signs_and_its_public_half_accepts(pair: Pair) -> None:
    assert stat.S_IMODE(pair.path.stat().st_mode) == 0o600
    signer, public = pair.signer, keys.read_public(str(pair.public))
    assert signer.public.der == public.der and "private" not in repr(signer)
    signature = signer.sign(b"hello")
    assert public.accepts(signature, b"hello")
    for wrong, data in (
        (signature, b"hallo"),
        (signature[:-1] + bytes([signature[-1] ^ 1]), b"hello"),
        (b"", b"hello"),
    ):
        assert not public.accepts(wrong, data)


def test_no_pair_replaces_another_and_the_password_opens_it(pair: Pair) -> None:
    for password, reason in (("wrong", "does not open it"), ("", "is not set")):
        with pytest.raises(InputError, match=f"COSIGN_PASSWORD {reason}"):
            keys.read_private(str(pair.path), {keys.PASSWORD: password})
    before = pair.path.read_bytes()
    with pytest.raises(InputError, match=r"prover\.key: is there already"):
        keys.create(pair.path, PASSWORD)
    pair.path.rename(pair.path.with_name("old.key"))
    with pytest.raises(InputError, match=r"prover\.pub: is there already"):
        keys.create(pair.path, PASSWORD)
    assert pair.path.with_name("old.key").read_bytes() == before
    assert not pair.path.exists()


def test_what_is_no_key_is_refused(pair: Pair) -> None:
    text, file = pair.path.read_text(), pair.path.with_name("other")
    for content in (text[:200] + text[300:], pair.public.read_text(), ""):
        file.write_text(content)
        with pytest.raises(InputError, match="no private key that the factory reads"):
            keys.read_private(str(file))
    for content, reason in (
        (text, "this is a private key"),
        ("hello", "this is no public key"),
        (ED25519, "not ECDSA P-256"),
        (ED25519.replace("MCow", "MCo!"), "this is no public key"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=reason):
            keys.read_public(str(file))
    with pytest.raises(InputError, match="there is no such key"):
        keys.read_public("nothing.pub")


@pytest.mark.network
def test_cosign_reads_our_pair_and_we_read_cosigns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keys.PASSWORD, PASSWORD)
    keys.create(tmp_path / "ours.key", PASSWORD)
    shown = cosign("public-key", "--key", "ours.key", folder=tmp_path)
    assert shown.stdout == (tmp_path / "ours.pub").read_text(), shown.stderr

    done = cosign("generate-key-pair", "--output-key-prefix", "theirs", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    theirs = Pair(tmp_path / "theirs.key")
    signature = theirs.signer.sign(b"hello")
    assert keys.read_public(str(theirs.public)).accepts(signature, b"hello")
