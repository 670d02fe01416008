"""The engine that tests share: the machine's own, or the private one, started where it is not."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder import debian, engine
from builder.engine import Engine
from builder.settings import Settings

PROGRAMS = ("sh", "cat", "cp", "dd", "echo", "find", "ls", "mkdir", "sleep", "touch", "wc")


@pytest.fixture(scope="session", name="engine")
def connected() -> Engine:
    return engine.connect(Settings())


@pytest.fixture(scope="session")
def busybox() -> Path:
    """A program that runs without any library: the smallest root there is."""
    packages = debian.Packages(debian.host_suite())
    folder = debian.cache_home() / "busybox"
    with debian.locked(folder.parent / ".busybox.lock"):
        if not (folder / "bin/busybox").exists():
            debian.unpack(packages.download(packages.candidates(["busybox-static"])), folder)
    return folder / "bin/busybox"


@pytest.fixture
def context(tmp_path: Path, busybox: Path) -> Callable[..., Path]:
    """Makes a build's context: busybox as root.tar (all dates 1980), a Dockerfile, more files."""

    def make(dockerfile: str, files: dict[str, str] | None = None, name: str = "context") -> Path:
        folder = tmp_path / name
        root = tmp_path / f"{name}-root"
        for path in ("bin", "etc", "tmp", "dev", "proc", "sys", "run"):
            (root / path).mkdir(parents=True)
        (root / "bin/busybox").write_bytes(busybox.read_bytes())
        (root / "bin/busybox").chmod(0o755)
        for program in PROGRAMS:
            (root / "bin" / program).symlink_to("busybox")
        folder.mkdir()
        same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@315532800"]
        subprocess.run(["tar", *same, "-C", root, "-cf", folder / "root.tar", "."], check=True)
        (folder / "Dockerfile").write_text(f"FROM scratch\nADD root.tar /\n{dockerfile}")
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
        return folder

    return make
