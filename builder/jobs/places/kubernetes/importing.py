"""A JobSet turned into a job's file, with a ledger of every field.

Read are JobSets with one replicated Job for each role, whoever wrote them; each pod has one
container. What belongs to the cluster and not to the job, a queue for example, is a note.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs import expected, ledger
from builder.jobs.description import Job
from builder.jobs.description.values import DEFAULT_TIMEOUT, DISK_GB, NAME_LENGTH
from builder.jobs.ledger import Imported, Line
from builder.jobs.machines import Placement
from builder.jobs.places.kubernetes import jobset, status
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.imported_roles import ImportedRole, roles_of
from builder.jobs.pools import Pool
from builder.jobs.ready import Image, Ready

_REPLICAS: Final = {"worker": "workers", "ps": "parameter_servers", "evaluator": "evaluator"}
_OWN: Final = ("TF_CONFIG", jobset.INDEX)
_RESERVED: Final = re.compile(r"AIP_|CLOUD_ML_|CLUSTER_SPEC$|TPU_CONFIG$|TPU_NODE_NAME$")
"""Variables that a job's file may not set, because a training service sets them."""
_INSTANCE: Final = "node.kubernetes.io/instance-type"
_META: Final = ("name", "namespace", "labels", "annotations")
_WHY: Final = {
    "ttlSecondsAfterFinished": "the object stays until it is deleted",
    "dependsOn": "all roles start at once",
    "startupPolicy": "all roles start at once",
    "suspend": "the queue, or builder job cancel, suspends it",
    "initContainers": "a job's file has one container for each replica",
    "valueFrom": "a job's file has plain values only: submit the variable's value, or let the "
    "program read it",
}
"""Why a job's file does not have a field, by the field's own name."""


def imported(given: Mapping[str, Any], path: Path) -> Imported:
    """The job's file of a JobSet. Raises InputError for one that a job's file cannot say."""
    roles = roles_of(given, path)
    chief = roles[0]
    pools = [_pool(one, path) for one in roles]
    placed = [ledger.placed(pool, path) for pool in pools]
    folder, passes = _folder(roles)
    programs = [_program(r, p, passes, path) for r, p in zip(roles, placed, strict=True)]
    told = {
        "name": _name(given["metadata"]),
        **programs[0],
        **_machine(pools[0]),
        "replicas": {
            _REPLICAS[pool.role]: {
                "count": pool.count,
                "accelerators": "none",
                **_machine(pool),
                **_beside(program, programs[0]),
            }
            for pool, program in zip(pools[1:], programs[1:], strict=True)
        },
        "job_dir": folder if _spelled(programs, folder) else _named(folder, given["metadata"]),
        "pass_job_dir": bool(passes),
        "disk": _disk(roles),
        "scheduling": _scheduling(given, chief),
        "labels": _labels(given["metadata"]),
    }
    text, job = ledger.written({key: value for key, value in told.items() if value}, path)
    cluster = _cluster(given, chief.pod)
    again = jobset.jobset(_ready(job, roles, path), cluster)
    notes = (*_notes(cluster, given, roles), *ledger.remarks(job))
    return Imported(text, tuple(_lines(given, roles, again)), notes)


def _ready(job: Job, roles: Sequence[ImportedRole], path: Path) -> Ready:
    """The job as it is rendered again, with images that are as the JobSet says of them."""
    images = {one.role: _image(one, roles) for one in roles}
    chief = images.pop("chief")
    own = {role: image for role, image in images.items() if image.reference != chief.reference}
    placements = tuple(ledger.placed(pool, path) for pool in job.pools)
    return Ready(job, chief, "", placements, images=own)


# --- the ledger -----------------------------------------------------------------------------------


def _lines(
    given: Mapping[str, Any], roles: Sequence[ImportedRole], again: Mapping[str, Any]
) -> Iterator[Line]:
    """What became of each field of the JobSet. A replicated Job is compared with the role that its
    pods play; one whose first pod is the chief and whose others are workers, with the workers."""
    asked, gone = _asked(given)
    plays = {one.called: one.role for one in roles}  # of a Job that was split, its last role
    for called, role in plays.items():
        if called != role:
            yield Line(f"spec.replicatedJobs[{called}].name", "changed", f"it plays the {role}")
    split = len(plays) < len(roles)
    if split:
        yield Line(
            "spec.replicatedJobs[chief]",
            "added",
            f"the first pod of {roles[0].called}: without a chief, TensorFlow's is worker 0",
        )
    named = [{**one, "name": plays[one["name"]]} for one in asked["spec"]["replicatedJobs"]]
    asked["spec"] = {**asked["spec"], "replicatedJobs": named}
    for line in ledger.compared(asked, again, _own_field):
        if split and line.fate == "added" and line.field.startswith("spec.replicatedJobs[chief]"):
            continue
        why = next((why for name, why in _WHY.items() if re.search(rf"\b{name}\b", line.field)), "")
        yield replace(line, why=why) if line.fate == "dropped" and why else line
    yield from gone


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


