"""The examiner's fifty: each broken image is refused, by the check that has to name it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import CheckFailed
from builder.engine import BuildRequest, Engine, buildx
from builder.frameworks.tensorflow.suite import PROGRAM, TRAINER
from builder.image.plan import image_config
from builder.prove import receipts, smoke
from builder.prove.session import Workload
from builder.prove.subject import Subject
from builder.prove.suite import Check, Suite

from ...frameworks.tensorflow.test_loader import Image
from .table import TABLE, Breakage

ROOT = Path(__file__).resolve().parents[3]
ENOUGH = 45
CHECKS = {check.name: check for check in (*TRAINER.checks, *PROGRAM.checks)}
TARGETS = {"cpu": "cpu", "gpu": "v100"}
SCORE: dict[str, bool] = {}

IMAGES = [row for row in TABLE if row.change is None]
FOLDERS = [row for row in TABLE if row.change is not None]


@pytest.fixture(scope="module")
def good(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The image for the CPU, and that image with the variables of the one for a V100."""
    command = [sys.executable, "-c", "from builder.cli import main; main()", "build", "cpu"]
    subprocess.run(command, cwd=ROOT, check=True)
    variables = image_config(lockfile.read(ROOT, "v100"))["Env"]
    rendered = (ROOT / "images/v100/Dockerfile").read_text().partition("\nENV ")[2]
    own = rendered.partition("\n\n")[0]
    lines = "".join(f"ENV {pair}\n" for pair in (*variables, own))
    tag = f"broken-test:gpu-{os.getpid()}"
    build(engine, tmp_path_factory.mktemp("gpu"), f"FROM training:cpu\n{lines}", tag)
    yield {"cpu": "training:cpu", "gpu": tag}
    engine.client.images.remove(tag, force=True)


def build(engine: Engine, folder: Path, dockerfile: str, tag: str) -> None:
    (folder / "Dockerfile").write_text(dockerfile)
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (tag,)))


def messages(engine: Engine, image: str, kind: str, folder: Path, *checks: Check) -> list[str]:
    """What these checks say of an image."""
    spec = image_yaml.load(ROOT, TARGETS[kind])
    packages = lockfile.read(ROOT, "cpu").packages.values()
    subject = Subject(
        image,
        spec,
        compatibility.resolve(spec),
        {package.name: package.version for package in packages},
        smoke.RECORDS,
    )
    short = Workload(steps=60, batch=16, checkpoint_every=20)
    with contextlib.suppress(CheckFailed):
        smoke.smoke(engine, subject, Suite(TRAINER.name, checks), folder, workload=short)
    receipt = receipts.read(folder / receipts.FILE)
    assert receipt is not None
    return [problem.message for result in receipt.checks for problem in result.problems]


def judged(row: Breakage, said: list[str]) -> None:
    SCORE[row.name] = any(re.search(row.says, line) for line in said if row.says)
    assert SCORE[row.name] or not row.says, said
    assert row.says or not said, "a check names it now: say so in the table"


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
def test_the_good_image_stays_green(
    engine: Engine, good: dict[str, str], tmp_path: Path, kind: str
) -> None:
    names = {row.check for row in IMAGES if row.kind == kind} - {"training", "starts"}
    checks = [CHECKS[name] for name in sorted(names)]
    assert messages(engine, good[kind], kind, tmp_path, *checks) == []


@pytest.mark.parametrize("row", IMAGES, ids=lambda row: row.name)
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
def test_a_broken_image_is_refused(
    engine: Engine, good: dict[str, str], tmp_path: Path, row: Breakage
) -> None:
    tag = f"broken-test:{os.getpid()}"
    build(engine, tmp_path, f"FROM {good[row.kind]}\n{row.lines}\n", tag)
    try:
        judged(row, messages(engine, tag, row.kind, tmp_path / "proof", CHECKS[row.check]))
    finally:
        engine.client.images.remove(tag, force=True)


def answers(tag: str, gpu: str = "") -> dict[str, dict[str, Any]]:
    """What each check of `builder prove` says of an image on the engine."""
    options = ["--gpu", gpu] if gpu else []
    result = CliRunner().invoke(app, ["prove", tag, "--json", *options])
    assert result.stdout, result.exception
    return {answer["check"]: answer for answer in json.loads(result.stdout)["checks"]}


PROVED = {
    "hides every GPU": "environment",
    "mount the driver there": "machine",
    "there is no such proxy": "machine",
    "no HTTPS connection": "certificates",
    "cannot read gs://": "certificates",
    "a W&B key": "secrets",
    "runs as root": "permissions",
    "another user's rights": "permissions",
    "a library of the driver": "driver",
    "cannot be executed|no such file": "entry-point",
}
"""What `prove` has to say without a smoke run: the message of a row, and its check of `prove`."""


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
def test_prove_says_of_ours_what_a_smoke_run_says(
    engine: Engine, good: dict[str, str], tmp_path: Path
) -> None:
    """Of the good image nothing, of broken ones the same fault."""
    assert {answer["status"] for answer in answers("cpu").values()} == {"passed", "not there"}
    rows = [row for row in IMAGES if row.says in PROVED]
    assert len(rows) >= len(PROVED)
    for row in rows:
        tag = f"broken-test:prove-{os.getpid()}"
        build(engine, tmp_path, f"FROM {good[row.kind]}\n{row.lines}\n", tag)
        try:
            answer = answers(tag, "v100" if row.kind == "gpu" else "")[PROVED[row.says]]
        finally:
            engine.client.images.remove(tag, force=True)
        assert answer["status"] == "refused", (row.name, answer)


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: row.name)
@pytest.mark.long
def test_a_broken_library_is_refused(tmp_path: Path, row: Breakage) -> None:
    image = Image(tmp_path)
    assert image.probe()[0] == []
    assert row.change is not None
    row.change(image)
    judged(row, image.probe()[0])


@pytest.mark.long
def test_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(TABLE) >= 50
    if len(SCORE) == len(TABLE):  # not where an engine's tests were left out
        refused = sum(SCORE.values())
        with capsys.disabled():
            sys.stdout.write(f"\nexaminer's images refused: {refused} of {len(TABLE)}\n")
        assert refused >= ENOUGH
