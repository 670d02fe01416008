"""Files that are written whole, and locks between processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builder.core import files


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "file"
    files.write(path, "one")
    assert path.read_text() == "one"
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o755)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, "two")
    monkeypatch.undo()
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]
    files.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_lock_makes_other_processes_wait(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = "import pathlib\nfrom builder.core import files\n"
    program += f"with files.locked(pathlib.Path({str(path)!r})): print('in')"
    with files.locked(path):
        root = Path(__file__).resolve().parents[2]
        other = subprocess.Popen(
            [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=30)[0] == "in\n"


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(path, "one")
    with pytest.raises(ValueError), files.replacing(path) as file:
        file.write(b"half")
        raise ValueError
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_regular_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.write(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_lock_that_is_held_raises_at_once_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "folder/lock"
    with files.locked(path), pytest.raises(BlockingIOError), files.locked(path, wait=False):
        pass
    with files.locked(path, wait=False):
        pass