# --- programs -------------------------------------------------------------------------------------


def _program(role: ImportedRole, placed: Placement, passes: str, path: Path) -> dict[str, Any]:
    """Image, command, arguments and environment of a role, as a job's file calls them. passes: the
    argument that `pass_job_dir` makes, "" for none."""
    words = [_plain(one, role, path) for one in role.container.get("args") or []]
    command = [_plain(one, role, path) for one in role.container.get("command") or []]
    return {
        "image": role.container.get("image"),
        "command": command or None,
        "arguments": words[:-1] if passes else words,
        "environment": {
            name: _plain(value, role, path)
            for name, value in _variables(role.container).items()
            if not _made(name, value, placed)
        },
    }


def _beside(program: Mapping[str, Any], chief: Mapping[str, Any]) -> dict[str, Any]:
    """What a role does not share with the chief. Its image is written, too, where its command is
    that of the image and the chief's is not."""
    own = {name: value for name, value in program.items() if value != chief[name]}
    if "image" in own or program["command"] is None is not chief["command"]:
        own |= {"image": program["image"], "command": program["command"]}
    return {name: value for name, value in own.items() if value is not None}


def _made(name: str, value: str, placed: Placement) -> bool:
    """Whether `render` itself makes a variable, or a job's file may not set it."""
    if name != contract.ACCELERATOR:
        return (
            name in _OWN
            or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)
            or bool(_RESERVED.match(name))
        )
    promised = expected.on_a_machine(placed, None)[contract.ACCELERATOR]
    return value.split(",")[0] == promised.split(",")[0]


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    return {
        one["name"]: str(one.get("value", ""))
        for one in container.get("env") or []
        if "valueFrom" not in one
    }


def _plain(text: object, role: ImportedRole, path: Path) -> str:
    """A word as the program gets it. Raises InputError for one that the kubelet would replace: it
    leaves $(NAME) alone where no variable has the name. Source: kubernetes, expansion.go."""
    known = {one["name"] for one in role.container.get("env") or []}
    for name in re.findall(r"\$\(([^)]+)\)", str(text).replace("$$", "")):
        if name in known:
            raise InputError(
                f"{path}: {role.called}: the kubelet replaces $({name}), and a job's file has no "
                "such words",
                "let the program read the variable itself",
            )
    return str(text).replace("$$", "$")


def _folder(roles: Sequence[ImportedRole]) -> tuple[str, str]:
    """Where the job writes, "" for nowhere, and the argument with it that all roles end with."""
    told = _variables(roles[0].container).get("AIP_MODEL_DIR", "").replace("$$", "$")
    folder = told.removesuffix("/model/") if told.startswith("gs://") else ""
    passed = f"{contract.JOB_DIR}={folder}"
    last = [(one.container.get("args") or [""])[-1].replace("$$", "$") for one in roles]
    return folder, passed if folder and {*last} == {passed} else ""


def _spelled(programs: Sequence[Mapping[str, Any]], folder: str) -> bool:
    """Whether a program names the job's folder in words of its own."""
    words = [(*one["arguments"], *one["environment"].values()) for one in programs]
    return any(folder in word for word in itertools.chain(*words))


def _named(folder: str, meta: Mapping[str, Any]) -> str:
    """The folder with {job} in the place of the JobSet's name; of a later attempt, the first's."""
    own = re.sub(r"-a[0-9]+$", "", str(meta.get("name") or ""))
    return re.sub(rf"(?<=/){re.escape(own)}(?=/|$)", "{job}", folder) if own else folder


# --- pieces of a JobSet ---------------------------------------------------------------------------


def _name(meta: Mapping[str, Any]) -> str:
    """The job's name, where it can be one."""
    name = str((meta.get("labels") or {}).get(jobset.NAME_LABEL) or meta.get("name") or "")
    fits = re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", name) and len(name) <= NAME_LENGTH
    return name if fits else ""


def _labels(meta: Mapping[str, Any]) -> dict[str, str]:
    """The person's labels that Vertex AI takes, too, as a job's file has them."""
    return {
        name: value
        for name, value in (meta.get("labels") or {}).items()
        if re.fullmatch(r"(?!builder-)[a-z][a-z0-9_-]{0,62}", name)
        and re.fullmatch(r"[a-z0-9_-]{0,63}", str(value))
    }


