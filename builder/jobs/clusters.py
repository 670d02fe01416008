"""Jobs of Kubernetes in the words of AI Platform's TrainingInput.

Job, CronJob, Pod, JobSet, Kubeflow's (PyTorchJob, TFJob, JAXJob, MPIJob, TrainJob) and Volcano's.
What has no word there keeps its path, so that it is named as not taken over. Sources: batch/v1;
kubeflow.org/v1, v2beta1 and trainer.kubeflow.org/v1alpha1; jobset.x-k8s.io/v1alpha2.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from builder.core.errors import InputError
from builder.jobs.description.values import LEAST_KEPT
from builder.jobs.fields import POOLS, TABLE, Field, flat, of_accelerator, of_nodes, of_variable

_COUNTED: Final = ("nvidia.com/gpu", "google.com/tpu", "amd.com/gpu")
_OURS: Final = (*_COUNTED, "cloud.google.com/gke-spot")
"""Taints that the factory's own pods tolerate where they have to."""
_SHARES: Final = re.compile(r"gke-(gpu-(partition|sharing)|max-shared)|nvidia\.com/mig")
"""Labels of nodes that give a pod a part of a GPU."""
_MPI: Final = "spec.mpiReplicaSpecs"
_STARTS: Final = re.compile(
    r"(?:^|[/\s;&])(mpirun|mpiexec(?:\.hydra)?|horovodrun|deepspeed)(?=\s|$)"
)
"""What starts the processes of a program on all of its machines."""
_PYTHON: Final = re.compile(r"(?:.*/)?python[\d.]*")


