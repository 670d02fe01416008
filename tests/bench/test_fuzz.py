"""A few cases of each kind; `make test-long` runs others for as long as LONG_SECONDS says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import environments, fuzz
from builder.core.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_no_case_fails(kind: str) -> None:
    cases = 1 if kind == "environments" else 20  # the one starts a process
    assert fuzz.run(kind, 0, cases) == cases


def test_the_program_says_what_it_ran() -> None:
    command = [sys.executable, "-m", "bench.fuzz", "answers", "headers", "--cases", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(",")[0] for line in done.stdout.splitlines()] == [
        "answers: 3 cases, none failed",
        "headers: 3 cases, none failed",
    ]


@pytest.mark.parametrize(
    ("raised", "said"),
    [(KeyError("x"), "KeyError"), (AssertionError("hole: native"), "hole: native")],
)
def test_a_case_that_fails_is_named(
    raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int) -> None:
        if number == 7:
            raise raised
        raise InputError("the factory's own")

    monkeypatch.setitem(fuzz.KINDS, "answers", fails)
    with pytest.raises(AssertionError, match=rf"answers 7: .*{said}"):
        fuzz.run("answers", 5, 10)
    assert fuzz.run("answers", 8, 10) == 10


def test_a_case_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(number: int) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    monkeypatch.setitem(fuzz.KINDS, "answers", hangs)
    with pytest.raises(AssertionError, match=r"answers 0: .*more than 0.1 s"):
        fuzz.run("answers", 0, 1)


def test_a_command_that_writes_outside_its_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "VARIABLES", ("TZ", "TERM", "NO_COLOR", "A", "B", "C"))
    target = tmp_path / "prover.key"
    words = ("sign", "key", str(target), "--no-password")
    monkeypatch.setattr(environments, "COMMANDS", (words,))
    with pytest.raises(AssertionError, match=f"wrote {target}"):
        environments.environments(0)


def test_a_password_that_is_shown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "PASSWORD", "the targets")
    monkeypatch.setattr(environments, "COMMANDS", (("--help",),))
    with pytest.raises(AssertionError):
        environments.environments(0)
