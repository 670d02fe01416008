"""`builder sign key`, and the keys that `push` and `verify` are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.trust import keys
from tests.conftest import Run
from tests.trust.programs import PASSWORD
from tests.trust.signing import Pair


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.setenv(keys.PASSWORD, PASSWORD)
    monkeypatch.setitem(keys._SCRYPT, "N", 2)
    return project


def test_a_pair_is_made_outside_of_the_project_and_without_a_password_where_that_is_said(
    inside: Path,
    builder: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    code, _, text = builder("sign", "key", f"{folder}/prover.key")
    assert code == 0 and f"wrote {folder}/prover.key, which stays secret" in text
    assert f"wrote {folder}/prover.pub" in text and PASSWORD not in text
    signer, public = Pair(folder / "prover.key").signer, folder / "prover.pub"
    assert signer.public.der == keys.read_public(str(public)).der
    for name in ("prover.key", "keys/prover.key", f"../{inside.name}/prover.key"):
        assert "a private key inside of the project" in builder("sign", "key", name)[2]
        assert not (inside / name).exists()
    (inside / "there.key").write_text("x")
    words = ("push", "v100", "--registry", "127.0.0.1:9/x", "--key", "there.key")
    assert "--key: there.key is a private key inside" in builder(*words)[2]
    monkeypatch.delenv(keys.PASSWORD)
    assert "COSIGN_PASSWORD is not set" in builder("sign", "key", f"{folder}/open.key")[2]
    assert not (folder / "open.key").exists()
    assert builder("sign", "key", f"{folder}/open.key", "--no-password")[0] == 0
    assert Pair(folder / "open.key").signer


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("verify {} --identity ci@example.com", "--identity and --issuer belong together"),
        ("verify {} --issuer https://accounts.google.com", "--identity and --issuer belong"),
        ("push v100 --registry 127.0.0.1:9/x --keyless --key ../a.key", "are two ways to sign"),
        ("verify {} --key nothing.pub", "nothing.pub: there is no such key"),
        ("verify {} --key=", "--key names no file"),
        ("build cpu --dry-run --to-registry", "--dry-run says what a build onto"),
        ("promote v100", "--back and a tag"),
        ("promote v100 production --back", "--back and a tag"),
    ],
)
def test_options_that_cannot_be_are_refused_before_the_registry_is_asked(
    words: str, error: str, inside: Path, builder: Run
) -> None:
    (inside / "images/cpu").mkdir(parents=True)
    (inside / "images/cpu/image.yaml").write_text("accelerator: CPU\n")
    code, _, text = builder(*words.format("127.0.0.1:9/x:v100").split())
    assert code == 2 and error in text
