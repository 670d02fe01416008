"""The command line: each command parses, calls one function and prints. No logic stands here.

A command's module is imported when the command is called, and typer when any is. So `builder
--help` takes what Python itself takes.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from builder.core import ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.core.errors import FactoryError

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
    "slim": "audit:slim",
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

CHECKS: Final = (["lock", "--check"], ["render", "--check"])
"""Commands that files alone decide: one that held is not carried out before a file changes that it
read (builder/core/unchanged.py)."""


def page() -> str:
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


def main() -> NoReturn:
    """Run the command line. An error becomes two lines and an exit code."""
    gc.set_threshold(500_000)  # imports make many objects, and hardly any garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would look into every package
    try:
        ending.run(lambda: _program()(), _explained)
    finally:
        gc.freeze()  # else Python looks through all objects again when it ends, for 40 ms


def _program() -> Callable[[], object]:
    """Return what carries out the arguments of this process."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        return lambda: sys.stdout.write(page()) and sys.stdout.flush()
    if sys.argv[1:] in CHECKS:
        from builder.core import project, unchanged

        return lambda: unchanged.once(sys.argv[1], project.find_root(), _check)
    return _commands


def _commands() -> None:
    from builder.cli.group import app

    app()


def _check() -> None:
    from builder.cli import checks

    {"lock": checks.lock, "render": checks.render}[sys.argv[1]]()


def _explained(error: Exception) -> ending.Told:
    """Return the exit code of an error, and the lines that tell a person of it."""
    from builder.cli.common import OPTIONS

    if OPTIONS.debug:
        import traceback

        return int(getattr(error, "exit_code", 1)), [traceback.format_exc().rstrip()]
    return ending.explained(
        error, _missing, "this is a bug in the factory; builder --debug shows where"
    )


def _missing(error: Exception) -> FactoryError | None:
    """Return which extra an import lacks; None for another error."""
    if not isinstance(error, ImportError):
        return None
    from builder.cli.extras import missing

    return missing(error)
