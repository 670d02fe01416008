"""docs/from-the-post.md: the way of the post, with the commands of today."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from builder.engine import Engine
from tests import ROOT
from tests.commands import team
from tests.pages import Command, commands, run, shell
from tests.registry.server import RegistryServer

PAGE = ROOT / "docs/from-the-post.md"
BOARD = "builder tensorboard"

pytestmark = pytest.mark.tensorflow


def follow(repository: Path, chosen: list[Command]) -> None:
    """Run the commands; TensorBoard until it shows a run."""
    for command in chosen:
        if command.text.startswith(BOARD):
            look(repository, command.text)
        else:
            upload = command.text.replace("--upload gs://my-bucket", "--upload bucket")
            run(repository, [Command(upload, command.printed)])
    made = {path.name: path.read_bytes() for path in (repository / "records").iterdir()}
    assert made == {p.name: p.read_bytes() for p in (repository / "bucket/records").iterdir()}


def look(repository: Path, command: str) -> None:
    """Start TensorBoard, and ask it for the runs that it shows."""
    with subprocess.Popen(
        command.split(), cwd=repository, env=shell(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as board:  # fmt: skip
        try:
            assert board.stdout
            addresses = (re.search(r"http://\S+", line) for line in board.stdout)
            address = next(found[0] for found in addresses if found)
            with urllib.request.urlopen(f"{address.rstrip('/')}/data/runs", timeout=60) as answer:
                assert b"train" in answer.read()
        finally:
            board.terminate()
            board.wait(60)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
def test_every_command(tmp_path: Path, engine: Engine, registry_server: RegistryServer) -> None:
    with team(tmp_path / "post", "cpu", engine) as root:
        shutil.copytree(ROOT / "images/v100", root / "images/v100")
        (root / "jobs").mkdir()
        follow(root, [*commands(PAGE, HOST=registry_server.host)])
