"""Prune installed libraries from a command line, with nothing but Python.

python /path/to/pruning prune FOLDER --keep 7.0 [--only tensorflow|all]
python -m builder.devicecode.pruning prune FOLDER --keep 7.0
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

if not __package__:  # run as a folder: run it again as a package, so that relative imports work
    here = Path(__file__).resolve().parent
    sys.path[:1] = []
    sys.path.append(str(here.parent))
    runpy.run_module(here.name, run_name="__main__", alter_sys=True)

from . import prune
from .errors import CheckFailed, InputError
from .rule import compute_capability


def main(arguments: list[str] | None = None) -> int:
    """Prune; returns the exit code."""
    parser = argparse.ArgumentParser(prog="pruning", description=__doc__.splitlines()[0])
    add_to(parser.add_subparsers(dest="command", required=True))
    chosen = parser.parse_args(arguments)
    return ended(lambda: run(chosen))


def ended(command: Callable[[], int]) -> int:
    """The exit code of a command; an error of its is told on stderr.

    2 for a wrong usage, 3 for a refusal of the disk, 4 for a library that came out wrong or a check
    that did not pass.
    """
    try:
        return command()
    except (CheckFailed, InputError) as error:
        say(f"error: {error.message}", f"fix:   {error.fix}", to=sys.stderr)
        return error.exit_code
    except OSError as error:
        say(f"error: {error}", "fix:   nothing was changed in that library", to=sys.stderr)
        return 3


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `prune` to a parser's commands."""
    command = commands.add_parser("prune", help="take out what one GPU can't run")
    command.add_argument("folder", type=Path, help="where the packages are installed")
    command.add_argument("--keep", required=True, help="compute capability of the GPU: 7.0")
    command.add_argument("--only", default=prune.TENSORFLOW, choices=sorted(prune.OWNERS))


def run(chosen: argparse.Namespace) -> int:
    """Prune as `add_to` parsed it. Raises InputError, Malformed, CheckFailed, OSError."""
    folder, only = chosen.folder, chosen.only
    device = compute_capability(chosen.keep)
    if only == prune.ALL:
        say(f"note: {prune.EULA}")

    def tell(pruned: prune.Pruned) -> None:
        say(
            f"{pruned.path}: {pruned.entries_kept:,} entries kept, {pruned.entries_gone:,} gone "
            f"({pruned.bytes_gone / 1e6:,.1f} MB of {pruned.size / 1e6:,.1f} MB zeroed)"
        )

    done = prune.prune(folder, device, only, tell)
    if not done:
        raise InputError(
            f"{folder}: no library with device code below {only}'s folders",
            "name the site-packages folder that the packages were installed into",
        )
    say(
        f"kept for {device}: {sum(p.changed for p in done)} of {len(done)} libraries changed, "
        f"{sum(p.bytes_gone for p in done) / 1e6:,.0f} MB zeroed"
    )
    return 0


def say(*lines: str, to: TextIO | None = None) -> None:
    """Write lines to stdout, or to another stream."""
    (to or sys.stdout).write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
