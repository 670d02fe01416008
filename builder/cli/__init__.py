"""The command line: each command parses, calls one function and prints. No logic stands here.

A command's module is imported when the command is called, and typer when any is. So `builder
--help` takes what Python itself takes.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.core.errors import OutsideError

HELP: Final = """Usage: builder [OPTIONS] COMMAND [ARGS]...

From one small file per accelerator to a proven training image.

The steps of an image, each a command:

  images/v100/image.yaml     what you write, about ten lines    builder schema, explain
    -> lock                  every version and hash             builder lock
    -> render                a plain Dockerfile, committed      builder render
    -> build                 base, layer by layer, and image    builder build, show base
    -> smoke                 loader check, real training run    builder smoke
    -> push                  by digest, with its receipt        builder push, verify, promote

`builder image v100` builds and proves in one go. It does nothing when nothing changed.

Options:
  --debug               Show the traceback of an error.
  -v, --verbose         Show every line of output.
  -q, --quiet           Show results and errors only.
  --install-completion  Install completion for the current shell; --show-completion shows it.
  --version             Show the factory's version.
  -h, --help            Show this page, or a command's.
"""

COMMANDS: Final = {
    "init": "inputs:init",
    "image": "images:image",
    "build": "images:build",
    "smoke": "images:smoke",
    "push": "registry:push",
    "verify": "registry:verify",
    "rebuild": "registry:rebuild",
    "promote": "registry:promote",
    "lock": "inputs:lock",
    "render": "inputs:render",
    "audit": "audit:audit",
    "prove": "audit:prove",
    "report": "audit:report",
    "explain": "inputs:explain",
    "check": "inputs:check",
    "schema": "inputs:schema",
    "list": "images:list_targets",
    "tensorboard": "job:tensorboard",
    "doctor": "machine:doctor",
    "cache": "machine:cache",
    "show": "images:show_app",
    "engine": "machine:engine_app",
    "cloud": "cloud:cloud_app",
    "job": "job:job_app",
    "sign": "registry:sign_app",
}
"""By its name: where a command or a group of commands is, MODULE:NAME."""


def page() -> str:
    """Return what `builder --help` shows."""
    width = max(map(len, COMMANDS))
    rows = (f"  {name:<{width}}  {summary(place)}" for name, place in COMMANDS.items())
    return "\n".join([HELP, "Commands:", *rows, ""])


def summary(place: str) -> str:
    """Return the first sentence of a command's help, from the text of its module: an import of all
    of them would take longer than everything else."""
    module, _, name = place.partition(":")
    with io.open_code(f"{__path__[0]}/{module}.py") as file:
        text = file.read().decode()
    _, function, below = text.partition(f"\ndef {name}(")
    if function:
        sentence = below.partition('"""')[2].partition("\n")[0]
    else:
        group = text.partition(f"\n{name} = typer.Typer(")[2]
        sentence = group.partition('help="')[2].partition('"')[0]
    return sentence.removesuffix('"""').partition(". ")[0].removesuffix(".") + "."


# --- errors ---------------------------------------------------------------------------------------


def main(program: Callable[[], object] | None = None) -> NoReturn:
    """Run the command line, or another program. An error becomes two lines and an exit code."""
    gc.set_threshold(100_000)  # imports make many objects, and hardly any garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would look into every package
    _prepare_streams()
    signal.signal(signal.SIGTERM, _stop)
    try:
        try:
            (program or _program())()
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
        code, lines = _explained(error)
        _leave(code, *lines)
    finally:
        gc.freeze()  # else Python looks through all objects again when it ends, for 40 ms
    _leave(0)


def _program() -> Callable[[], object]:
    """Return what carries out the arguments of this process."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        return lambda: sys.stdout.write(page()) and sys.stdout.flush()
    from builder.cli.group import app

    return app


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def _stop(*_: object) -> NoReturn:
    """End by a signal as by Ctrl-C: whatever has something to remove removes it."""
    raise _Terminated


def _explained(error: Exception) -> tuple[int, list[str]]:
    """Return the exit code of an error, and the lines that tell a person of it."""
    from builder.cli.common import OPTIONS
    from builder.core.display import Lines, line
    from builder.core.errors import FactoryError

    if OPTIONS.debug:
        import traceback

        return int(getattr(error, "exit_code", 1)), [traceback.format_exc().rstrip()]
    known = error if isinstance(error, FactoryError) else _refusal(error)
    if isinstance(error, ImportError):
        from builder.cli.extras import missing

        known = missing(error)
    if known is None:
        fix = "fix:   this is a bug in the factory; builder --debug shows where"
        return 1, [f"error: {type(error).__name__}: {error}", fix]
    log = [f"    {each}" for each in getattr(known, "log", ())]  # of a failed step of a build
    fixes = [f"fix:   {line(known.fix)}"] if known.fix else []
    message = known.message if isinstance(known.message, Lines) else line(known.message)
    return known.exit_code, [*log, f"error: {message}", *fixes]


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
