"""The options of the commands: how one is declared, those that several share, groups of them.

A group is a value that a command names once:

    @options.expanded
    def submit(on: BackendOptions, job: str = JOB_NAME) -> None: ...

Typer then offers each option of `BackendOptions`, and the command gets one object.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, get_type_hints

import typer

from builder.core import backends

T = TypeVar("T")


def flag(name: str, help: str) -> Any:
    """Return an option that is given or not."""
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
POLL = option("Seconds between two looks.", default=10.0, min=0.05)


class Group:
    """Options with one text each that several commands share: the fields of a dataclass."""

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the options that a command offers, by their names."""
        return {item.name: item.default for item in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Any:
        """Return what the command gets."""
        return cls(**values)


@dataclass(frozen=True)
class BackendOptions(Group):
    """Where a command looks for jobs: a backend, and each backend's own options."""

    flags: Mapping[str, str | None]
    """By their names, `backend` among them; None stands for the project's setting."""

    sends: ClassVar[bool] = False

    @property
    def backend(self) -> str | None:
        """Return the backend that is named."""
        return self.flags["backend"]

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return --on, and the options of all backends."""
        *others, last = (
            f"{name} (default)" if name == backends.DEFAULT else name for name in backends.names()
        )
        known = f"{', '.join(others)} or {last}."
        offered = {"backend": option(known, "--on", metavar="BACKEND")}
        kinds = backends.every()
        for sends in (False, True) if cls.sends else (False,):
            for flag in dict.fromkeys(
                flag.name for kind in kinds for flag in kind.flags if flag.sends == sends
            ):
                offered[flag] = option(_help(flag))
        return offered

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Any:
        """Return the group with these values."""
        return cls(values)


@dataclass(frozen=True)
class SendingOptions(BackendOptions):
    """Where a command sends a job."""

    sends: ClassVar[bool] = True


def _help(name: str) -> str:
    """Return what an option means, for each backend that has it."""
    return " ".join(
        f"{kind.name}: {flag.help}"
        for kind in backends.every()
        for flag in kind.flags
        if flag.name == name
    )


@dataclass(frozen=True)
class InCloud(Group):
    """The project that a command is about; None stands for the setting of builder.toml."""

    project: str | None = option("The project's id.")
    region: str | None = option("global, or a region.")


def expanded(command: Callable[..., T]) -> Callable[..., T]:
    """Return the command with the options of its groups, and after them its own.

    Two options of one command may not share a name: ValueError.
    """
    hints, named = get_type_hints(command), inspect.Parameter.KEYWORD_ONLY
    groups: dict[str, type[Group]] = {
        name: kind
        for name, kind in hints.items()
        if isinstance(kind, type) and issubclass(kind, Group)
    }
    offered = {name: group.options() for name, group in groups.items()}
    parameters = [
        inspect.Parameter(name, named, default=default, annotation=str | None)
        for options in offered.values()
        for name, default in options.items()
    ]
    parameters += [
        parameter.replace(annotation=hints[parameter.name], kind=named)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name not in groups
    ]

    @functools.wraps(command)
    def run(**values: Any) -> T:
        for name, group in groups.items():
            values[name] = group.of({each: values.pop(each) for each in offered[name]})
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
