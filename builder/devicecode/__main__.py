"""Audit and prune from a command line, with nothing but Python.

python -m builder.devicecode audit SOURCE... --gpu 7.0 [--format text|json|github]
python -m builder.devicecode prune FOLDER --keep 7.0 [--only tensorflow|all]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import registry
from .inventory import Library
from .pruning import __main__ as pruning
from .pruning.errors import CheckFailed
from .pruning.rule import compute_capability
from .verdict import Audit, Support, Verdict, as_dict, audit


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code (2 usage, 4 a check that did not pass)."""
    parser = argparse.ArgumentParser(prog="devicecode", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    options = commands.add_parser("audit", help="what libraries carry, and for which GPU")
    options.add_argument(
        "sources",
        nargs="+",
        help="folders, wheels, libraries, image archives, OCI layouts, HOST/REPOSITORY:TAG",
    )
    options.add_argument("--gpu", action="append", required=True, help="compute capability: 7.0")
    options.add_argument("--format", choices=("text", "json", "github"), default="text")
    options.add_argument("--json", action="store_const", const="json", dest="format")
    pruning.add_to(commands)
    chosen = parser.parse_args(arguments)
    command = _audit if chosen.command == "audit" else pruning.run
    return pruning.ended(lambda: command(chosen))


def _audit(chosen: argparse.Namespace) -> int:
    devices = [compute_capability(text) for text in chosen.gpu]
    found = read(chosen.sources)
    verdicts = [found.verdict(device) for device in devices]
    if chosen.format == "json":
        pruning.say(json.dumps(as_dict(found, devices), indent=2))
    elif chosen.format == "github":
        pruning.say(*(line for verdict in verdicts for line in github_lines(verdict)))
    else:
        for verdict in verdicts:
            for finding in verdict.findings:
                if finding.status != Support.NO_DEVICE_CODE:
                    pruning.say(f"{verdict.device}  {finding.library.name:<42} {finding}")
            pruning.say(str(verdict), *([f"instead: {verdict.instead}"] if verdict.instead else []))
    return 0 if all(verdict.runs for verdict in verdicts) else CheckFailed.exit_code


def read(sources: Sequence[str]) -> Audit:
    """Every library of these sources, taken together. Raises InputError, OSError."""
    remote = {text: registry.reference(text) for text in sources if not Path(text).exists()}
    found: list[Library] = []
    for image in remote.values():
        if image is not None:
            found += registry.libraries(image)
    paths = [Path(text) for text in sources if remote.get(text) is None]
    return Audit((*audit(paths).libraries, *found))


def github_lines(verdict: Verdict) -> Iterator[str]:
    """A verdict as workflow commands of GitHub (docs.github.com, "Workflow commands"): an error for
    each library that a GPU cannot run, a warning for one that it has to compile first."""
    level = "warning" if verdict.runs else "error"
    instead = f"; instead: {verdict.instead}" if verdict.instead else ""
    for one in verdict.spoilers:
        file = _escaped(one.library.path).replace(":", "%3A").replace(",", "%2C")
        said = _escaped(f"{one.library.name}: {one}{instead}")
        yield f"::{level} file={file},title=device code for {verdict.device}::{said}"
    if not verdict.spoilers and not verdict.runs:
        yield f"::error title=device code for {verdict.device}::no library holds device code"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


if __name__ == "__main__":
    sys.exit(main())
