"""The command line as a whole: every command, what an error looks like, how numbers are shown."""

from __future__ import annotations

import errno
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from builder import __version__, cli
from builder.cli.common import OPTIONS, say, show
from builder.cli.console import Reporter
from builder.cli.group import app
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import StepDone, StepLog, StepStarted


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_a_help_that_begins_as_in_the_list_of_commands(command: str) -> None:
    answer = CliRunner().invoke(app, [command, "--help"], prog_name="builder")
    assert answer.exit_code == 0, answer.output
    assert answer.output.startswith(f"Usage: builder {command}")
    summary = cli.summary(cli.COMMANDS[command])
    help = answer.output.partition("\n\n")[2]
    assert " ".join(help.split()).startswith(summary.removesuffix(".")), answer.output
    assert len(summary) <= 90


def pages(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the help of a command and of those below it."""
    yield CliRunner().invoke(app, [*words, "--help"], prog_name="builder").output
    for name, below in getattr(command, "commands", {}).items():
        yield from pages(below, (*words, name))


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_option_is_explained_and_each_example_has_its_line(command: str) -> None:
    for page in pages(typer.main.get_command(app).get_command(None, command), (command,)):
        assert not re.search(r"(?m)^  -\S+( \S+)?\n  -", page), page
        assert not re.search(r"(?m)^  builder \w+ .* builder ", page), page


def test_the_help_imports_neither_a_command_nor_typer() -> None:
    program = (
        "import atexit, sys; from builder.cli import main; sys.argv = ['builder', '--help'];"
        "atexit.register(lambda: print(*sys.modules)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    modules = done.stdout.splitlines()[-1].split()
    ours = [name for name in modules if name.startswith("builder.")]
    assert ours == ["builder.core", "builder.core.ending", "builder.cli"]
    assert "typer" not in modules


def test_the_help_is_one_page_for_every_way_to_ask(
    builder: Callable[..., tuple[int, str, str]],
) -> None:
    (code, page, _), (_, again, _) = builder("--help"), builder("--debug", "--help")
    assert code == 0 and page.strip() == again.strip()
    for words in (
        *("--debug ", "-v, --verbose", "-q, --quiet", "--install-completion", "--version "),
        "-h, --help",
    ):
        assert f"\n  {words}" in page
    assert builder("--quiet", "--version") == (0, f"builder {__version__}\n", "")
    answer = CliRunner().invoke(app, ["promot"], prog_name="builder")
    assert answer.exit_code == 2 and "'promote'" in answer.output


def left(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run `builder` in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["builder", *words])
    for name in ("debug", "verbose", "quiet"):
        monkeypatch.setattr(OPTIONS, name, False)
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


FULL = "No space left on device"
BUG = "this is a bug in the factory; builder --debug shows where"
PLACES = "standard output, the temporary folder, or the cache /c/training-image-factory"
MISSING = "No usable temporary directory found in ['/tmp']"


@pytest.mark.parametrize(
    ("error", "code", "first", "fix"),
    [
        (InputError("it went wrong", "do this"), 2, "it went wrong", "do this"),
        (OutsideError("it went wrong", "do this"), 3, "it went wrong", "do this"),
        (CheckFailed("it went wrong", "do this"), 4, "it went wrong", "do this"),
        (OSError(errno.ENOSPC, FULL, "/a/b"), 3, f"/a/b: {FULL}", "free space"),
        (OSError(errno.ENOSPC, FULL), 3, f"{PLACES}: {FULL}", "free space"),
        (PermissionError(errno.EACCES, "Permission denied", b"/a"), 3, "/a: Permission denied",
         "let this user"),
        (OSError(errno.EBUSY, "Device or resource busy", "."), 3, ".: Device", "look what stands"),
        (FileNotFoundError(errno.ENOENT, MISSING), 3, MISSING, "free space"),
        (UnicodeEncodeError("utf-8", "/a/\udcff", 3, 4, "surrogates not allowed"), 3,
         "/a/\\udcff: the name is not UTF-8", "give the file"),
        (ssl.SSLError(1, "[SSL] a library's own number"), 1, "SSLError: ", BUG),
        (FileNotFoundError(2, "No such file", "/a"), 1, "FileNotFoundError: ", BUG),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero", BUG),
    ],
)  # fmt: skip
def test_an_error_is_two_lines_and_an_exit_code(
    error: Exception,
    code: int,
    first: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the system refuses is no fault of the factory; what is one shows where with --debug."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.setattr("builder.cli.images.root", Mock(side_effect=error))
    assert left(monkeypatch, "list") == code
    message, remedy = capsys.readouterr().err.splitlines()
    assert message.startswith(f"error: {first}") and remedy.startswith(f"fix:   {fix}")
    if code == 1:
        assert left(monkeypatch, "--debug", "list") == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.endswith(f"{type(error).__name__}: {error}")


def test_streams_that_take_nothing(project: Path) -> None:
    for streams, code, message in (
        (">/dev/full", 3, "No space left on device"),
        ("--no-such 2>/dev/full", 3, ""),
        ("<&- >&- 2>&-", 0, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m builder list --help {streams}"],
            cwd=project, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, "bug" in done.stderr) == (code, False), done.stderr
        assert message in done.stderr


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    command = ["sh", "-c", f"rmdir $PWD; {sys.executable} -m builder init"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "the shell's folder is gone" in done.stderr


def test_a_reader_that_went_away_ends_the_command_quietly(project: Path) -> None:
    taken, given = os.pipe()
    os.close(taken)
    command = [sys.executable, "-m", "builder", "--help"]
    done = subprocess.run(command, cwd=project, stdout=given, stderr=subprocess.PIPE, timeout=60)
    os.close(given)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The kernel names no file where a write fails; the file that was to be replaced is named."""
    program = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from pathlib import Path; from builder.core import errors, files\n"
        f"try: files.write(Path({str(tmp_path / 'one.json')!r}), bytes(1 << 20))\n"
        "except OSError as error: print(errors.refusal(error))"
    )
    limited = ["sh", "-c", f'ulimit -f 1; exec {sys.executable} -c "$0"', program]
    done = subprocess.run(limited, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/one.json: File too large"
    assert not list(tmp_path.iterdir())


def test_nothing_that_is_shown_holds_a_password_or_moves_the_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILDER_REGISTRY", "https://me:s3cret@host.example/\x1b[2Jx")
    for words in (["verify", "v100"], ["--debug", "verify", "v100"]):
        assert left(monkeypatch, *words) == 2
        printed = capsys.readouterr().err
        assert "***@host.example/" in printed
        assert "s3cret" not in printed and "\x1b" not in printed
    say("torn\x1b[2J.so")
    Reporter().line("torn\x1b[2J.so")
    show("lib\x1b[2J.so of https://me:hidden@host/x\x07")
    streams = capsys.readouterr()
    assert streams.err == "torn.so\ntorn.so\n"
    assert streams.out == "lib.so of https://***@host/x?\n"


@pytest.mark.parametrize(
    ("reporter", "lines"),
    [
        (Reporter(verbose=True), "  > build\n    compiling\n  = build  3.0 s\n"),
        (Reporter(quiet=True), ""),
    ],
)
def test_without_a_terminal_a_step_is_one_line_when_it_is_done(
    reporter: Reporter,
    lines: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = [StepStarted("build"), StepLog("build", "compiling"), StepDone("build", 3.0)]
    with Reporter() as shown:
        for event in events:
            shown.on_event(event)
        shown.on_event(StepDone("push", 0.2, error="refused"))
    assert capsys.readouterr().err == "  = build  3.0 s\n  x push  0.2 s  refused\n"
    with reporter as shown:
        for event in events:
            shown.on_event(event)
    assert capsys.readouterr().err == lines


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_its_own_code(number: signal.Signals, code: int) -> None:
    program = "print('up', flush=True) or time.sleep(60)"
    words = [
        sys.executable,
        "-c",
        f"import time; from builder.core import ending; ending.run(lambda: {program})",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert b"stopped" in process.stderr.read()
    assert process.returncode == code
