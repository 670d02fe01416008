"""A model is followed back to its image, and every link that was tampered with is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import CheckFailed, FactoryError, InputError
from builder.pipeline import model
from tests.trust.signing import Repository

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
    content = {"schema": 1, "image": image, "options": {}, "records": {}, "files": hashes}
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


def test_an_image_that_nobody_proved_or_that_is_not_there_is_refused(
    job: Path, repository: Repository, tmp_path: Path
) -> None:
    bare = repository.image("bare", "bare")
    for digest in (bare.digest, f"sha256:{HASH}"):
        changed(job, image=f"{repository.reference}@{digest}")
        with pytest.raises(FactoryError, match=r"no receipt refers to it|has no such image"):
            model.check(job, repository.settings(), tmp_path)
