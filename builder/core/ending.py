"""How a program starts and ends: streams, signals, an error as lines and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.core.errors import FactoryError, OutsideError

Told = tuple[int, list[str]]
"""An exit code, and the lines that tell a person of an error."""


def explained(
    error: Exception,
    known: Callable[[Exception], FactoryError | None] = lambda _: None,
    bug: str = "this is a bug",
) -> Told:
    """Return what is told of an error. known: what an error of another kind means. bug: what a
    fault of the program is called."""
    from builder.core.display import Lines, line
    from builder.core.errors import FactoryError

    ours = error if isinstance(error, FactoryError) else known(error) or _refusal(error)
    if ours is None:
        return 1, [f"error: {type(error).__name__}: {error}", f"fix:   {bug}"]
    log = [f"    {each}" for each in getattr(ours, "log", ())]  # of a failed step of a build
    fixes = [f"fix:   {line(ours.fix)}"] if ours.fix else []
    message = ours.message if isinstance(ours.message, Lines) else line(ours.message)
    return ours.exit_code, [*log, f"error: {message}", *fixes]


def run(program: Callable[[], object], tell: Callable[[Exception], Told] = explained) -> NoReturn:
    """Run a program, and end the process. An error becomes lines on stderr and an exit code."""
    _prepare_streams()
    signal.signal(signal.SIGTERM, _stop)
    try:
        try:
            program()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # typer calls that 1
                raise end.__context__ from None
            sys.stdout.flush()
            raise
    except _Terminated:
        _leave(128 + signal.SIGTERM, "stopped")
    except KeyboardInterrupt:
        _leave(128 + signal.SIGINT, "stopped")
    except BrokenPipeError:
        _leave(141)
    except Exception as error:
        code, lines = tell(error)
        _leave(code, *lines)
    _leave(0)


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def _stop(*_: object) -> NoReturn:
    """End by a signal as by Ctrl-C: whatever has something to remove removes it."""
    raise _Terminated


def _refusal(error: Exception) -> OutsideError | None:
    """Return what the operating system refused; None for a fault of the factory."""
    from pathlib import Path

    from builder.core import files
    from builder.core.errors import OutsideError, refusal

    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        name = error.object.encode(errors="backslashreplace").decode()
        fix = "give the file or folder another name"
        return OutsideError(f"{name}: the name is not UTF-8", fix)
    try:
        Path.cwd()
    except FileNotFoundError:
        return OutsideError("the shell's folder is gone", "cd to a folder that is there")
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    where = f"standard output, the temporary folder, or the cache {files.cache_home()}"
    return refusal(error, where if full else "") if isinstance(error, OSError) else None


def _prepare_streams() -> None:
    """Give the process the standard streams that it was started without."""
    while (free := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(free)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name may be no text
            stream.reconfigure(errors="backslashreplace")


def _leave(code: int, *lines: str) -> NoReturn:
    """End with these lines on stderr. A stream that takes nothing more changes no exit code."""
    text = ""
    if lines:
        from builder.core.display import masked, plain

        text = "".join(f"{plain(masked(line))}\n" for line in lines)
    for stream, last in ((sys.stdout, ""), (sys.stderr, text)):
        try:
            stream.write(last)
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
