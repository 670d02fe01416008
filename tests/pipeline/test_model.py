"""A model is followed back to its image, and every link that was tampered with is named."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.group import app
from builder.core.errors import CheckFailed, FactoryError, InputError
from builder.pipeline import model
from builder.trust import model_bill, model_signatures
from tests.trust.signing import Pair, Repository, pair

pytestmark = pytest.mark.network

FILES = {"model/saved_model.pb": b"graph", "model/variables/v": b"weights", "checkpoints/s": b"c"}


@pytest.fixture
def job(tmp_path: Path, repository: Repository) -> Path:
    """The folder of a job that ran in a proven image."""
    made = repository.proven()
    folder = tmp_path / "job"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    image = f"{repository.reference}@{made.digest}"
    options = {"steps": 300, "records": "gs://b/records", "model": "small_cnn"}
    records = {"classes": ["a", "b"], "files": {"train-0": {"records": 3, "checksums": "12"}}}
    content = {"schema": 1, "image": image, "options": options, "records": records, "files": hashes}
    (folder / "evaluation.json").write_text('{"step": 300, "metrics": {"accuracy": 0.98}}')
    (folder / "logs").mkdir()
    (folder / "logs/events").write_bytes(b"curves")
    (folder / "DONE").touch()
    (folder / model.FILE).write_text(json.dumps(content))
    return folder


def changed(job: Path, **fields: Any) -> None:
    content = json.loads((job / model.FILE).read_text())
    (job / model.FILE).write_text(json.dumps({**content, **fields}))


def test_a_model_leads_to_its_image(job: Path, repository: Repository, tmp_path: Path) -> None:
    assert model.is_one(str(job)) and not model.is_one("v100")
    found = model.check(job, repository.settings(), tmp_path)
    assert (found.files, found.image.digest) == (3, found.content["image"].partition("@")[2])
    assert found.image.receipt.accelerator == "V100"


def rename(path: Path, to: str) -> None:
    path.rename(path.with_name(to))


HASH = "0" * 64
TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights": (lambda job: (job / "model/variables/v").write_bytes(b"weightz"), "not the file"),
    "graph": (lambda job: (job / "model/saved_model.pb").write_bytes(b"graph2"), "not the file"),
    "checkpoint": (lambda job: (job / "checkpoints/s").write_bytes(b""), "not the file"),
    "gone": (lambda job: (job / "model/variables/v").unlink(), "v: is missing"),
    "moved": (lambda job: rename(job / "model/variables/v", "w"), "v: is missing"),
    "beside": (lambda job: (job / "model/more").write_text("x"), "more: the job did not write it"),
    "linked": (lambda job: (job / "model/l").symlink_to("/"), "l: the job did not write it"),
    "no model": (lambda job: changed(job, files={}), "the job did not write it"),
    "outside": (lambda job: changed(job, files={"../x": HASH}), "../x lies outside"),
    "no image": (lambda job: changed(job, image=""), "names no image by its digest"),
    "a tag": (lambda job: changed(job, image="a.b/c:v100"), "names no image by its digest"),
    "schema": (lambda job: changed(job, schema=2), "is not what the trainer writes"),
    "files": (lambda job: changed(job, files=[1]), "is not what the trainer writes"),
    "cut": (lambda job: (job / model.FILE).write_text('{"schema": 1'), "is not what the trainer"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_link_that_does_not_hold_is_named(
    job: Path, repository: Repository, tmp_path: Path, how: str
) -> None:
    tamper, message = TAMPERED[how]
    tamper(job)
    with pytest.raises((CheckFailed, InputError), match=message):
        model.check(job, repository.settings(), tmp_path)


@pytest.fixture
def signed(job: Path, repository: Repository, tmp_path: Path, ours: Pair) -> Path:
    """The folder of the job, signed with `ours`, as its image is."""
    pytest.importorskip("model_signing")
    digest = json.loads((job / model.FILE).read_text())["image"].partition("@")[2]
    repository.sign(repository.client.manifest(repository.path, digest), ours.signer)
    model.sign(job, repository.settings(ours), tmp_path, ours.signer)
    return job


def test_a_signed_model_is_one_for_openssf_too_and_its_bill_is_cyclonedx(
    signed: Path, repository: Repository, tmp_path: Path, ours: Pair
) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = model.check(signed, repository.settings(ours), tmp_path)
    assert (found.signer, found.image.signer) == (str(ours.public), str(ours.public))
    theirs = (sys.executable, "-m", "model_signing", "verify", "key", signed)  # docs/results.md
    files = ("--signature", signed / model_signatures.FILE, "--public_key", ours.public)
    subprocess.run([*theirs, *files], check=True)
    text = (signed / model_bill.FILE).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    described = json.loads(text)["metadata"]["component"]
    assert described["type"] == "machine-learning-model"
    assert {file["name"] for file in described["components"]} == set(FILES)
    [metric] = described["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert metric == {"type": "accuracy", "value": "0.98"}
    assert model.sign(signed, repository.settings(ours), tmp_path, ours.signer)
    assert (signed / model_bill.FILE).read_text() == text


def test_the_commands_sign_and_verify(
    job: Path, repository: Repository, ours: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("model_signing")
    digest = json.loads((job / model.FILE).read_text())["image"].partition("@")[2]
    repository.sign(repository.client.manifest(repository.path, digest), ours.signer)
    (tmp_path / "builder.toml").write_text(f'registry = "{repository.reference.name}"\n')
    monkeypatch.chdir(tmp_path)
    verify = ("verify", "job", "--key", str(ours.public))
    unsigned = CliRunner().invoke(app, verify)
    assert "is not signed" in str(unsigned.exception)
    with pytest.raises(InputError, match="no key is named"):
        CliRunner().invoke(app, ("sign", "model", "job"), catch_exceptions=False)
    for words in (("sign", "model", "job", "--key", str(ours.path)), verify):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert f"signed by {ours.public.with_suffix('')}" in done.output


def repacked(job: Path, change: Callable[[dict], object]) -> None:
    """Change the statement in the signature, whose bytes it signs."""
    path = job / model_signatures.FILE
    bundle = json.loads(path.read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(statement)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    path.write_text(json.dumps(bundle))


def ignoring(statement: dict) -> None:
    statement["predicate"]["serialization"]["ignore_paths"].append("model")


def cut_out(statement: dict) -> None:
    resources = statement["predicate"]["resources"]
    resources[:] = [one for one in resources if not one["name"].startswith("logs")]


def with_its_hash(job: Path) -> None:
    """Weights that are other ones, and stand so in provenance.json."""
    (job / "model/variables/v").write_bytes(b"evil")
    files = json.loads((job / model.FILE).read_text())["files"]
    changed(job, files=files | {"model/variables/v": hashlib.sha256(b"evil").hexdigest()})


def without(job: Path, name: str) -> None:
    """A file is gone, and provenance.json does not speak of it."""
    (job / name).unlink()
    files = json.loads((job / model.FILE).read_text())["files"]
    changed(job, files={own: digest for own, digest in files.items() if own != name})


def by_another(job: Path) -> None:
    model_signatures.sign(job, pair(job.parent, "other").signer)


def linked(job: Path, name: str) -> None:
    """The same bytes, which lie elsewhere."""
    (job / name).rename(job.parent / "elsewhere")
    (job / name).symlink_to(job.parent / "elsewhere")


SIGNATURE = model_signatures.FILE
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights and their hash": (with_its_hash, "Hash mismatch for 'model/variables/v'"),
    "options": (lambda job: changed(job, options={}), "Hash mismatch for 'provenance.json'"),
    "records": (lambda job: changed(job, records={}), "Hash mismatch for 'provenance.json'"),
    "software": (lambda job: changed(job, software={"keras": "1"}), "'provenance.json'"),
    "image": (lambda job: changed(job, image=f"a.b/c@sha256:{HASH}"), "'provenance.json'"),
    "checkpoint gone": (
        lambda job: without(job, "checkpoints/s"),
        "Missing .* checkpoints/s",
    ),
    "a checkpoint more": (
        lambda job: (job / "checkpoints/t").touch(),
        "Extra .* checkpoints/t",
    ),
    "a log": (lambda job: (job / "logs/events").write_bytes(b""), "mismatch for 'logs/events'"),
    "a log more": (lambda job: (job / "logs/more").touch(), "Extra files .* logs/more"),
    "hidden": (lambda job: (job / ".git").write_text("x"), "Extra files .* .git"),
    "metrics": (lambda job: (job / "evaluation.json").write_text("{}"), "'evaluation.json'"),
    "not done": (lambda job: (job / "DONE").unlink(), "Missing files .* DONE"),
    "bill": (lambda job: (job / model_bill.FILE).write_text("{}"), "'model.cdx.json'"),
    "no bill": (lambda job: (job / model_bill.FILE).unlink(), "Missing files .* model.cdx.json"),
    "linked weights": (lambda job: linked(job, "model/variables/v"), "symlink"),
    "linked checkpoint": (lambda job: linked(job, "checkpoints/s"), "symlink"),
    "no signature": (lambda job: (job / SIGNATURE).unlink(), "is not signed"),
    "linked signature": (lambda job: linked(job, SIGNATURE), "is not signed"),
    "no JSON": (lambda job: (job / SIGNATURE).write_text("{"), "none of the keys"),
    "another key": (by_another, "none of the keys"),
    "less is signed": (lambda job: repacked(job, cut_out), "does not hold: InvalidSignature"),
    "more is ignored": (lambda job: repacked(job, ignoring), "does not hold: InvalidSignature"),
    "another statement": (lambda job: repacked(job, dict.clear), "does not hold: InvalidSignature"),
}


@pytest.mark.parametrize("how", [*TAMPERED, *BROKEN])
def test_a_signed_chain_that_was_tampered_with_is_refused(
    signed: Path, repository: Repository, tmp_path: Path, ours: Pair, how: str
) -> None:
    tamper, message = BROKEN.get(how) or (TAMPERED[how][0], "does not hold")
    tamper(signed)
    with pytest.raises(CheckFailed, match=message):
        model.check(signed, repository.settings(ours), tmp_path)


def test_who_signs_a_model_cannot_vouch_for_its_image(
    signed: Path, repository: Repository, tmp_path: Path, ours: Pair
) -> None:
    unsigned = repository.proven("unsigned", "unsigned")
    for image, why in (
        (repository.name(unsigned), "no signed receipt"),
        (f"{repository.reference}@sha256:{HASH}", "has no such image"),
    ):
        changed(signed, image=image)
        model_signatures.sign(signed, ours.signer)
        with pytest.raises(FactoryError, match=why):
            model.check(signed, repository.settings(ours), tmp_path)
    with pytest.raises(FactoryError, match="has no such image"):
        model.sign(signed, repository.settings(ours), tmp_path, ours.signer)


def test_an_image_that_nobody_proved_or_that_is_not_there_is_refused(
    job: Path, repository: Repository, tmp_path: Path
) -> None:
    bare = repository.image("bare", "bare")
    for digest in (bare.digest, f"sha256:{HASH}"):
        changed(job, image=f"{repository.reference}@{digest}")
        with pytest.raises(FactoryError, match=r"no receipt refers to it|has no such image"):
            model.check(job, repository.settings(), tmp_path)
