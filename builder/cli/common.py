"""Shared options, output, and the targets of a call."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import files
from builder.core.display import Annotation, line, masked, plain
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.cli.console import Reporter
    from builder.cloudbuild.clients import Clients
    from builder.core.settings import Settings


@dataclass
class GlobalOptions:
    """The options that stand before the command."""

    debug: bool = False
    verbose: bool = False
    quiet: bool = False


OPTIONS = GlobalOptions()


def reporter() -> "Reporter":
    from builder.cli.console import Reporter

    return Reporter(verbose=OPTIONS.verbose, quiet=OPTIONS.quiet)


def say(text: str = "") -> None:
    """Write a line for people to stderr, because stdout carries data only."""
    if not OPTIONS.quiet:
        sys.stdout.flush()  # where both go to one place, as in a log, the order stays
        sys.stderr.write(plain(masked(text)) + "\n")


def show(text: str) -> None:
    """Write a result for people to stdout, without credentials and escape sequences."""
    own = isinstance(text, Annotation)
    sys.stdout.write(plain(text if own else masked(text)) + "\n")
    sys.stdout.flush()


def out(data: Any) -> None:
    """Write data for machines to stdout, as JSON."""
    sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")


def results(as_json: bool, data: Any, lines: Iterable[str]) -> None:
    """Write a command's result to stdout: as JSON, or as lines for people."""
    if as_json:
        out(data)
        return
    for each in lines:
        show(line(each))


def save(path: Path, text: str) -> None:
    files.write(path, text)
    say(f"wrote {path}")


def root() -> Path:
    """Return the project's folder. Raises InputError outside of one."""
    from builder.core.project import find_root

    return find_root()


def project() -> Path | None:
    """Return the project's folder, None outside of one."""
    try:
        return root()
    except InputError:
        return None


def settings(
    registry: str | None = None,
    engine: str | None = None,
    key: str | None = None,
    anywhere: bool = False,
) -> "Settings":
    """Return builder.toml under the environment and these options. Raises InputError.

    anywhere: whether the command also runs outside of a project.
    """
    from builder.core.settings import load

    folder = (project() or Path.cwd()) if anywhere else root()
    return load(folder, registry=registry, engine=engine, tables={"trust": {"key": key}})


def chosen(targets: list[str] | None, everything: bool) -> tuple[str, ...]:
    """Return the targets of this call; none named is the only one that there is.

    Raises InputError.
    """
    from builder.config import image_yaml

    known = image_yaml.targets(root())
    if everything or targets == ["all"] or (not targets and len(known) == 1):
        return known
    if targets:
        return image_yaml.named(root(), targets)
    raise InputError("no target named", f"name one of {', '.join(known)}, or --all")


def cloud_clients(project: str | None, region: str | None, sending: bool = True) -> "Clients":
    """Return the clients of the project, by builder.toml and the flags of a command."""
    from builder.cloudbuild.clients import connect
    from builder.core.settings import load_cloud

    return connect(load_cloud(root(), project=project, region=region), sending)
