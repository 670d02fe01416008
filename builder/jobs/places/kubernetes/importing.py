"""A JobSet turned into a job's file, with a ledger of every field.

Read are JobSets of this factory's shape, whoever wrote them: one replicated Job for each role, with
one container. What belongs to the cluster and not to the job, a queue for example, is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs import ledger
from builder.jobs.checks import place
from builder.jobs.ledger import Imported, Line
from builder.jobs.places.kubernetes import jobset, status
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.pools import ROLES, Pool
from builder.jobs.ready import Image, Ready

_ROLES: Final = {"worker": "workers", "ps": "parameter_servers", "evaluator": "evaluator"}
_OWN: Final = ("TF_CONFIG", jobset.INDEX)
_FOLDERS: Final = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
_INSTANCE: Final = "node.kubernetes.io/instance-type"
_META: Final = ("name", "namespace", "labels", "annotations")


def imported(given: Mapping[str, Any], path: Path) -> Imported:
    """The job's file of a JobSet. Raises InputError for one that a job's file cannot say."""
    roles = _roles(given, path)
    first = roles[0]["template"]["spec"]
    container, pod = _container(roles[0]), first["template"]["spec"]
    pools = [_pool(one, path) for one in roles]
    cluster = _cluster(given, pod)
    folder = _variables(container).get("AIP_MODEL_DIR", "").removesuffix("/model/")
    passed = f"{contract.JOB_DIR}={folder}"
    words = [_plain(one, path) for one in container.get("args") or []]
    told = {
        "image": container["image"],
        **_machine(pools[0]),
        "replicas": {
            _ROLES[one.role]: {"count": one.count, "accelerators": "none", **_machine(one)}
            for one in pools[1:]
        },
        "command": [_plain(one, path) for one in container.get("command") or []],
        "arguments": [one for one in words if not (folder and one == passed)],
        "environment": {
            name: _plain(value, path)
            for name, value in _variables(container).items()
            if name not in (*_OWN, *_FOLDERS)
            and (name != contract.ACCELERATOR or (value == contract.CPU and _paid(pools[0])))
        },
        "job_dir": folder,
        "pass_job_dir": bool(folder and passed in words),
        "disk": _disk(container),
        "scheduling": {
            "strategy": "spot" if jobset.SPOT in (pod.get("nodeSelector") or {}) else "standard",
            "timeout": f"{first.get('activeDeadlineSeconds', 604800)}s",
            "restarts": _restarts(given, first),
        },
        "labels": {
            name: value
            for name, value in (given["metadata"].get("labels") or {}).items()
            if not name.startswith("builder-") and name != jobset.QUEUE_LABEL
        },
    }
    text, job = ledger.written({key: value for key, value in told.items() if value}, path)
    ready = Ready(job, _image(container, pod), "", tuple(place(pool) for pool in job.pools))
    again = jobset.jobset(ready, cluster)
    asked, gone = _asked(given)
    lines = (*ledger.compared(asked, again, _own_field), *gone)
    return Imported(text, lines, tuple(_notes(cluster)))


def _asked(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Line]]:
    """What a person wrote into a JobSet, and lines about what the cluster did."""
    meta = given["metadata"]
    asked = {key: given[key] for key in ("apiVersion", "kind", "spec") if key in given}
    asked["metadata"] = {key: meta[key] for key in _META if key in meta}
    late = [f"metadata.{key}" for key in meta if key not in _META]
    late += [key for key in given if key not in asked]
    return asked, [Line(key, "dropped", "the cluster writes it") for key in late]


def _own_field(field: str) -> bool:
    """Whether the factory itself writes a field, each time anew: names, keys, addresses."""
    return (
        field in ("metadata.name", "spec.network.subdomain")
        or ".labels.builder-" in field
        or field.endswith((f"env[{contract.ACCELERATOR}].value", "env[TF_CONFIG].value"))
    )


# --- pieces of a JobSet ---------------------------------------------------------------------------


def _roles(given: Mapping[str, Any], path: Path) -> list[Any]:
    """The replicated Jobs, the chief's first. Raises InputError for another shape."""
    try:
        found = list(given["spec"]["replicatedJobs"])
        found.sort(key=lambda one: ROLES.index(one["name"]))
        shapes = [
            (one.get("replicas", 1), len(one["template"]["spec"]["template"]["spec"]["containers"]))
            for one in found
        ]
        first = found[0]["name"]
    except (KeyError, TypeError, ValueError, IndexError):
        raise InputError(
            f"{path}: is no JobSet whose replicated Jobs are called {', '.join(ROLES)}",
            "name its replicated Jobs so, the one that decides chief",
        ) from None
    if first != "chief" or any(shape != (1, 1) for shape in shapes):
        raise InputError(
            f"{path}: each role is one Job with one container, and there is a chief",
            "write completions in the place of replicas, and no sidecars",
        )
    containers = [_program(_container(one)) for one in found]
    for one, program in zip(found, containers, strict=True):
        if program != containers[0]:
            raise InputError(
                f"{path}: {one['name']} has another program than the chief, and a job's file has "
                "one for all",
                "let one program read its role from TF_CONFIG",
            )
    return found


