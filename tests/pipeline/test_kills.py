"""Whatever ends a command, and whenever: the next run makes the same, and nothing is left behind.

KILLS says how often, 10 by default: `make test-long KILLS=50`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core import files
from builder.engine import Engine, containers
from builder.prove import receipts
from tests import commands
from tests.registry import server as registry_server

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow, pytest.mark.long]

KILLS = int(os.environ.get("KILLS", "10"))
TARGET = "killed"
SECONDS = {"lock": 4.0, "base": 40.0, "image": 60.0, "push": 3.0}
"""Commands, and how long each takes about."""
LATEST = 15.0
"""Seconds after a signal until a command ends: 5 where nothing else runs."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture
def project(tmp_path: Path, engine: Engine) -> Iterator[Path]:
    with commands.team(tmp_path / "project", TARGET, engine) as root:
        yield root


def run(root: Path, words: list[str], home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*commands.COMMAND, *words], cwd=root, env=commands.environment(TMPDIR=str(home)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def left(engine: Engine, home: Path) -> list[str]:
    """What ended commands left on the engine, in the cache and in the temporary folder."""
    api: Any = engine.client.api
    mine = {"filters": {"label": [containers.OWNER]}}
    things = [*api.containers(all=True, **mine), *api.images(**mine), *api.networks(**mine)]
    dead = [t for t in things if containers.is_gone((t["Labels"] or {}).get(containers.OWNER, ""))]
    names = [path.name for path in (files.cache_home() / "layers").glob(".new.*")]
    return [str(thing["Id"]) for thing in dead] + names + [path.name for path in home.iterdir()]


def test_killed_at_random_it_is_the_same_and_nothing_is_left(
    project: Path, engine: Engine, tmp_path: Path
) -> None:
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    with registry_server.registry(tmp_path / "registry") as server:
        where = f"{server.host}/killed/training"
        words = {
            "lock": ["lock", TARGET],
            "base": ["build", TARGET, "--base-only", "--no-cache"],
            "image": ["image", TARGET],
            "push": ["push", TARGET, "--registry", where, "--json"],
        }

        def whole() -> tuple[str, dict[str, bytes]]:
            """Run each command to its end; return the digest, and the files of the lock."""
            for name in ("lock", "image", "push"):
                process = run(project, words[name], home)
                out, err = process.communicate(timeout=600)
                assert process.returncode == 0, err.decode()
            locks = {path.name: path.read_bytes() for path in (project / "images").rglob("*.lock")}
            return json.loads(out)[0]["digest"], locks

        first = whole()
        chance, ended = random.Random(KILLS), []
        for number in range(KILLS):
            name, kind = chance.choice(list(words)), SIGNALS[number % len(SIGNALS)]
            for receipt in (project / "build").rglob(receipts.FILE):
                if name == "image":
                    receipt.unlink()  # so that it proves again
            process = run(project, words[name], home)
            try:
                process.communicate(timeout=chance.uniform(0.2, SECONDS[name]))
            except subprocess.TimeoutExpired:
                process.send_signal(kind)
                began = time.monotonic()
                _, err = process.communicate(timeout=60)
                seconds = round(time.monotonic() - began, 1)
                ended.append((name, kind.name, seconds))
                assert seconds < LATEST, ended
                assert b"Traceback" not in err, (name, kind, err.decode())
            if kind != signal.SIGKILL:
                assert left(engine, home) == [], (number, name, kind)
            else:  # the next run removes what it left
                shutil.rmtree(home)
                home.mkdir()
                run(project, words[name], home).communicate(timeout=600)
        sys.stderr.write(f"{KILLS} rounds, ended before their end: {ended}\n")
        assert whole() == first, ended
        assert left(engine, home) == []
