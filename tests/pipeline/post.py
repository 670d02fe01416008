"""For tests: docs/from-the-post.md, the way of the post, with the commands of today."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

from tests import ROOT
from tests.pages import Command, commands, run, shell

PAGE = ROOT / "docs/from-the-post.md"
BOARD = "builder tensorboard"
PUSH = " --push"


def follow(repository: Path, **other: str) -> str:
    """Run every command of the page; TensorBoard until it shows a run. Return what the push
    printed. other: what stands in the place of a word."""
    sent = ""
    for command in commands(PAGE, **other):
        if command.text.startswith(BOARD):
            look(repository, command.text)
            continue
        upload = command.text.replace("--upload gs://my-bucket", "--upload bucket")
        (printed,) = run(repository, [Command(upload, command.printed)])
        sent += printed if command.text.endswith(PUSH) else ""
    made = {path.name: path.read_bytes() for path in (repository / "records").iterdir()}
    assert made == {p.name: p.read_bytes() for p in (repository / "bucket/records").iterdir()}
    return sent


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
