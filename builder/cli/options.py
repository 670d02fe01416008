"""The options of the commands: how one is declared, those that several share, groups of them.

A group is a frozen dataclass that a command names once:

    @options.expanded
    def submit(where: Where, job: str = JOB_NAME) -> None: ...

Typer then offers a flag for each field of `Where`, and the command gets one object.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import typer

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


@dataclass(frozen=True)
class Where:
    """Where a command looks for jobs and starts them; None stands for the project's setting."""

    backend: str | None = option(
        "local, vertex (default) or kubernetes.", "--on", metavar="BACKEND"
    )
    project: str | None = option("vertex: the project.")
    region: str | None = option("vertex: such as us-central1.")
    context: str | None = option("kubernetes: of kubeconfig (default: the current).")
    namespace: str | None = option("kubernetes: default: the context's own.")


@dataclass(frozen=True)
class InCloud:
    """The project that a command is about; None stands for the setting of builder.toml."""

    project: str | None = option("The project's id.")
    region: str | None = option("global, or a region.")


@dataclass(frozen=True)
class Cluster:
    """What only a cluster of Kubernetes is told of a job; None stands for the project's setting."""

    queue: str | None = option("kubernetes: a LocalQueue of Kueue.")
    service_account: str | None = option("kubernetes: a ServiceAccount of the namespace.")
    nodes: str | None = option(
        "kubernetes: gke (default) selects nodes by GKE's labels; any: by GPUs."
    )
    pull_secret: str | None = option("kubernetes: a Secret with which nodes pull the image.")


def expanded(command: Callable[..., T]) -> Callable[..., T]:
    """Return the command with an option for each field of its groups, and after them its own.

    Two groups of one command may not share a field's name: ValueError.
    """
    hints, named = get_type_hints(command), inspect.Parameter.KEYWORD_ONLY
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = [
        inspect.Parameter(item.name, named, default=item.default, annotation=item.type)
        for group in groups.values()
        for item in fields(group)
    ]
    parameters += [
        parameter.replace(annotation=hints[parameter.name], kind=named)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name not in groups
    ]

    @functools.wraps(command)
    def run(**values: Any) -> T:
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        return command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
