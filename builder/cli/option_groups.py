"""Options that several commands share, as frozen groups: a command names the group once.

    @option_groups.expanded
    def submit(job: JobName, where: Where) -> None: ...

Typer then offers a flag for each field of `Where`, and the command gets one object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """Where a command looks for jobs and starts them; None stands for the project's setting."""

    backend: Annotated[
        str | None,
        typer.Option("--on", metavar="BACKEND", help="local, vertex (default) or kubernetes."),
    ] = None
    project: Annotated[str | None, typer.Option(help="vertex: the project.")] = None
    region: Annotated[str | None, typer.Option(help="vertex: such as us-central1.")] = None
    context: Annotated[
        str | None, typer.Option(help="kubernetes: of kubeconfig (default: the current).")
    ] = None
    namespace: Annotated[
        str | None, typer.Option(help="kubernetes: default: the context's own.")
    ] = None


@dataclass(frozen=True)
class InCloud:
    """The project that a command is about; None stands for the setting of builder.toml."""

    project: Annotated[str | None, typer.Option(help="The project's id.")] = None
    region: Annotated[str | None, typer.Option(help="global, or a region.")] = None


@dataclass(frozen=True)
class Cluster:
    """What only a cluster of Kubernetes is told of a job; None stands for the project's setting."""

    queue: Annotated[str | None, typer.Option(help="kubernetes: a LocalQueue of Kueue.")] = None
    service_account: Annotated[
        str | None, typer.Option(help="kubernetes: a ServiceAccount of the namespace.")
    ] = None
    nodes: Annotated[
        str | None,
        typer.Option(help="kubernetes: gke (default) selects nodes by GKE's labels; any: by GPUs."),
    ] = None
    pull_secret: Annotated[
        str | None, typer.Option(help="kubernetes: a Secret with which nodes pull the image.")
    ] = None


def expanded(command: Callable[..., T]) -> Callable[..., T]:
    """Return the command with a parameter for each field of its option groups.

    An option group is a parameter whose type is a dataclass. Two groups of one command may not
    share a field's name: ValueError.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[type, tuple[str, ...]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = (hint, tuple(field.name for field in fields(hint)))
            types = get_type_hints(hint, include_extras=True)
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=types[field.name],
                )
                for field in fields(hint)
            ]
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @functools.wraps(command)
    def run(**values: Any) -> T:
        for name, (group, members) in groups.items():
            values[name] = group(**{member: values.pop(member) for member in members})
        return command(**values)

    signature = inspect.Signature(parameters)
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