def of_cluster(written: Mapping[str, Any], where: str, accelerator: str | None) -> Iterator[Field]:
    job = copy.deepcopy(dict(written))  # what is read is taken out of it, and the rest is named
    kind, groups = job.pop("kind"), [*_groups(written, where)]
    groups.sort(key=lambda group: group[0] != "master")
    if not groups:
        what = f"this is a {kind} of Kubernetes ({job['apiVersion']}); it is not converted"
        why, fix = TABLE["refused"].get(kind, TABLE["refused"]["other"])
        raise InputError(f"{where}: {what}{why}", fix)
    yield Field("scaleTier", "CUSTOM", "kind")
    if _only_launches(job):
        yield from _of_launcher(job)
    chief, shared = dict[str, Any](), list[Any]()
    for role, pods, path in groups:
        spec = _at(job, path)
        count = str(pods // _hosts(spec, path, where))
        pod = _Pod(role, spec, path, *_program(spec, path))
        variables = pod.container.pop("env", None) or []
        shared = variables if role == "master" else shared
        for variable in variables:
            if role == "master":
                yield of_variable(variable, f"{pod.at}.env")
            elif variable not in shared:
                name = variable.get("name")
                yield Field(f"{role}.variable.{name}", "", f"{pod.at}.env.{name}")
        yield from _of_pod(pod, where, accelerator)
        for name, value, was in _cluster_only(pod):
            if role == "master":
                chief[name] = value
                yield Field(f"kubernetes.{name}", value, was)
            elif value != chief.get(name):
                yield Field(f"{role}.{name}", value, was)
        if role != "master":
            yield Field(f"{role}Count", count, path)
        elif "worker" not in (other for other, _, _ in groups):
            yield from of_nodes(count, path)
        elif count != "1":
            yield Field(f"{path}.replicas", count, path)  # there is one chief
        for above in (path.split(".template.")[0], path.removesuffix(".template.spec")):
            said = _at(job, above)
            if said.get("completions") == said.get("parallelism", "1"):
                del said["completions"]
            for name in ("name", "replicas", "numNodes", "parallelism"):
                said.pop(name, None)
    yield from _times(job, [path for *_, path in groups])
    _at(job, "metadata").pop("name", None)
    del job["apiVersion"]
    for path, value in flat(job, ""):
        yield Field(path, value, path)


@dataclass(frozen=True)
class _Pod:
    """The pods of a role."""

    role: str
    spec: dict[str, Any]
    path: str
    container: dict[str, Any]
    """Its program's, which has the path `at`."""
    at: str


def _of_pod(pod: _Pod, where: str, accelerator: str | None) -> Iterator[Field]:
    """Yield what the program's container of a pod says, and take it out of the pod."""
    nodes = pod.spec.get("nodeSelector") or {}
    image, _ = pod.container.pop("image", None), pod.container.pop("name", None)
    yield Field(f"{pod.role}Type", nodes.get("node.kubernetes.io/instance-type", ""), pod.at)
    if pod.role == "master":
        yield Field("masterConfig.imageUri", image, f"{pod.at}.image")
        for name, new in (("command", "containerCommand"), ("args", "containerArgs")):
            yield Field(f"masterConfig.{new}", pod.container.pop(name, None), f"{pod.at}.{name}")
        if nodes.get("cloud.google.com/gke-spot") == "true":
            yield Field("scheduling.strategy", "spot", f"{pod.path}.nodeSelector")
    elif image:
        yield Field(f"{pod.role}Config.imageUri", image, f"{pod.at}.image")
    if pod.role == "master" and pod.spec.get("runtimeClassName") == "nvidia":
        yield Field(f"{pod.path}.runtimeClassName.gpu", "nvidia", f"{pod.path}.runtimeClassName")
    resources = "resources" if "resources" in pod.container else "resourcesPerNode"
    limits, counted = pod.container.get(resources) or {}, dict[str, str]()
    for kind in ("requests", "limits"):
        amounts = limits.get(kind) or {}
        counted |= {name: amounts.pop(name) for name in _COUNTED if name in amounts}
    counted = {name: number for name, number in counted.items() if number != "0"}
    others = [name for amounts in limits.values() for name in amounts if "/" in name]
    if pod.role != "master" and not counted and others:
        what = f"{others[0]} names an accelerator that is not known here"
        raise InputError(
            f"{where}: {pod.at}.{resources}: {what}",
            "write machine and accelerators of the role into a job's file (docs/jobs.md)",
        )
    for name in [name for name in nodes if _SHARES.search(name)]:
        share = f"{pod.path}.nodeSelector.{name}"
        yield Field(f"{pod.path}.share of an accelerator.{name}", nodes.pop(name), share)
    for name in () if counted else (key for key in TABLE["node_labels"] if key in nodes):
        yield Field(f"{pod.path}.nodeSelector.{name}", nodes[name], f"{pod.path}.nodeSelector")
    for resource, number in counted.items():
        was, shape = f"{pod.at}.{resources}", nodes.get("cloud.google.com/gke-tpu-topology")
        label = next((nodes[key] for key in TABLE["node_labels"] if key in nodes), accelerator)
        if label is None:
            raise InputError(
                f"{where}: {was}: {number} x {resource}, and no line says which they are",
                "give --accelerator V100, or the label cloud.google.com/gke-accelerator as "
                "nodeSelector",
            )
        if part := re.search(r"-(MIG-.*|SHARED)$", label):
            was_share = f"{pod.path}.nodeSelector.{label}"
            yield Field(f"{pod.path}.share of an accelerator.{part[1]}", label, was_share)
            label = label.removesuffix(part[0])
        number = str(math.prod(map(int, shape.split("x")))) if shape else number
        yield from of_accelerator(pod.role, TABLE["tpus"].get(label, label), number, was)


def _program(pod: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the container that runs the program, and its path: the first one that has devices,
    else the one that is called as operators call it, else the first."""
    found = list(enumerate(pod.get("containers") or ()))

    def likely(each: dict[str, Any]) -> tuple[bool, bool]:
        amounts = (each.get("resources") or {}).values()
        has = any("/" in name for names in amounts for name in names)
        return not has, each.get("name") not in TABLE["containers"]

    if not found:
        return pod, path
    index, container = min(found, key=lambda each: likely(each[1]))
    return container, f"{path}.containers.{index}"


def _whole(text: Any, where: str, at: str) -> int:
    """Return a number of a cluster's job. Raises InputError for another text."""
    if not re.fullmatch(r"[0-9]{1,9}", str(text)):
        fix = "write a whole one; of a template, what fills it in"
        raise InputError(f"{where}: {at}: {str(text)[:40]!r} is no number", fix)
    return int(text)


def _hosts(pod: dict[str, Any], path: str, where: str) -> int:
    """Return how many pods are one replica: all of a TPU's slice, by its topology."""
    shape = (pod.get("nodeSelector") or {}).get("cloud.google.com/gke-tpu-topology")
    container, at = _program(pod, path)
    resources = (container.get("resources") or {}).get("limits") or {}
    chips = _whole(resources.get("google.com/tpu") or 0, where, f"{at}.resources.limits")
    return max(math.prod(map(int, shape.split("x"))) // chips, 1) if shape and chips else 1


def _cluster_only(pod: _Pod) -> Iterator[tuple[str, Any, str]]:
    """Yield what the section `kubernetes` of a job's file has a field for, as its name, its value
    and its place, and take it out of the pod."""
    if priority := pod.spec.pop("priorityClassName", None):
        yield "priority", priority, f"{pod.path}.priorityClassName"
    if grace := pod.spec.pop("terminationGracePeriodSeconds", None):
        yield "grace", f"{grace}s", f"{pod.path}.terminationGracePeriodSeconds"
    nodes = pod.spec.pop("nodeSelector", None) or {}
    if labels := {name: nodes[name] for name in nodes if name not in TABLE["chosen_by"]}:
        yield "node_selector", labels, f"{pod.path}.nodeSelector"
    taints = [
        each for each in pod.spec.pop("tolerations", None) or () if each.get("key") not in _OURS
    ]
    if taints:
        for each in taints:
            each.pop("operator", None)  # a value says it
        yield "tolerations", taints, f"{pod.path}.tolerations"
    resources = "resources" if "resources" in pod.container else "resourcesPerNode"
    for kind, amounts in (pod.container.get(resources) or {}).items():
        if plain := {name: amounts.pop(name) for name in ("cpu", "memory") if name in amounts}:
            yield kind, plain, f"{pod.at}.{resources}.{kind}"
    volumes = {each["name"]: each for each in pod.spec.pop("volumes", None) or ()}
    mounts = pod.container.pop("volumeMounts", None) or ()
    claims, mounted = dict[str, Any](), {mount["name"] for mount in mounts}
    others = [volume for name, volume in volumes.items() if name not in mounted]
    for mount in mounts:
        volume = volumes.get(mount["name"]) or {}
        claim, folder = volume.get("persistentVolumeClaim"), mount["mountPath"]
        if claim and not {"subPath", "subPathExpr"} & {*mount}:
            only = "true" in (mount.get("readOnly"), claim.get("readOnly"))
            name = claim["claimName"]
            claims[folder] = {"claim": name, "read_only": "true"} if only else name
        elif folder not in ("/dev/shm", "/tmp") or "emptyDir" not in volume:  # every pod has those
            others.append({**volume, **mount})
    if claims:
        yield "volumes", claims, f"{pod.path}.volumes"
    if others:
        pod.spec["volumes"] = others


def _times(job: dict[str, Any], pods: Sequence[str]) -> Iterator[Field]:
    """Yield how long a job may run and is kept, and take out of it what says so."""
    above = (path.removesuffix(".template.spec") for path in pods)
    places = dict.fromkeys(("spec", "spec.runPolicy", *above, *pods))
    for name, field, least in (
        ("activeDeadlineSeconds", "scheduling.maxRunningTime", 1),
        ("ttlSecondsAfterFinished", "kubernetes.ttl", LEAST_KEPT),
    ):
        said = {place: _at(job, place)[name] for place in places if name in _at(job, place)}
        for place, value in said.items():
            if value == next(iter(said.values())) and int(value) >= least:
                del _at(job, place)[name]
                yield Field(field, f"{value}s", f"{place}.{name}")


def _groups(job: Mapping[str, Any], where: str) -> Iterator[tuple[str, int, str]]:
    """Yield the role, count and path of each pod's specification."""
    kind, spec = job["kind"], job.get("spec") or {}

    def number(value: Mapping[str, Any], name: str, at: str) -> int:
        return _whole(value.get(name, 1), where, f"{at}.{name}")

    at = {"Job": "spec", "CronJob": "spec.jobTemplate.spec"}.get(kind)
    if at and str(job["apiVersion"]).startswith("batch/"):
        yield "master", number(_at(job, at), "parallelism", at), f"{at}.template.spec"
    elif kind == "Pod":
        yield "master", 1, "spec"
    elif kind == "TrainJob" and "trainer" in spec:
        yield "master", number(spec["trainer"], "numNodes", "spec.trainer"), "spec.trainer"
    tasks = spec.get("tasks") if "volcano" in str(job["apiVersion"]) else None
    listed = list(tasks or spec.get("replicatedJobs") or ())
    called = [re.sub(r"[^a-z]", "", str(each.get("name")).lower()) for each in listed]
    roles = [TABLE["role_names"].get(name) for name in called]
    if "master" not in roles:
        roles = ["master" if name == "worker" else name for name in roles]
    if None in roles or len({*roles}) < len(roles) or "master" not in roles:
        roles = [*POOLS] if len(listed) == 1 or not tasks else []  # by their order
    for index, (role, each) in enumerate(zip(roles, listed, strict=False)):
        path = f"spec.{'tasks' if tasks else 'replicatedJobs'}.{index}"
        count = number(each, "replicas", path)
        if not tasks:
            path = f"{path}.template.spec"
            count *= number(_at(job, path), "parallelism", path)
        yield role, count, f"{path}.template.spec"
    launches = _only_launches(job)
    for name, known in TABLE["replica_specs"].items():
        specs = spec.get(name) or {}
        specs = {role: each for role, each in specs.items() if role != "Launcher" or not launches}
        first = not {"Master", "Chief", "Launcher"} & {*specs}
        for role in known:
            if role in specs:
                count = number(specs[role], "replicas", f"spec.{name}.{role}")
                alias = "master" if first and role == "Worker" else known[role]
                yield alias, count, f"spec.{name}.{role}.template.spec"


def _only_launches(job: Mapping[str, Any]) -> bool:
    """Return whether a job's launcher is none of its replicas, as an MPIJob's is."""
    workers = _at(job, f"{_MPI}.Worker")
    alone = not workers or workers.get("replicas") == "0"
    return not alone and _at(job, "spec").get("runLauncherAsWorker") != "true"


def _of_launcher(job: Mapping[str, Any]) -> Iterator[Field]:
    """Yield the program that an MPIJob's launcher starts in the workers, and take it out of both:
    a worker's own command is that of sshd."""
    path, workers = (f"{_MPI}.{role}.template.spec" for role in ("Launcher", "Worker"))
    (launcher, at), (worker, there) = (_program(_at(job, each), each) for each in (path, workers))
    for name in ("command", "args"):
        yield Field(f"{there}.{name}", worker.pop(name, None), f"{there}.{name}")
    command, args = (launcher.pop(name, None) or [] for name in ("command", "args"))
    words = [str(word) for word in (*command, *args)]
    program = next((n for n, word in enumerate(words) if _PYTHON.fullmatch(word)), 0)
    if words and _STARTS.fullmatch(words[0][words[0].rfind("/") + 1 :]) and program:
        command, args, options = words[program:], [], words[1:program]
        for before, word in pairwise(options):
            name, given, value = word.partition("=")
            if before == "-x" and given:
                yield of_variable({"name": name, "value": value}, f"{at}.command.-x")
        count = next((n for flag, n in pairwise(options) if flag in ("-np", "-n", "--np")), "")
        yield Field(f"{at}.mpirun", "", f"{at}.command.{words[0]}{count and f' -np {count}'}")
    elif starts := _STARTS.search("\n".join(words)):
        yield Field(f"{at}.a start of every replica", "", f"{at}.command.{starts[1]}")
    yield Field("masterConfig.containerCommand", command or None, f"{at}.command")
    yield Field("masterConfig.containerArgs", args or None, f"{at}.args")
    for variable in launcher.pop("env", None) or ():
        yield of_variable(variable, f"{at}.env")
    if launcher.get("image") == worker.get("image"):
        launcher.pop("image", None)
    launcher.pop("name", None)
    _at(job, f"{_MPI}.Launcher").pop("replicas", None)


def _at(value: Any, path: str) -> dict[str, Any]:
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value.get(step) or {}
    return value if isinstance(value, dict) else {}
