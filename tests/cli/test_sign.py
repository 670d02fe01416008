"""`builder sign key`, and the keys that `push` and `verify` are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import InputError
from builder.trust import keys
from tests.trust.programs import PASSWORD
from tests.trust.signing import Pair


def run(*words: str) -> str:
    """Return what `builder` prints. Raises the error that it ends with."""
    result = CliRunner().invoke(app, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.setenv(keys.PASSWORD, PASSWORD)
    monkeypatch.setitem(keys._SCRYPT, "N", 2)
    return project


def test_a_pair_is_made_outside_of_the_project(
    inside: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    text = run("sign", "key", f"{folder}/prover.key")
    assert f"wrote {folder}/prover.key, which stays secret" in text
    assert f"wrote {folder}/prover.pub" in text
    assert PASSWORD not in text
    signer, public = Pair(folder / "prover.key").signer, folder / "prover.pub"
    assert signer.public.der == keys.read_public(str(public)).der


@pytest.mark.parametrize("name", ["prover.key", "keys/prover.key", "../project/prover.key"])
def test_a_private_key_never_lies_in_the_project(inside: Path, name: str) -> None:
    name = name.replace("project", inside.name)
    with pytest.raises(InputError, match="a private key inside of the project"):
        run("sign", "key", name)
    (inside / "there.key").write_text("x")
    with pytest.raises(InputError, match=r"--key: there\.key is a private key inside"):
        run("push", "v100", "--registry", "127.0.0.1:9/x", "--key", "there.key")
    assert not (inside / name).exists()


def test_a_key_without_a_password_has_to_be_asked_for(
    inside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    monkeypatch.delenv(keys.PASSWORD)
    with pytest.raises(InputError, match="COSIGN_PASSWORD is not set"):
        run("sign", "key", f"{folder}/prover.key")
    assert list(folder.iterdir()) == []
    run("sign", "key", f"{folder}/prover.key", "--no-password")
    assert Pair(folder / "prover.key").signer


def test_an_identity_counts_only_with_its_issuer(inside: Path) -> None:
    for words in (("--identity", "ci@example.com"), ("--issuer", "https://accounts.google.com")):
        with pytest.raises(InputError, match="--identity and --issuer belong together"):
            run("verify", "127.0.0.1:9/x:v100", *words)


def test_a_push_signs_in_one_way(inside: Path) -> None:
    with pytest.raises(InputError, match="--key and --keyless are two ways"):
        run("push", "v100", "--registry", "127.0.0.1:9/x", "--keyless", "--key", "../a.key")


def test_verify_wants_a_key_that_is_there(inside: Path) -> None:
    """The registry, which is not there, is not asked."""
    with pytest.raises(InputError, match=r"nothing\.pub: there is no such key"):
        run("verify", "127.0.0.1:9/x:v100", "--key", "nothing.pub")
    with pytest.raises(InputError, match="--key names no file"):
        run("verify", "127.0.0.1:9/x:v100", "--key", "")