def _pool(role: ImportedRole, path: Path) -> Pool:
    """What a role runs on: by this factory's annotations, else by GKE's labels of nodes."""
    try:
        known = status.pool({**role.given, "name": role.role})
    except ValueError:
        raise InputError(
            f"{path}: {role.called}: its limits are no whole numbers of devices",
            "write nvidia.com/gpu: 1",
        ) from None
    selector = role.pod.get("nodeSelector") or {}
    label = str(selector.get("cloud.google.com/gke-accelerator") or "")
    topology = selector.get("cloud.google.com/gke-tpu-topology")
    if topology and role.role != "chief":
        raise InputError(
            f"{path}: {role.called}: a job with a TPU is one replica", "leave out the other pods"
        )
    if topology and not known.topology:
        chips = known.accelerators  # of one machine, which has its name of them
        known = replace(known, machine=f"ct5lp-hightpu-{chips}t", topology=topology, accelerators=0)
    machine = known.machine or str(selector.get(_INSTANCE) or "")
    if not machine:
        raise InputError(
            f"{path}: {role.called} names no machine", f"add nodeSelector {_INSTANCE}: MACHINE"
        )
    accelerator = known.accelerator or label.upper().replace("-", "_") or None
    if known.accelerators and not accelerator:
        raise InputError(
            f"{path}: {role.called} names no accelerator",
            "add nodeSelector cloud.google.com/gke-accelerator: nvidia-l4",
        )
    return replace(known, count=role.count, machine=machine, accelerator=accelerator)


def _machine(pool: Pool) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": pool.machine}
    if pool.topology:
        found["topology"] = pool.topology
    elif pool.accelerators:
        found["accelerators"] = {"type": pool.accelerator, "count": pool.accelerators}
    return found


def _disk(roles: Sequence[ImportedRole]) -> dict[str, int]:
    """One disk for all machines: the largest that a role asks for."""
    asked = [
        ((one.container.get("resources") or {}).get("requests") or {}).get("ephemeral-storage")
        for one in roles
    ]
    sizes = [int(str(one)[:-1]) for one in asked if re.fullmatch("[0-9]{1,9}G", str(one))]
    largest = max(sizes, default=0)
    return {"size_gb": largest} if DISK_GB[0] <= largest <= DISK_GB[1] else {}


def _scheduling(given: Mapping[str, Any], chief: ImportedRole) -> dict[str, str]:
    """As the chief has it; one that a failed Job restarts as a whole says so itself."""
    restarts = "worker" if chief.job.get("backoffLimit", 6) else "never"
    if (given["spec"].get("failurePolicy") or {}).get("maxRestarts"):
        restarts = "job"
    spot = jobset.SPOT in (chief.pod.get("nodeSelector") or {})
    return {
        "strategy": "spot" if spot else "standard",
        "timeout": f"{chief.job.get('activeDeadlineSeconds', DEFAULT_TIMEOUT)}s",
        "restarts": restarts,
    }


def _image(role: ImportedRole, roles: Sequence[ImportedRole]) -> Image:
    """A role's image as it was judged: one of ours has no root and a known CUDA; a proven one has a
    read-only root folder wherever its own program runs."""
    reference = role.container.get("image")
    same = [one for one in roles if one.container.get("image") == reference]
    ours = any((one.pod.get("securityContext") or {}).get("runAsNonRoot") for one in same)
    proven = any(
        (one.container.get("securityContext") or {}).get("readOnlyRootFilesystem") for one in same
    )
    told = [_variables(one.container).get(contract.ACCELERATOR, "") for one in same]
    cuda = next((found[1] for one in told if (found := re.search(r"\bcuda=([0-9]+)", one))), None)
    return Image(str(reference), None, None, "CPU" if ours else None, proven, cuda=cuda)


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


def _notes(
    cluster: Cluster, given: Mapping[str, Any], roles: Sequence[ImportedRole]
) -> Iterator[str]:
    """The options of `submit` that the JobSet had; programs that name a host of before."""
    for name in ("namespace", "queue", "service_account", "nodes", "pull_secret"):
        value = getattr(cluster, name)
        if value and (name, value) != ("nodes", "gke"):
            yield f"submit it with --{name.replace('_', '-')} {value}"
    own = re.escape(str(given["metadata"].get("name")))
    for one in roles:
        words = [*(one.container.get("command") or []), *(one.container.get("args") or [])]
        words += [v for k, v in _variables(one.container).items() if k not in _OWN]
        hosts = re.search(
            rf"\b{own}-{re.escape(one.called)}-[0-9]+-[0-9]+\b", " ".join(map(str, words))
        )
        if hosts:
            yield f"{one.called} names the host {hosts[0]}: the new hosts stand in TF_CONFIG"
