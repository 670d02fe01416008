"""The command line: each command parses, calls one function and prints. No logic stands here."""

import contextlib
import errno
import io
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from builder.cli import audit, images, inputs, machine, registry, tensorboard
from builder.cli.cloud import cloud_app
from builder.cli.common import OPTIONS
from builder.cli.job import job_app
from builder.cli.show import show_app
from builder.cli.sign import sign_app
from builder.core.display import masked, plain
from builder.core.errors import FactoryError, OutsideError, refusal

HELP = """From one small file per accelerator to a proven TensorFlow training image.

The steps of an image, each a command:

\b
  images/v100/image.yaml     what you write, about ten lines    builder schema, explain
    -> lock                  every version and hash             builder lock
    -> render                a plain Dockerfile, committed      builder render
    -> build                 base, layer by layer, and image    builder build, show base
    -> smoke                 loader check, real training run    builder smoke
    -> push                  by digest, with its receipt        builder push, verify, promote

`builder image v100` builds and proves in one go. It does nothing when nothing changed.
"""

app = typer.Typer(
    name="builder",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every line of output.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show results and errors only.")
    ] = False,
) -> None:
    OPTIONS.debug, OPTIONS.verbose, OPTIONS.quiet = debug, verbose, quiet


for command in (
    images.image,
    images.build,
    images.smoke,
    registry.push,
    registry.verify,
    registry.promote,
    inputs.lock,
    inputs.render,
    audit.audit,
    audit.report,
    inputs.explain,
    inputs.check,
    inputs.schema,
):
    app.command()(command)
app.command("list")(images.list_targets)
app.command()(tensorboard.tensorboard)
app.command()(machine.doctor)
app.command()(machine.cache)
app.add_typer(show_app, name="show")
app.add_typer(machine.engine_app, name="engine")
app.add_typer(cloud_app, name="cloud")
app.add_typer(job_app, name="job")
app.add_typer(sign_app, name="sign")


def main() -> NoReturn:
    """Run the command line. An error becomes two lines and an exit code."""
    _prepare_streams()
    try:
        try:
            app()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # typer calls that 1
                raise end.__context__ from None
            sys.stdout.flush()
            raise
    except KeyboardInterrupt:
        _leave(130, "stopped")
    except BrokenPipeError:
        _leave(141)
    except Exception as error:
        if OPTIONS.debug:
            _leave(getattr(error, "exit_code", 1), traceback.format_exc().rstrip())
        known = error if isinstance(error, FactoryError) else _refusal(error)
        if known is None:
            _leave(
                1,
                f"error: {type(error).__name__}: {error}",
                "fix:   this is a bug in the factory; builder --debug shows where",
            )
        log = [f"    {line}" for line in getattr(known, "log", ())]  # of a failed step of a build
        fix = [f"fix:   {known.fix}"] if known.fix else []
        _leave(known.exit_code, *log, f"error: {known.message}", *fix)
    _leave(0)


def _refusal(error: Exception) -> OutsideError | None:
    """What the operating system refused, wherever that was; None for a fault of the factory."""
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        name = error.object.encode(errors="backslashreplace").decode()
        return OutsideError(
            f"{name}: the name is not UTF-8", "give the file or folder another name"
        )
    if not isinstance(error, OSError):
        return None
    temporary = os.environ.get("TMPDIR", "/tmp")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return refusal(error, f"standard output, or the temporary folder {temporary}" if full else "")


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
    for stream, text in (
        (sys.stdout, ""),
        (sys.stderr, "".join(f"{plain(masked(line))}\n" for line in lines)),
    ):
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
