"""The examiner's fifty: each broken image is refused, by the check that has to name it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli.group import app
from builder.config import lockfile
from builder.engine import BuildRequest, Engine, buildx
from builder.image.plan import image_config
from builder.prove.session import Workload
from builder.prove.suite import Check, Suite
from tests import ROOT
from tests.prove.proving import proven
from tests.prove.reading import PROGRAM, TRAINER

from ...frameworks.standins import Image
from .table import TABLE, Breakage

ENOUGH = 45
CHECKS = {check.name: check for check in (*TRAINER.checks, *PROGRAM.checks)}
TARGETS = {"cpu": "cpu", "gpu": "v100"}
SCORE: dict[str, bool] = {}

IMAGES = [row for row in TABLE if row.change is None]
FOLDERS = [row for row in TABLE if row.change is not None]


@pytest.fixture(scope="module")
def good(
    engine: Engine, cpu_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The image for the CPU, and that image with the variables of the one for a V100."""
    variables = image_config(lockfile.read(ROOT, "v100"))["Env"]
    rendered = (ROOT / "images/v100/Dockerfile").read_text().partition("\nENV ")[2]
    own = rendered.partition("\n\n")[0]
    lines = "".join(f"ENV {pair}\n" for pair in (*variables, own))
    tag = f"broken-test:gpu-{os.getpid()}"
    build(engine, tmp_path_factory.mktemp("gpu"), f"FROM {cpu_image}\n{lines}", tag)
    yield {"cpu": cpu_image, "gpu": tag}
    engine.client.images.remove(tag, force=True)


def build(engine: Engine, folder: Path, dockerfile: str, tag: str) -> None:
    (folder / "Dockerfile").write_text(dockerfile)
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (tag,)))


def messages(
    engine: Engine, image: str, kind: str, folder: Path, *checks: Check, locked: str = "cpu"
) -> list[str]:
    """What these checks say of an image. locked: the target whose packages it has."""
    short, suite = Workload(steps=200, batch=16, checkpoint_every=20), Suite(TRAINER.name, checks)
    receipt = proven(
        engine, image, TARGETS[kind], folder, suite, locked=locked, base="cpu", workload=short
    )
    return [problem.message for problem in receipt.problems]


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
        first = [CHECKS["training"]] if row.check == "outputs" else []
        checks = (*first, CHECKS[row.check])
        judged(row, messages(engine, tag, row.kind, tmp_path / "proof", *checks))
    finally:
        engine.client.images.remove(tag, force=True)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("cpu_image")
def test_prove_says_nothing_against_the_good_image() -> None:
    result = CliRunner().invoke(app, ["prove", "cpu", "--json"])
    assert result.stdout, result.exception
    status = {answer["status"] for answer in json.loads(result.stdout)["checks"]}
    assert status == {"passed", "not there"}


def with_libraries(
    engine: Engine, good: str, folder: Path, change: Callable[[Image], object], lines: str
) -> list[str]:
    """What the check `loader` says of the good image with stand-ins of CUDA's libraries."""
    image, tag = Image(folder / "image"), f"broken-test:{os.getpid()}"
    change(image)
    build(engine, folder, f"FROM {good}\nUSER 0\nCOPY image /\n{lines}\nUSER 1000:1000\n", tag)
    try:
        return messages(engine, tag, "gpu", folder / "proof", CHECKS["loader"], locked="v100")
    finally:
        engine.client.images.remove(tag, force=True)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
def test_the_stand_ins_of_cudas_libraries_pass(
    engine: Engine, good: dict[str, str], tmp_path: Path
) -> None:
    assert with_libraries(engine, good["gpu"], tmp_path, lambda _: None, "") == []


@pytest.mark.parametrize("row", FOLDERS, ids=lambda row: row.name)
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
def test_a_broken_library_is_refused(
    engine: Engine, good: dict[str, str], tmp_path: Path, row: Breakage
) -> None:
    assert row.change is not None
    judged(row, with_libraries(engine, good["gpu"], tmp_path, row.change, row.lines))


@pytest.mark.long
def test_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(TABLE) >= 50
    if len(SCORE) == len(TABLE):  # not where an engine's tests were left out
        refused = sum(SCORE.values())
        with capsys.disabled():
            sys.stdout.write(f"\nexaminer's images refused: {refused} of {len(TABLE)}\n")
        assert refused >= ENOUGH
