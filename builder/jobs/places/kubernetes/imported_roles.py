"""The roles of a JobSet that is read: which replicated Job plays which, in how many pods.

Each field that is read is looked at here, so that a file of another shape is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from builder.core.errors import InputError
from builder.jobs.pools import ROLES

_CALLED: Final[Mapping[str, tuple[str, ...]]] = {
    "chief": ("chief", "master", "leader", "driver", "coordinator", "head", "main"),
    "worker": ("worker", "workers", "node", "nodes"),
    "ps": ("ps", "parameter-server", "parameter-servers"),
    "evaluator": ("evaluator", "evaluators", "eval"),
}
"""What people call the roles in JobSets. Source: kubernetes-sigs/jobset, site/static/examples;
kubeflow/trainer, the runtimes' `node`."""


@dataclass(frozen=True)
class ImportedRole:
    """A role of the new job. given: the replicated Job whose pods play it."""

    role: str
    count: int
    given: Mapping[str, Any]

    @property
    def called(self) -> str:
        """What the JobSet calls it."""
        return str(self.given["name"])

    @property
    def job(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.given["template"]["spec"]
        return found

    @property
    def pod(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.job["template"]["spec"]
        return found

    @property
    def container(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pod["containers"][0]
        return found


def roles_of(given: Mapping[str, Any], path: Path) -> list[ImportedRole]:
    """The roles, the chief first. Raises InputError for another shape."""
    _check_shapes(given, path)
    try:
        found = {
            str(one["name"]): (one, _count(one), len(_spec(one)["containers"]))
            for one in given["spec"]["replicatedJobs"]
        }
        given["metadata"].keys()
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{path}: is no JobSet with replicated Jobs of pods", "name the file of a JobSet"
        ) from None
    for name, (_, count, containers) in found.items():
        if containers != 1 or count < 1:
            raise InputError(
                f"{path}: {name} has {containers} containers in {count} pods, and a role has one "
                "container in one pod at least",
                "let one container do the work, and leave out sidecars",
            )
    plays = {name: _role_of(name, len(found)) for name in found}
    known = [role for role in plays.values() if role]
    if (
        None in plays.values()
        or len(known) != len(set(known))
        or not {"chief", "worker"} & {*known}
    ):
        raise InputError(
            f"{path}: its replicated Jobs are called {', '.join(found) or 'nothing'}, and a job's "
            f"roles {', '.join(ROLES)}, each once",
            "name its replicated Jobs so, the one that decides chief",
        )
    roles = {
        role: ImportedRole(role, found[name][1], found[name][0])
        for name, role in plays.items()
        if role
    }
    return sorted(_with_chief(roles, path), key=lambda one: ROLES.index(one.role))


def _with_chief(roles: dict[str, ImportedRole], path: Path) -> list[ImportedRole]:
    """The same with one chief: the first pod of those that lead.

    Source: TensorFlow, Distributed training, TF_CONFIG: without a chief, worker 0 is it.
    """
    first = roles.get("chief") or roles["worker"]
    if first.count == 1:
        return [replace(first, role="chief"), *(one for one in roles.values() if one != first)]
    if "chief" in roles and "worker" in roles:
        raise InputError(
            f"{path}: {first.called} has {first.count} pods, and there is one chief",
            "write completions: 1, and the others as workers",
        )
    rest = replace(first, role="worker", count=first.count - 1)
    others = [one for one in roles.values() if one != first]
    return [replace(first, role="chief", count=1), rest, *others]


def _role_of(name: str, jobs: int) -> str | None:
    """The role of a replicated Job, by its name; one alone leads whatever its name is."""
    known = (role for role, names in _CALLED.items() if name.lower() in names)
    return next(known, "chief" if jobs == 1 else None)


def _count(replicated: Mapping[str, Any]) -> int:
    """The pods of a replicated Job."""
    job = replicated["template"]["spec"]
    pods = job.get("completions", job.get("parallelism", 1))
    return int(replicated.get("replicas", 1)) * int(pods)


def _spec(replicated: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = replicated["template"]["spec"]["template"]["spec"]
    return found


# --- shapes ---------------------------------------------------------------------------------------

_TEXTS: Final = ("annotations", "labels", "limits", "nodeSelector", "requests")
_MAPPINGS: Final = ("failurePolicy", "metadata", "resources", "securityContext", "spec", "template")
_NAMED: Final = ("containers", "env", "imagePullSecrets", "replicatedJobs")
_WORDS: Final = ("args", "command")


def _check_shapes(value: Any, path: Path, at: str = "") -> None:
    """Raises InputError where a field that is read has not the shape that the API gives it."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            _check_shapes(one, path, f"{at}[{number}]")
    for name, one in value.items() if isinstance(value, Mapping) else ():
        field = f"{at}.{name}" if at else str(name)
        if one is not None and (wanted := _wanted(name, one)):
            raise InputError(
                f"{path}: {field}: expected {wanted}", "write it as the API has it: kubectl explain"
            )
        _check_shapes(one, path, field)


def _wanted(name: str, value: Any) -> str:
    """What a field of this name has to be; "" where it is."""
    if name in (*_TEXTS, *_MAPPINGS) and not isinstance(value, Mapping):
        return "`name: value` lines"
    if name in _TEXTS and not all(isinstance(one, str | int) for one in value.values()):
        return "a text for each name"
    if name in (*_NAMED, *_WORDS) and not isinstance(value, list):
        return "a list"
    if name in _NAMED and not all(isinstance(one, Mapping) and "name" in one for one in value):
        return "a name in each entry"
    return ""
