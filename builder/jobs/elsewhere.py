"""Jobs of other services in the words of AI Platform's TrainingInput, which `convert` reads.

Vertex AI's CustomJobSpec, also as its Python client has it, and `gcloud ai custom-jobs create`, the
jobs of Kubernetes (clusters.py), tasks of SkyPilot and `xpk workload create`. What has no word
there keeps its path, so that it is named as not taken over. Sources: aiplatform.v1, CustomJobSpec;
SkyPilot, "SkyPilot YAML"; xpk, docs/usage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.jobs.clusters import of_cluster
from builder.jobs.fields import (
    POOLS,
    SAME,
    TABLE,
    TPU,
    Field,
    flat,
    of_accelerator,
    of_nodes,
    of_variable,
)


def fields(job: Mapping[str, Any], where: str, accelerator: str | None) -> Iterator[Field]:
    """Yield the fields of a job. accelerator: the one that a cluster's job counts without a name.

    Raises InputError for a kind of job that is not known, and for accelerators without a name: the
    job would become one without its image or its accelerators.
    """
    if isinstance(pools := job.get("jobSpec", job).get("workerPoolSpecs"), list):
        top = "jobSpec." if "jobSpec" in job else ""
        yield from _of_pools(pools, job.get("jobSpec", job), top)
    elif "apiVersion" in job and "kind" in job:
        yield from of_cluster(job, where, accelerator)
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
        or bool({*TABLE["training_input"], "run"} & {*value})
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


# --- Vertex AI ------------------------------------------------------------------------------------


def pool_field(index: int, path: str, value: Any, was: str, alone: bool) -> Iterator[Field]:
    """Yield a field of a worker pool, by its path there. alone: it is the only pool, so that its
    other replicas are workers like the chief."""
    role = POOLS[index] if index < len(POOLS) else ""
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
            yield from of_nodes(value, was)
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
                yield of_variable(variable, f"{was}.{program}.env")
        for path, value in flat(pool, ""):
            if index or not re.match(r"(container|pythonPackage)Spec\.env\.", path):
                yield from pool_field(index, path, value, f"{was}.{path}", len(pools) == 1)
    for path, value in flat({n: each for n, each in job.items() if n != "workerPoolSpecs"}, ""):
        yield Field(TABLE["custom_job"].get(path, path), value, f"{top}{path}")


def of_pool_flag(index: int, text: str, alone: bool) -> Iterator[Field]:
    """Yield what `--worker-pool-spec machine-type=n1-standard-8,replica-count=1` says."""
    was = "--worker-pool-spec"
    for part in text.split(","):
        key, _, value = part.partition("=")
        path, at = TABLE["pool_flags"].get(key, key), f"{was}.{index}.{key}"
        for each in pool_field(index, path, value, at, alone):
            yield Field(each.path, each.value, f"{was} {key}")


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
        yield from of_accelerator("master", name, str(count or 1), f"{at}.accelerators")
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
    yield from of_nodes(str(job.get("num_nodes", 1)), "num_nodes")
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
        tpu = device if TPU.fullmatch(device) else name
        yield from of_accelerator("master", tpu.removeprefix("nvidia-"), count or "1", was)
    yield from of_nodes(nodes, "--num-nodes")
    for flag, text in pairs:
        if flag == "command":
            yield Field("masterConfig.containerCommand", ["bash", "-c"], "--command")
            yield Field("masterConfig.containerArgs", [text], "--command")
        elif flag == "env":
            key, _, value = text.partition("=")
            yield Field(f"environment.{key}", value, f"--env {key}")
        elif flag == "spot":
            yield Field("scheduling.strategy", "spot", "--spot")
        elif flag not in ("device-type", "tpu-type", "num-slices", "num-nodes"):
            yield Field(TABLE["xpk"].get(flag, f"--{flag}"), text, f"--{flag}")
