"""`builder cloud validate` and `run-local`: cloudbuild-local with the factory's engines.

packages/cloudbuild-local is a package of its own, and no other module of the factory knows it.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import typer

from builder.cli.common import OPTIONS, reporter, say, settings
from builder.cli.options import ENGINE, flag, option
from builder.core.errors import InputError

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Click's settings of a command that hands on what it does not know."""


def _package() -> ModuleType:
    """Return the command of cloudbuild-local. Raises InputError where it is not installed."""
    try:
        from cloudbuild_local import cli
    except ImportError as error:
        raise InputError(
            f"cloudbuild-local is not installed ({error})",
            "pip install ./packages/cloudbuild-local, or tools/bootstrap in the factory's tree",
        ) from None
    return cli


def refuse(path: Path, substitutions: Mapping[str, str]) -> None:
    """Raise InputError for what Cloud Build would refuse in a file, where the package is here."""
    try:
        from cloudbuild_local import rules
        from cloudbuild_local.errors import InputError as Refused
        from cloudbuild_local.reader import document
    except ImportError:
        return  # Cloud Build itself says it
    try:
        file = document.read(path)
        rules.refuse(file, rules.check(file, substitutions))
    except Refused as error:
        raise InputError(error.message, error.fix) from None


def _run(*words: str) -> None:
    quiet = ("--quiet",) if OPTIONS.quiet else ()
    raise typer.Exit(_package().main([*words, *quiet]))


def validate(context: typer.Context) -> None:
    """Show what Cloud Build would refuse in files, each finding with its line.

    Arguments and all other options are those of `cloudbuild-local validate --help`.
    """
    _run("validate", *context.args)


def run_local(
    context: typer.Context,
    host_configuration: bool = flag(
        "--host-configuration",
        "Give steps this machine's CA bundle, proxies and indexes below /run/secrets.",
    ),
    engine: str | None = ENGINE,
    engine_profile: Literal["hosted"] | None = option(
        "hosted: an empty engine for this build alone, of the version, and with the "
        "memory, that a worker has. Needs root."
    ),
) -> None:
    """Run a cloudbuild.yaml on this machine's engine, as Cloud Build would.

    Arguments and all other options are those of `cloudbuild-local run --help`.
    """
    from builder.engine.discovery import connect

    if engine and engine_profile:
        raise InputError("--engine and --engine-profile exclude each other", "leave one out")
    words = ["run", "--artifacts", "build/cloudbuild/artifacts", *context.args]
    with contextlib.ExitStack() as stack:
        if host_configuration:
            words += ["--run-secrets", stack.enter_context(_secrets())]
        if engine_profile:
            words += ["--engine", stack.enter_context(_hosted(words))]
        elif not {"--dry-run", "--help"} & {*words}:
            words += ["--engine", connect(settings(engine=engine, anywhere=True)).host]
        _run(*words)


@contextlib.contextmanager
def _secrets() -> Iterator[str]:
    """Give a folder with this machine's network configuration, as builds of the factory get it."""
    from builder.config.network import discover

    with tempfile.TemporaryDirectory(prefix="secrets-") as folder:
        for name, content in discover().secrets().items():
            (Path(folder) / name).touch(0o600)
            (Path(folder) / name).write_bytes(content)
        yield folder


@contextlib.contextmanager
def _hosted(words: list[str]) -> Iterator[str]:
    """Give the engine of a worker, whose containers get the memory of a worker."""
    from builder.engine import hosted

    with contextlib.ExitStack() as stack:
        with reporter() as progress:
            limit = hosted.memory_of(_machine_type(words))
            worker = stack.enter_context(hosted.worker(limit, progress.on_event))
        say(f"Docker {worker.version}, {limit / 1e9:.1f} GB for containers")
        yield worker.host


def _machine_type(words: list[str]) -> str:
    """Return the machine that the file of a call names, "" for the default one."""
    from cloudbuild_local.reader import document

    command: Any = _package().run
    file = command.make_context("run", words[1:], resilient_parsing=True).params["file"]
    return document.read(Path(file)).build.options.machine_type
