"""What only Linux has, and what stands in for it elsewhere."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core import system
from tests import clock

HERE, ELSEWHERE = pytest.param(True, id="linux"), pytest.param(False, id="elsewhere")


@pytest.mark.parametrize("linux", [HERE, ELSEWHERE])
def test_a_child_reads_what_it_is_handed_and_nothing_is_left(
    linux: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "LINUX", linux)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with system.secret_files({"a": b"first", "b": b"second"}) as (paths, descriptors):
        done = subprocess.run(
            ["cat", *paths.values()],
            pass_fds=descriptors,
            capture_output=True,
            check=True,
        )
        assert done.stdout == b"firstsecond"
        on_disk = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(on_disk) == (0 if linux else 2)
        for path in on_disk:
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("linux", [HERE, ELSEWHERE] if shutil.which("ps") else [HERE])
def test_a_process_is_known_by_its_start(linux: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LINUX", linux)
    mine = system.started(os.getpid())
    assert mine != "0" and mine == system.started(os.getpid())
    assert ":" not in mine, "an owner's label is HOST:PID:START"
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert system.started(ended.pid) == "0"


def test_a_child_ends_with_its_parent() -> None:
    parent = (
        "import subprocess, os, signal\n"
        "from builder.core import system\n"
        "command = system.ending_with_parent(['sh', '-c', 'echo begun; exec sleep 60'])\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    printed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True).stdout
    pid = int(printed)
    try:
        clock.until(lambda: _has_ended(pid))
    finally:
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or a zombie."""
    if system.started(pid) == "0":
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