def _container(role: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = role["template"]["spec"]["template"]["spec"]["containers"][0]
    return found


def _program(container: Mapping[str, Any]) -> tuple[Any, ...]:
    own = (*_OWN, contract.ACCELERATOR)
    variables = {k: v for k, v in _variables(container).items() if k not in own}
    return container.get("image"), container.get("command"), container.get("args"), variables


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    return {
        one["name"]: str(one.get("value", ""))
        for one in container.get("env") or []
        if "valueFrom" not in one
    }


def _plain(text: object, path: Path) -> str:
    """A word as the program gets it. Raises InputError for one that the kubelet would replace."""
    rest = str(text).replace("$$", "")
    if "$(" in rest:
        raise InputError(
            f"{path}: {text!r}: the kubelet replaces $(NAME), and a job's file has no such words",
            "let the program read the variable itself",
        )
    return str(text).replace("$$", "$")


def _pool(role: Mapping[str, Any], path: Path) -> Pool:
    """What a role runs on: by this factory's annotations, else by GKE's labels of nodes."""
    known = status.pool(role)
    selector = role["template"]["spec"]["template"]["spec"].get("nodeSelector") or {}
    label = str(selector.get("cloud.google.com/gke-accelerator") or "")
    machine = known.machine or str(selector.get(_INSTANCE) or "")
    if not machine:
        raise InputError(
            f"{path}: {role['name']} names no machine", f"add nodeSelector {_INSTANCE}: MACHINE"
        )
    return replace(
        known, machine=machine, accelerator=known.accelerator or label.upper().replace("-", "_")
    )


def _machine(pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": pool.machine}
    if pool.topology:
        found["topology"] = pool.topology
    elif pool.accelerators:
        found["accelerators"] = {"type": pool.accelerator, "count": pool.accelerators}
    return found


def _paid(pool: Pool) -> bool:
    """Whether its machines have accelerators. Of others, `render` itself says `none`."""
    return bool(pool.topology or pool.accelerators)


def _disk(container: Mapping[str, Any]) -> dict[str, str]:
    asked = ((container.get("resources") or {}).get("requests") or {}).get("ephemeral-storage", "")
    return {"size_gb": asked.removesuffix("G")} if asked.endswith("G") else {}


def _restarts(given: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    if "failurePolicy" in given["spec"]:
        return "job"
    return "worker" if job.get("backoffLimit", 6) else "never"


def _image(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Image:
    """The image as it was judged: one of ours has no root, a proven one a read-only root folder."""
    ours = (pod.get("securityContext") or {}).get("runAsNonRoot")
    proven = (container.get("securityContext") or {}).get("readOnlyRootFilesystem", False)
    reference = container["image"]
    return Image(reference, None, None, "CPU" if ours else None, bool(proven))


def _cluster(given: Mapping[str, Any], pod: Mapping[str, Any]) -> Cluster:
    meta = given["metadata"]
    secrets = pod.get("imagePullSecrets") or []
    return Cluster(
        namespace=meta.get("namespace"),
        queue=(meta.get("labels") or {}).get(jobset.QUEUE_LABEL),
        service_account=pod.get("serviceAccountName"),
        nodes="gke" if pod.get("nodeSelector") else "any",
        pull_secret=secrets[0]["name"] if secrets else None,
    )


def _notes(cluster: Cluster) -> Iterator[str]:
    """The options of `submit` that the JobSet had."""
    for name in ("namespace", "queue", "service_account", "nodes", "pull_secret"):
        value = getattr(cluster, name)
        if value and (name, value) != ("nodes", "gke"):
            yield f"submit it with --{name.replace('_', '-')} {value}"
