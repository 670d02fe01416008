"""Audit and prune from a command line, with nothing but Python.

    python -m builder.devicecode audit PATH... --gpu 7.0 [--json]
    python -m builder.devicecode prune FOLDER --keep 7.0 [--only tensorflow|all]

Inside an image build the folder runs on its own: `python /path/to/devicecode prune ...`.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import TextIO

if not __package__:  # run as a folder: run it again as a package, so that relative imports work
    here = Path(__file__).resolve().parent
    sys.path[:1] = []
    sys.path.append(str(here.parent))
    runpy.run_module(here.name, run_name="__main__", alter_sys=True)

from . import pruning
from .errors import CheckFailed, InputError
from .rule import compute_capability
from .verdict import Status, as_dict, audit


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code (2 usage, 4 a check that did not pass)."""
    parser = argparse.ArgumentParser(prog="devicecode", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("audit", help="what libraries carry, and for which GPU")
    command.add_argument("paths", nargs="+", type=Path, help="folders, wheels or libraries")
    command.add_argument("--gpu", action="append", required=True, help="compute capability: 7.0")
    command.add_argument("--json", action="store_true", help="as data, on stdout")
    command = commands.add_parser("prune", help="take out what one GPU can't run")
    command.add_argument("folder", type=Path, help="where the packages are installed")
    command.add_argument("--keep", required=True, help="compute capability of the GPU: 7.0")
    command.add_argument("--only", default=pruning.TENSORFLOW, choices=sorted(pruning.OWNERS))
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "audit":
            return _audit(chosen)
        return _prune(chosen)
    except (CheckFailed, InputError) as error:
        _say(f"error: {error.message}", f"fix:   {error.fix}", to=sys.stderr)
        return error.exit_code
    except OSError as error:
        _say(f"error: {error}", "fix:   nothing was changed in that library", to=sys.stderr)
        return 3


def _audit(chosen: argparse.Namespace) -> int:
    devices = [compute_capability(text) for text in chosen.gpu]
    found = audit(chosen.paths)
    verdicts = [found.verdict(device) for device in devices]
    if chosen.json:
        _say(json.dumps(as_dict(found, devices), indent=2))
    else:
        for verdict in verdicts:
            for finding in verdict.findings:
                if finding.status != Status.NO_DEVICE_CODE:
                    _say(f"{verdict.device}  {finding.library.name:<42} {finding}")
            _say(str(verdict), *([f"instead: {verdict.instead}"] if verdict.instead else []))
    return 0 if all(verdict.runs for verdict in verdicts) else CheckFailed.exit_code


def _prune(chosen: argparse.Namespace) -> int:
    device = compute_capability(chosen.keep)
    if chosen.only == pruning.ALL:
        _say(f"note: {pruning.EULA}")

    def tell(pruned: pruning.Pruned) -> None:
        _say(
            f"{pruned.path}: {pruned.entries_kept:,} entries kept, {pruned.entries_gone:,} gone "
            f"({pruned.bytes_gone / 1e6:,.1f} MB of {pruned.size / 1e6:,.1f} MB zeroed)"
        )

    done = pruning.prune(chosen.folder, device, chosen.only, tell)
    if not done:
        raise InputError(
            f"{chosen.folder}: no library with device code below {chosen.only}'s folders",
            "name the site-packages folder that the packages were installed into",
        )
    _say(
        f"kept for {device}: {sum(p.changed for p in done)} of {len(done)} libraries changed, "
        f"{sum(p.bytes_gone for p in done) / 1e6:,.0f} MB zeroed"
    )
    return 0


def _say(*lines: str, to: TextIO | None = None) -> None:
    (to or sys.stdout).write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
