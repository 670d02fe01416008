"""The options of the commands: how one is declared, and those that several share.

A command about jobs names those of all backends as one value:

    @options.expanded
    def submit(backend_options: BackendOptions, job: str = JOB_NAME) -> None: ...

Typer then offers each option of them, and the command gets one object.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

import typer

from builder.core import backends

T = TypeVar("T")


def flag(name: str, help: str) -> Any:
    return typer.Option(False, name, help=help)


def option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """Return an option with a value; its name is that of the parameter, unless `names` says it."""
    return typer.Option(default, *names, help=help, **more)


def argument(help: str, metavar: str | None = None, default: Any = None) -> Any:
    """Return what stands in a command without a name; with `...` as default, it has to be there."""
    return typer.Argument(default, metavar=metavar, help=help)


TARGETS = argument("Folders of images/, for example v100.", "TARGET")
TARGET = argument("A folder of images/.", default=...)
REFERENCE = argument("A reference, or a tag of the registry.", default=...)
ALL = flag("--all", "Every target.")
JSON = flag("--json", "Write JSON to stdout.")
REGISTRY = option("HOST/PATH of the repository; overrides builder.toml.")
AGAINST = option(
    "The branch that images/layers.lock is compared with (default: origin's).",
    "--against",
    envvar="BUILDER_AGAINST",
)
OSV = option("The address of OSV's API, or of a mirror of it.")
ENGINE = option("auto, machine or private.")
PROGRAM = option(
    "Your Python program in the target's place, no Dockerfile.", metavar="FOLDER:MODULE"
)
JOB_NAME = argument("jobs/JOB.yaml, or a file's path.", "JOB", ...)
SENT_NAME = argument("The job's name (its newest), display name or number.", "JOB", ...)
ARGUMENTS = argument("For the trainer, after --.", "[-- ARGS]")
PROJECT = option("The project's id.")
REGION = option("global, or a region.")
POLL = option("Seconds between two looks.", default=10.0, min=0.05)


@dataclass(frozen=True)
class BackendOptions:
    """Where a command looks for jobs: a backend, and each backend's own options."""

    flags: Mapping[str, str | None]
    """By their names, `backend` among them; None stands for the project's setting."""

    sends: ClassVar[bool] = False

    @property
    def backend(self) -> str | None:
        return self.flags["backend"]

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return --on, and the options of all backends, by their names."""
        *others, last = (
            f"{name} (default)" if name == backends.DEFAULT else name for name in backends.names()
        )
        known = f"{', '.join(others)} or {last}."
        flags = [(kind.name, flag) for kind in backends.every() for flag in kind.flags]
        helps: dict[str, str] = {}
        for name, flag in sorted(flags, key=lambda each: each[1].sends):
            if cls.sends or not flag.sends:
                helps[flag.name] = f"{helps.get(flag.name, '')} {name}: {flag.help}".lstrip()
        offered = {name: option(text) for name, text in helps.items()}
        return {"backend": option(known, "--on", metavar="BACKEND"), **offered}


@dataclass(frozen=True)
class SendingOptions(BackendOptions):
    """Where a command sends a job."""

    sends: ClassVar[bool] = True


def expanded(command: Callable[..., T]) -> Callable[..., T]:
    """Return the command with the options of its BackendOptions, and after them its own.

    Two options of one command may not share a name: ValueError.
    """
    hints, named = get_type_hints(command), inspect.Parameter.KEYWORD_ONLY
    kinds: dict[str, type[BackendOptions]] = {
        name: hint for name, hint in hints.items() if hint in (BackendOptions, SendingOptions)
    }
    ((own, kind),) = kinds.items()
    offered = kind.options()
    parameters = [
        inspect.Parameter(name, named, default=default, annotation=str | None)
        for name, default in offered.items()
    ]
    parameters += [
        parameter.replace(annotation=hints[parameter.name], kind=named)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != own
    ]

    @functools.wraps(command)
    def run(**values: Any) -> T:
        values[own] = kind({name: values.pop(name) for name in offered})
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
