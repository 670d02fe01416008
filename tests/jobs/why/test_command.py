"""`builder job why` on the command line: what it shows, its JSON, its exit codes."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from builder.core import project
from tests.conftest import Run
from tests.jobs import jobfiles
from tests.shown import shown

LOG = "step 1 of 9\nE  ran into trouble\nOOM when allocating tensor with shape[64]\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: Run) -> Run:
    """Run `builder job why` in a project."""
    (tmp_path / project.MARKER).write_text("")
    monkeypatch.chdir(tmp_path)
    return functools.partial(builder, "job", "why")


def test_it_tells_what_happened_the_line_and_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    assert shown(run("--log", "train.log")) == snapshot("""\
| train.log: device-memory
| Probably: The GPU's or TPU's memory was too small for a step.
|   train.log:3: OOM when allocating tensor with shape[64]
| To do: Make the batch smaller (--batch-size), use mixed precision, or take an
| .. accelerator with
| more memory. JAX takes 75% of a GPU's memory when it starts; where another process
| .. has the rest,
| XLA_PYTHON_CLIENT_PREALLOCATE=false takes only what is used.
| The same job ends the same way again.
| More: https://github.com/tensorflow/models/issues/5527
""")
    diagnosis = json.loads(run("--log", "train.log", "--json")[1])
    assert [diagnosis[name] for name in ("ending", "known", "again")] == [
        *("device-memory", True, "no"),
    ]
    words = {"text": "OOM when allocating tensor with shape[64]", "where": "train.log:3"}
    assert diagnosis["evidence"] == [words]


def test_stdin_and_a_pipe_with_a_name_are_logs_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert run("--log", "-")[2].startswith("stdin: device-memory\n")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(LOG,))
    writer.start()
    code, _, err = run("--log", "pipe")
    writer.join()
    assert code == 0 and "device-memory" in err


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("x.log", "x.log:1: KeyError: 'label'"),
        ("empty.log", "holds no lines"),
        ("core", "core:1: \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_is_unknown_empty_or_no_text_is_said_to_be(
    name: str, shown: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.log").write_text("KeyError: 'label'\n")
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "core").write_bytes(bytes(range(128, 256)) * 100)
    code, out, err = run("--log", name, "--json")
    assert code == 0 and json.loads(out)["known"] is False
    assert f"{name}: unknown" in err and shown in err


def test_escapes_of_a_log_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2JNo space\x1b[31m left on device\u202e\x9b0m\n"
    (tmp_path / "x.log").write_text(evil, encoding="utf-8")
    code, out, err = run("--log", "x.log", "--json")
    assert code == 0 and "x.log:1: No space left on device\n" in err
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(out + err)


@pytest.mark.parametrize("name", ["missing.log", "folder", "bad\x1bname"])
def test_what_is_no_log_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    code, out, err = run("--log", name)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "fix:   name a log" in err and "\x1b" not in err


def test_a_job_of_this_machine_by_its_name(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "build/jobs/cats/local"
    jobfiles.ran(folder.parent, "failed")
    (folder / "chief-0.log").write_text("2026-11-21T07:00:01+00:00 No space left on device\n")
    for words in ((), ("cats", "--log", "x.log")):
        code, _, err = run(*words)
        assert code == 2 and "name a job or a log" in err
    code, out, err = run("cats", "--json")
    assert code == 0 and err.startswith("cats: disk-full\n")
    assert "  chief-0, 2026-11-21 07:00:01 UTC: No space left on device\n" in err
    assert json.loads(out)["job"] == "cats"
