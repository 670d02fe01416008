"""For tests: the command line in a process of its own, and a team's repository to call it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.engine import Engine
from tests import ROOT
from tests.engine.tags import tags

COMMAND = (sys.executable, "-m", "builder")
_PATH = os.pathsep.join([str(ROOT), str(ROOT / "packages" / "cloudbuild-local")])


def environment(**more: str) -> dict[str, str]:
    """Return the environment in which COMMAND is this tree's."""
    return {**os.environ, "PYTHONPATH": _PATH, **more}


def builder(
    *words: str, root: Path = ROOT, check: bool = False, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in `root`. check: it has to succeed. more: variables."""
    done = subprocess.run(
        [*COMMAND, *words], cwd=root, env=environment(**more), capture_output=True, text=True
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def git(folder: Path, *words: str) -> str:
    """Run git in `folder`, as somebody; its output."""
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def team(root: Path, target: str, engine: Engine) -> Iterator[Path]:
    """Make a repository of a team's own: a target on the CPU, the trainer, no templates.

    target: a name of its own, so that no tag of the person whose engine this is moves. Its images
    are removed afterwards.
    """
    shutil.copytree(ROOT / "trainer", root / "trainer")
    shutil.copytree(ROOT / "images" / "cpu", root / "images" / target)
    for lock in (ROOT / "images").glob("*.lock"):
        shutil.copy(lock, root / "images")
    (root / "builder.toml").touch()
    builder("render", root=root, check=True)
    yield root
    for name in tags(engine):
        if target in name:
            engine.client.images.remove(name)
