"""A key pair: made, read again, and read by cosign; what is no key is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.trust import keys
from tests.trust.strangers import PASSWORD, cosign

ED25519 = """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private key under PASSWORD, its public half beside it."""
    monkeypatch.setenv(keys.PASSWORD, PASSWORD)
    keys.create(tmp_path / "prover.key", PASSWORD)
    return tmp_path / "prover.key"


def test_a_pair_signs_and_its_public_half_accepts(pair: Path) -> None:
    assert stat.S_IMODE(pair.stat().st_mode) == 0o600
    signer, public = keys.signer(str(pair)), keys.public(str(pair.with_suffix(".pub")))
    assert signer.public.hint == public.hint
    signature = signer.sign(b"hello")
    assert public.accepts(signature, b"hello")
    assert not public.accepts(signature, b"hallo")
    assert not public.accepts(signature[:-1] + bytes([signature[-1] ^ 1]), b"hello")
    assert not public.accepts(b"", b"hello")


def test_a_private_key_is_shown_nowhere(pair: Path) -> None:
    signer = keys.signer(str(pair))
    assert repr(signer) == f"KeyFile({str(pair)!r})"


def test_no_pair_replaces_another(pair: Path) -> None:
    before = pair.read_bytes()
    with pytest.raises(InputError, match=r"prover\.key: is there already"):
        keys.create(pair, PASSWORD)
    pair.rename(pair.with_name("old.key"))
    with pytest.raises(InputError, match=r"prover\.pub: is there already"):
        keys.create(pair, PASSWORD)
    assert pair.with_name("old.key").read_bytes() == before
    assert not pair.exists()


@pytest.mark.parametrize(
    ("password", "says"), [("wrong", "does not open it"), (None, "is not set")]
)
def test_the_password_opens_it(
    pair: Path, monkeypatch: pytest.MonkeyPatch, password: str | None, says: str
) -> None:
    monkeypatch.delenv(keys.PASSWORD)
    if password:
        monkeypatch.setenv(keys.PASSWORD, password)
    with pytest.raises(InputError, match=f"COSIGN_PASSWORD {says}"):
        keys.signer(str(pair))


def test_what_is_no_key_of_ours_is_refused(pair: Path, tmp_path: Path) -> None:
    text = pair.read_text()
    for name, content, says in (
        ("torn.key", text[:200] + text[300:], "no private key that the factory reads"),
        ("public.key", pair.with_suffix(".pub").read_text(), "no private key that the factory"),
        ("empty.key", "", "no private key that the factory reads"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=says):
            keys.signer(str(tmp_path / name))
    for content, says in (
        (text, "this is a private key"),
        ("hello", "this is no public key"),
        (ED25519, "not ECDSA P-256"),
        (ED25519.replace("MCow", "MCo!"), "this is no public key"),
    ):
        (tmp_path / "other.pub").write_text(content)
        with pytest.raises(InputError, match=says):
            keys.public(str(tmp_path / "other.pub"))
    with pytest.raises(InputError, match="there is no such key"):
        keys.public(str(tmp_path / "nothing.pub"))


@pytest.mark.network
def test_cosign_reads_our_pair_and_we_read_cosigns(pair: Path, tmp_path: Path) -> None:
    shown = cosign("public-key", "--key", pair, folder=tmp_path)
    assert shown.stdout == pair.with_suffix(".pub").read_text(), shown.stderr

    made = cosign("generate-key-pair", "--output-key-prefix", "theirs", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    signature = keys.signer(str(tmp_path / "theirs.key")).sign(b"hello")
    assert keys.public(str(tmp_path / "theirs.pub")).accepts(signature, b"hello")
