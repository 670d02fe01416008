"""Files that are written whole, and locks between processes."""

import base64
import json
import os
import subprocess
import sys
import textwrap
import threading
import tomllib
from pathlib import Path

import pytest

from builder.core import files, settings
from builder.core.errors import InputError
from builder.pipeline import records
from builder.trust import keys


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "file"
    files.write(path, "one")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one", 0o644)
    path.chmod(0o755)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "replace", full)
        files.write(path, "two")
    with pytest.raises(ValueError), files.replacing(path) as file:
        file.write(b"half")
        raise ValueError
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]
    files.write(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o755)


def test_what_is_no_regular_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.write(pipe, "text")
    reader.join(10)
    assert read == ["text"] and pipe.is_fifo()


def test_a_lock_makes_other_processes_wait_or_fail_at_once(tmp_path: Path) -> None:
    path = tmp_path / "folder/lock"
    program = "import pathlib\nfrom builder.core import files\n"
    program += f"with files.locked(pathlib.Path({str(path)!r})): print('in')"
    with files.locked(path):
        root = Path(__file__).resolve().parents[2]
        other = subprocess.Popen(
            [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        with pytest.raises(BlockingIOError), files.locked(path, wait=False):
            pass
    assert other.communicate(timeout=30)[0] == "in\n"
    with files.locked(path, wait=False):
        pass


def test_what_is_nested_too_deeply_is_no_data_and_no_bug_of_ours(tmp_path: Path) -> None:
    """Each reader of a file says so in its own words."""
    deep = "[" * 100_000
    for parse in (json.loads, tomllib.loads):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting|Invalid"):
            files.parsed(parse, f"a = {deep}" if parse is tomllib.loads else deep)
    key = tmp_path / "deep.key"
    sealed = textwrap.fill(base64.b64encode(deep.encode()).decode(), 64)
    key.write_text(
        f"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n{sealed}\n"
        "-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n"
    )
    with pytest.raises(InputError, match="no private key that the factory reads"):
        keys.read_private(str(key))
    (tmp_path / "builder.toml").write_text(f"registry = {deep}")
    with pytest.raises(InputError, match=r"builder\.toml:\d+: not TOML: it is nested too deeply"):
        settings.load(tmp_path)
    record = records.folder(tmp_path, "v100") / records.RECORD
    record.parent.mkdir(parents=True)
    for text in (deep, '"x"', "[]"):
        record.write_text(text)
        assert records.read(tmp_path, "v100") is None


def test_what_is_appended_comes_behind_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.md"
    files.append(path, "é\n")
    files.append(path, "b\n")
    assert path.read_text("utf-8") == "é\nb\n"
