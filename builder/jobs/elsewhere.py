"""Jobs of other services in the words of AI Platform's TrainingInput, which `convert` reads.

Vertex AI's CustomJobSpec, also as its Python client has it, and `gcloud ai custom-jobs create`, the
jobs of Kubernetes (Job, JobSet, PyTorchJob, TFJob, TrainJob), tasks of SkyPilot and `xpk workload
create`. What has no word there keeps its path, so that it is named as not taken over. Sources:
aiplatform.v1, CustomJobSpec; kubeflow.org/v1 and trainer.kubeflow.org/v1alpha1;
jobset.x-k8s.io/v1alpha2; SkyPilot, "SkyPilot YAML"; xpk, docs/usage.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builder.core.errors import InputError
from builder.facts import DATA, read_table
from builder.jobs.description.values import LEAST_KEPT

_TABLE: Final = read_table(DATA / "aiplatform.yaml")
_POOLS: Final = ("master", *_TABLE["roles"])
SAME: Final = "as the chief"
"""The machine type of a role whose replicas are as the chief."""
_COUNTED: Final = ("nvidia.com/gpu", "google.com/tpu", "amd.com/gpu")
_OURS: Final = (*_COUNTED, "cloud.google.com/gke-spot")
"""Taints that the factory's own pods tolerate where they have to."""
_SHARES: Final = re.compile(r"gke-(gpu-(partition|sharing)|max-shared)|nvidia\.com/mig")
"""Labels of nodes that give a pod a part of a GPU."""
_TPU: Final = re.compile(r"(?:tpu-?)?(v[2-6](?:p|e|litepod)?|7x)-([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    path: str
    """In the words of a TrainingInput."""
    value: Any
    was: str
    """Where it stands in the job, such as `workerPoolSpecs.0.replicaCount`."""


def fields(job: Mapping[str, Any], where: str, accelerator: str | None) -> Iterator[Field]:
    """Yield the fields of a job. accelerator: the one that a cluster's job counts without a name.

    Raises InputError for a kind of job that is not known, and for accelerators without a name: the
    job would become one without its image or its accelerators.
    """
    if isinstance(pools := job.get("jobSpec", job).get("workerPoolSpecs"), list):
        top = "jobSpec." if "jobSpec" in job else ""
        yield from _of_pools(pools, job.get("jobSpec", job), top)
    elif "apiVersion" in job and "kind" in job:
        yield from _of_cluster(job, where, accelerator)
    elif "run" in job and not {"trainingInput", "scaleTier"} & set(job):
        yield from _of_sky(job)
    else:
        inner = job.get("trainingInput")
        for path, value in flat(job, ""):
            yield Field(path.removeprefix("trainingInput.") if inner else path, value, path)


def is_job(value: Any) -> bool:
    """Return whether a file's value may be a job that is read here."""
    if not isinstance(value, dict):
        return False
    inner = value["jobSpec"] if isinstance(value.get("jobSpec"), dict) else value
    pools = isinstance(inner.get("workerPoolSpecs"), list)
    return (
        pools
        or bool({*_TABLE["training_input"], "run"} & {*value})
        or {"apiVersion", "kind"} <= {*value}
    )


def in_camel_case(value: Any) -> Any:
    """Return a job of Vertex AI's Python client as the API writes it: `worker_pool_specs`, or their
    list, are `workerPoolSpecs`."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict) and {"machine_spec", "machineSpec"} & {*first}:
        value = {"worker_pool_specs": value}
    if isinstance(value, dict) and {"worker_pool_specs", "job_spec"} & {*value}:
        return _camel(value)
    return value


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    camel = {re.sub(r"_([a-z])", lambda match: match[1].upper(), name): name for name in value}
    return {
        name: value[was] if was == "labels" else _camel(value[was]) for name, was in camel.items()
    }


def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value with its path; a list is a value, unless it is one of mappings."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(index): inner for index, inner in enumerate(value)}
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _accelerator(role: str, name: str, count: str, was: str) -> Iterator[Field]:
    """Yield an accelerator as other services call it: `H100`, `h100-80gb`, `tpu-v5litepod-16`."""
    if tpu := _TPU.fullmatch(name):
        generation = tpu[1].lower().replace("litepod", "e")
        name, count = "TPU7x" if generation == "7x" else f"TPU-{generation}", tpu[2]
        count = str(int(count) // 2) if generation == "v5p" else count
    name = re.sub(r"^(nvidia-)?tesla-|-(sxm[0-9]?|pcie|hbm3e?)(?=-|$)", "", name, flags=re.I)
    yield Field(f"{role}Config.acceleratorConfig.type", name, was)
    yield Field(f"{role}Config.acceleratorConfig.count", count, was)


def _nodes(count: str, was: str) -> Iterator[Field]:
    """Yield the replicas of a job whose nodes are alike: the chief, and workers like it."""
    if count.isdigit() and int(count) > 1:
        yield Field("workerCount", str(int(count) - 1), was)
        yield Field("workerType", SAME, was)


# --- Vertex AI ------------------------------------------------------------------------------------


def pool_field(index: int, path: str, value: Any, was: str, alone: bool) -> Iterator[Field]:
    """Yield a field of a worker pool, by its path there. alone: it is the only pool, so that its
    other replicas are workers like the chief."""
    role = _POOLS[index] if index < len(_POOLS) else ""
    names = {
        "machineSpec.machineType": f"{role}Type",
        "machineSpec.acceleratorType": f"{role}Config.acceleratorConfig.type",
        "machineSpec.acceleratorCount": f"{role}Config.acceleratorConfig.count",
        "machineSpec.tpuTopology": f"{role}Config.acceleratorConfig.topology",
        "containerSpec.imageUri": f"{role}Config.imageUri",
        "replicaCount": f"{role}Count",
    }
    if index == 0:
        names |= {
            "containerSpec.command": "masterConfig.containerCommand",
            "containerSpec.args": "masterConfig.containerArgs",
            "pythonPackageSpec.args": "masterConfig.containerArgs",
        }
    if index == 0 and path == "replicaCount":
        if alone:
            yield from _nodes(value, was)
        elif value != "1":  # the chief is one
            yield Field(was, value, was)
    else:
        yield Field(names.get(path, was) if role else was, value, was)


def _of_pools(pools: Sequence[Any], job: Mapping[str, Any], top: str) -> Iterator[Field]:
    yield Field("scaleTier", "CUSTOM", f"{top}workerPoolSpecs")
    for index, pool in enumerate(pools):
        was = f"{top}workerPoolSpecs.{index}"
        for program in ("containerSpec", "pythonPackageSpec") if index == 0 else ():
            for variable in pool.get(program, {}).get("env", ()):
                yield _variable(variable, f"{was}.{program}.env")
        for path, value in flat(pool, ""):
            if index or not re.match(r"(container|pythonPackage)Spec\.env\.", path):
                yield from pool_field(index, path, value, f"{was}.{path}", len(pools) == 1)
    for path, value in flat({n: each for n, each in job.items() if n != "workerPoolSpecs"}, ""):
        yield Field(_TABLE["custom_job"].get(path, path), value, f"{top}{path}")


def of_pool_flag(index: int, text: str, alone: bool) -> Iterator[Field]:
    """Yield what `--worker-pool-spec machine-type=n1-standard-8,replica-count=1` says."""
    was = "--worker-pool-spec"
    for part in text.split(","):
        key, _, value = part.partition("=")
        path, at = _TABLE["pool_flags"].get(key, key), f"{was}.{index}.{key}"
        for each in pool_field(index, path, value, at, alone):
            yield Field(each.path, each.value, f"{was} {key}")


# --- Kubernetes -----------------------------------------------------------------------------------


def _of_cluster(written: Mapping[str, Any], where: str, accelerator: str | None) -> Iterator[Field]:
    job = copy.deepcopy(dict(written))  # what is read is taken out of it, and the rest is named
    kind, groups = job.pop("kind"), [*_groups(written, where)]
    groups.sort(key=lambda group: group[0] != "master")
    if not groups:
        raise InputError(
            f"{where}: this is a {kind} of Kubernetes ({job['apiVersion']}); it is not converted",
            "write image, machine, accelerators, command and arguments of its first container into "
            "a job's file (docs/jobs.md)",
        )
    yield Field("scaleTier", "CUSTOM", "kind")
    chief = dict[str, Any]()
    for role, pods, path in groups:
        pod = _at(job, path)
        count = str(pods // _hosts(pod, path, where))
        yield from _of_pod(role, pod, path, where, accelerator)
        for name, value, was in _cluster_only(pod, path):
            if role == "master":
                chief[name] = value
                yield Field(f"kubernetes.{name}", value, was)
            elif value != chief.get(name):
                yield Field(f"{role}.{name}", value, was)
        if role != "master":
            yield Field(f"{role}Count", count, path)
        elif "worker" not in (other for other, _, _ in groups):
            yield from _nodes(count, path)
        elif count != "1":
            yield Field(f"{path}.replicas", count, path)  # there is one chief
        for above in (path.split(".template.")[0], path.removesuffix(".template.spec")):
            for name in ("name", "replicas", "numNodes", "parallelism", "completions"):
                _at(job, above).pop(name, None)
    yield from _times(job, [path for *_, path in groups])
    _at(job, "metadata").pop("name", None)
    del job["apiVersion"]
    for path, value in flat(job, ""):
        yield Field(path, value, path)


def _of_pod(
    role: str, pod: dict[str, Any], path: str, where: str, accelerator: str | None
) -> Iterator[Field]:
    """Yield what the program's container of a pod says, and take it out of the pod."""
    container, at = _program(pod, path)
    nodes, variables = pod.get("nodeSelector") or {}, container.pop("env", None) or ()
    image, _ = container.pop("image", None), container.pop("name", None)
    yield Field(f"{role}Type", nodes.get("node.kubernetes.io/instance-type", ""), at)
    if role == "master":
        yield Field("masterConfig.imageUri", image, f"{at}.image")
        for name, new in (("command", "containerCommand"), ("args", "containerArgs")):
            yield Field(f"masterConfig.{new}", container.pop(name, None), f"{at}.{name}")
        for variable in variables:
            yield _variable(variable, f"{at}.env")
        if nodes.get("cloud.google.com/gke-spot") == "true":
            yield Field("scheduling.strategy", "spot", f"{path}.nodeSelector")
    elif image:
        yield Field(f"{role}Config.imageUri", image, f"{at}.image")
    if role == "master" and pod.get("runtimeClassName") == "nvidia":
        yield Field(f"{path}.runtimeClassName.gpu", "nvidia", f"{path}.runtimeClassName")
    resources = "resources" if "resources" in container else "resourcesPerNode"
    limits, counted = container.get(resources) or {}, dict[str, str]()
    for kind in ("requests", "limits"):
        amounts = limits.get(kind) or {}
        counted |= {name: amounts.pop(name) for name in _COUNTED if name in amounts}
    counted = {name: number for name, number in counted.items() if number != "0"}
    others = [name for amounts in limits.values() for name in amounts if "/" in name]
    if role != "master" and not counted and others:
        raise InputError(
            f"{where}: {at}.{resources}: {others[0]} names an accelerator that is not known here",
            "write machine and accelerators of the role into a job's file (docs/jobs.md)",
        )
    for name in [name for name in nodes if _SHARES.search(name)]:
        share = f"{path}.nodeSelector.{name}"
        yield Field(f"{path}.share of an accelerator.{name}", nodes.pop(name), share)
    for name in () if counted else (key for key in _TABLE["node_labels"] if key in nodes):
        yield Field(f"{path}.nodeSelector.{name}", nodes[name], f"{path}.nodeSelector")
    for resource, number in counted.items():
        was, shape = f"{at}.{resources}", nodes.get("cloud.google.com/gke-tpu-topology")
        label = next((nodes[key] for key in _TABLE["node_labels"] if key in nodes), accelerator)
        if label is None:
            raise InputError(
                f"{where}: {was}: {number} x {resource}, and no line says which they are",
                "give --accelerator V100, or the label cloud.google.com/gke-accelerator as "
                "nodeSelector",
            )
        if part := re.search(r"-(MIG-.*|SHARED)$", label):
            was_share = f"{path}.nodeSelector.{label}"
            yield Field(f"{path}.share of an accelerator.{part[1]}", label, was_share)
            label = label.removesuffix(part[0])
        number = str(math.prod(map(int, shape.split("x")))) if shape else number
        yield from _accelerator(role, _TABLE["tpus"].get(label, label), number, was)


def _program(pod: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the container that runs the program, and its path: the first one that has devices,
    else the one that is called as operators call it, else the first."""
    found = list(enumerate(pod.get("containers") or ()))

    def likely(each: dict[str, Any]) -> tuple[bool, bool]:
        amounts = (each.get("resources") or {}).values()
        has = any("/" in name for names in amounts for name in names)
        return not has, each.get("name") not in _TABLE["containers"]

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


def _cluster_only(pod: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    """Yield what the section `kubernetes` of a job's file has a field for, as its name, its value
    and its place, and take it out of the pod."""
    container, at = _program(pod, path)
    if priority := pod.pop("priorityClassName", None):
        yield "priority", priority, f"{path}.priorityClassName"
    if grace := pod.pop("terminationGracePeriodSeconds", None):
        yield "grace", f"{grace}s", f"{path}.terminationGracePeriodSeconds"
    nodes = pod.pop("nodeSelector", None) or {}
    if labels := {name: nodes[name] for name in nodes if name not in _TABLE["chosen_by"]}:
        yield "node_selector", labels, f"{path}.nodeSelector"
    taints = [each for each in pod.pop("tolerations", None) or () if each.get("key") not in _OURS]
    if taints:
        for each in taints:
            each.pop("operator", None)  # a value says it
        yield "tolerations", taints, f"{path}.tolerations"
    resources = "resources" if "resources" in container else "resourcesPerNode"
    for kind, amounts in (container.get(resources) or {}).items():
        if plain := {name: amounts.pop(name) for name in ("cpu", "memory") if name in amounts}:
            yield kind, plain, f"{at}.{resources}.{kind}"
    volumes = {each["name"]: each for each in pod.pop("volumes", None) or ()}
    mounts = container.pop("volumeMounts", None) or ()
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
        yield "volumes", claims, f"{path}.volumes"
    if others:
        pod["volumes"] = others


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

    if kind == "Job" and str(job["apiVersion"]).startswith("batch/"):
        yield "master", number(spec, "parallelism", "spec"), "spec.template.spec"
    elif kind == "TrainJob" and "trainer" in spec:
        yield "master", number(spec["trainer"], "numNodes", "spec.trainer"), "spec.trainer"
    tasks = spec.get("tasks") if "volcano" in str(job["apiVersion"]) else None
    listed = list(tasks or spec.get("replicatedJobs") or ())
    called = [re.sub(r"[^a-z]", "", str(each.get("name")).lower()) for each in listed]
    roles = [_TABLE["role_names"].get(name) for name in called]
    if "master" not in roles:
        roles = ["master" if name == "worker" else name for name in roles]
    if None in roles or len({*roles}) < len(roles) or "master" not in roles:
        roles = [*_POOLS] if len(listed) == 1 or not tasks else []  # by their order
    for index, (role, each) in enumerate(zip(roles, listed, strict=False)):
        path = f"spec.{'tasks' if tasks else 'replicatedJobs'}.{index}"
        count = number(each, "replicas", path)
        if not tasks:
            path = f"{path}.template.spec"
            count *= number(_at(job, path), "parallelism", path)
        yield role, count, f"{path}.template.spec"
    for name, known in _TABLE["replica_specs"].items():
        specs = spec.get(name) or {}
        first = not {"Master", "Chief"} & set(specs)
        for role in known:
            if role in specs:
                count = number(specs[role], "replicas", f"spec.{name}.{role}")
                alias = "master" if first and role == "Worker" else known[role]
                yield alias, count, f"spec.{name}.{role}.template.spec"


def _variable(variable: Mapping[str, Any], was: str) -> Field:
    name, source = variable.get("name"), variable.get("valueFrom") or {}
    path, value = f"environment.{name}", variable.get("value", "")
    if secret := source.get("secretKeyRef"):
        value = {"secret": secret["name"], "key": secret["key"]}
    elif source:
        path = f"{was}.{name}"
    return Field(path, value, f"{was}.{name}")


def _at(value: Any, path: str) -> dict[str, Any]:
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value.get(step) or {}
    return value if isinstance(value, dict) else {}


# --- SkyPilot, xpk --------------------------------------------------------------------------------


def _of_sky(job: Mapping[str, Any]) -> Iterator[Field]:
    resources = job.get("resources") or {}
    choices = resources.get("any_of") or resources.get("ordered") or [{}]
    wanted = {
        **choices[0],
        **{k: v for k, v in resources.items() if k not in ("any_of", "ordered")},
    }
    at = "resources"
    yield Field("scaleTier", "CUSTOM", at)
    yield Field("masterType", wanted.pop("instance_type", ""), f"{at}.instance_type")
    if carried := wanted.pop("accelerators", None):
        one = next(iter(carried)) if isinstance(carried, (list, dict)) else carried
        name, _, count = str(one).partition(":")
        count = carried[one] if isinstance(carried, dict) else count
        yield from _accelerator("master", name, str(count or 1), f"{at}.accelerators")
        for other in [] if isinstance(carried, str) else list(carried)[1:]:
            yield Field(f"{at}.any_of.{other}", other, f"{at}.accelerators.{other}")
    kind = "any_of" if "any_of" in resources else "ordered"
    for index, other in enumerate(choices[1:], 1):
        yield Field(f"{at}.{kind}.{index}", other, f"{at}.{kind}.{index}")
    image = wanted.pop("image_id", "")
    image = next(iter(image.values()), "") if isinstance(image, dict) else image  # by region
    image = str(image).removeprefix("docker:")
    yield Field("masterConfig.imageUri", image or None, f"{at}.image_id")
    cloud, _, place = str(wanted.get("infra", "")).partition("/")
    if cloud == "gcp":
        del wanted["infra"]
    region = place.partition("/")[0] if cloud == "gcp" else ""
    yield Field("region", wanted.pop("region", region or None), f"{at}.infra")
    if wanted.pop("use_spot", "") == "true":
        yield Field("scheduling.strategy", "spot", f"{at}.use_spot")
    yield Field("masterConfig.containerCommand", ["bash", "-c"], "run")
    yield Field("masterConfig.containerArgs", [job["run"]], "run")
    yield from _nodes(str(job.get("num_nodes", 1)), "num_nodes")
    for name, value in (job.get("envs") or {}).items():
        path = f"environment.{name}" if value is not None else f"envs.{name}"
        yield Field(path, value or "", f"envs.{name}")
    for name in sorted({*re.findall(r"SKYPILOT_\w+", str(job["run"]))}):
        yield Field(f"run.${name}", name, f"run.${name}")
    taken = ("resources", "run", "num_nodes", "envs", "name")
    rest = {"resources": wanted} | {n: each for n, each in job.items() if n not in taken}
    for path, value in flat(rest, ""):
        yield Field(path, "" if value is None else value, path)


def of_local_train(flags: Mapping[str, str]) -> Iterator[Field]:
    """Yield the machines of `gcloud ai-platform local train`, which had none. Its two counts are 2
    by default, and count only with `--distributed`. Source: Google Cloud CLI, reference."""
    yield Field("scaleTier", "CUSTOM", "local train")
    yield Field("masterType", "n1-standard-4", "local train")
    for role, flag in (("worker", "worker-count"), ("parameterServer", "parameter-server-count")):
        count = flags.get(flag, "2") if "distributed" in flags else "0"
        yield Field(f"{role}Count", count, f"--{flag}")
        yield Field(f"{role}Type", SAME if count != "0" else None, f"--{flag}")


def of_xpk(pairs: Sequence[tuple[str, str]]) -> Iterator[Field]:
    """Yield what `xpk workload create --device-type h100-80gb-8 --docker-image IMAGE` says."""
    flags = dict(pairs)
    yield Field("scaleTier", "CUSTOM", "xpk")
    device = flags.get("device-type") or flags.get("tpu-type") or ""
    was = "--device-type" if "device-type" in flags else "--tpu-type"
    name, _, count = device.rpartition("-")
    nodes = flags.get("num-slices") or flags.get("num-nodes") or "1"
    if re.match(r"[a-z]+[0-9][a-z]?-(standard|high)", name):  # a machine, and how many
        yield Field("masterType", name, was)
        nodes = count
    else:
        yield Field("masterType", "", was)
        tpu = device if _TPU.fullmatch(device) else name
        yield from _accelerator("master", tpu.removeprefix("nvidia-"), count or "1", was)
    yield from _nodes(nodes, "--num-nodes")
    for flag, text in pairs:
        if flag == "command":
            yield Field("masterConfig.containerCommand", ["bash", "-c"], "--command")
            yield Field("masterConfig.containerArgs", [text], "--command")
        elif flag == "env":
            key, _, value = text.partition("=")
            yield Field(f"environment.{key}", value, "--env")
        elif flag == "spot":
            yield Field("scheduling.strategy", "spot", "--spot")
        elif flag not in ("device-type", "tpu-type", "num-slices", "num-nodes"):
            yield Field(_TABLE["xpk"].get(flag, f"--{flag}"), text, f"--{flag}")
