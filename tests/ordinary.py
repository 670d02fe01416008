"""An ordinary user for a test: another uid, an own HOME, a clean clone; no sudo, no apt, no root.

A test that runs as root takes a uid that nobody has. A test that does not is ordinary already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests import ROOT

UID: Final = 54_321
"""Of the user, and of the user's only group."""

_OURS: Final = ("HOME", "USER", "LOGNAME", "PATH", "PYTHONPATH", "XDG_", "DOCKER_", "BUILDER_")
"""Variables of whoever runs the tests that say nothing of the machine."""


@dataclass(frozen=True)
class User:
    """The user, with a clean clone of the project in `home`."""

    home: Path
    python: str
    environment: Mapping[str, str]

    @property
    def clone(self) -> Path:
        return self.home / "project"

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the clone."""
        return subprocess.run(
            words,
            cwd=self.clone,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            **identity(),
        )

    def builder(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The clone's own command line."""
        return self.run(self.python, "-m", "builder", *words, **environment)


def owns(folder: Path) -> None:
    """Give the folders below one to the user; the files stay whose they are."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                os.chown(path, UID, UID)


@contextmanager
def home() -> Iterator[Path]:
    """An empty home of the user, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ordinary-"))
    try:
        owns(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def user() -> Iterator[User]:
    """The user; the home is gone afterwards. Skips where this machine does not let one be."""
    with home() as folder:
        programs = folder / "bin"
        programs.mkdir()
        (programs / "git").symlink_to(str(shutil.which("git")))
        site = sysconfig.get_path("purelib")
        known = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
        own = {"HOME": str(folder), "PATH": str(programs), "PYTHONPATH": site}
        _cloned(folder / "project")
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, UID, UID, follow_symlinks=False)
        needed = "typer, pydantic, docker"
        yield User(folder, python(folder, {**known, **own}, needed), {**known, **own})


def identity() -> dict[str, Any]:
    """Return who a process of the user is, for subprocess.run."""
    return {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}


def python(home: Path, environment: Mapping[str, str], modules: str = "sys") -> str:
    """Return a Python that the user may start, and that can import modules.

    That of the tests may lie in root's own home; the system's then does the same.
    """
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{ours}", f"/usr/local/bin/{ours}"):
        try:
            done = subprocess.run(
                [path, "-c", f"import {modules}"],
                cwd=home, env=environment, capture_output=True, check=False, **identity(),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0:
            return path
    pytest.skip(f"no {ours} on this machine that a user other than root may start")


def _cloned(folder: Path) -> None:
    """A clone of the project, with the changes that are not committed yet."""
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", ROOT, folder], check=True)
    changed = subprocess.run(
        ["git", "diff", "HEAD", "--name-only", "--no-renames", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, changed.split("\0")):
        (folder / name).unlink(missing_ok=True)
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
