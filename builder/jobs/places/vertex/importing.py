"""A job as Vertex AI or gcloud has it, turned into a job's file, with a ledger of every field.

Read are a CustomJob and a HyperparameterTuningJob, as the API or as `gcloud ai ... create --config`
has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs import ledger
from builder.jobs.checks import place
from builder.jobs.ledger import Imported, Line
from builder.jobs.places.vertex import messages
from builder.jobs.pools import ROLES
from builder.jobs.ready import Image, Ready

_WRITTEN_BY_THE_SERVICE: Final = (
    *("createTime", "endTime", "error", "name", "startTime", "state", "trials", "updateTime"),
    "webAccessUris",
)
_NAMES: Final = {"worker": "workers", "ps": "parameter_servers", "evaluator": "evaluator"}
_GCLOUD: Final = ("workerPoolSpecs", "worker_pool_specs")


def imported(given: Mapping[str, Any], path: Path, region: str | None = None) -> Imported:
    """The job's file of a job of Vertex AI. region: where it runs, if its name does not say.

    Raises InputError for what is none, or for a job that one file cannot say.
    """
    body = messages.to_dict(_message(given, path))
    outer = {key: value for key, value in body.items() if key not in _WRITTEN_BY_THE_SERVICE}
    parts = str(given.get("name") or "").split("/")
    where = region or (parts[3] if len(parts) == 6 else None)
    told = {key: value for key, value in _job(outer, path, where).items() if value}
    text, job = ledger.written(told, path)
    placements = tuple(place(pool) for pool in job.pools)
    ready = Ready(job, Image(job.image), where or "", placements)
    again = messages.to_dict(messages.message(ready))
    gone = [Line(key, "dropped", "the service writes it") for key in body if key not in outer]
    return Imported(text, (*ledger.compared(outer, again, _own_field), *gone))


def _own_field(field: str) -> bool:
    """Whether the factory itself writes a field, each time anew."""
    return (
        field == "displayName"
        or field.startswith("labels.builder-")
        or field.endswith(f"env[{contract.ACCELERATOR}].value")
    )


# --- reading --------------------------------------------------------------------------------------


def _message(given: Mapping[str, Any], path: Path) -> Any:
    """The message of the API. Raises InputError for a field that it does not have."""
    from google.cloud import aiplatform_v1
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]

    tuning = any(name in given for name in ("trialJobSpec", "trial_job_spec"))
    if any(name in given for name in _GCLOUD):
        given = {"displayName": path.stem, "jobSpec": dict(given)}
    elif not tuning and not any(name in given for name in ("jobSpec", "job_spec")):
        raise InputError(
            f"{path}: has neither jobSpec, trialJobSpec nor workerPoolSpecs",
            "name a CustomJob or a HyperparameterTuningJob; builder job convert: AI Platform",
        )
    kind: Any = aiplatform_v1.HyperparameterTuningJob if tuning else aiplatform_v1.CustomJob
    try:
        return kind.from_json(json.dumps(given, default=str))
    except ParseError as error:
        said = str(error).replace("google.cloud.aiplatform.v1.", "").replace("\n", " ")
        raise InputError(
            f"{path}: {said}", "correct the field, as the API's reference has it"
        ) from None


# --- the job's file -------------------------------------------------------------------------------


def _job(body: Mapping[str, Any], path: Path, region: str | None) -> dict[str, Any]:
    spec = body.get("jobSpec") or body.get("trialJobSpec") or {}
    pools = spec.get("workerPoolSpecs") or []
    if not pools or not pools[0].get("machineSpec"):
        raise InputError(f"{path}: workerPoolSpecs[0] names no machine", "name the chief's machine")
    used = [(index, pool) for index, pool in enumerate(pools) if pool.get("replicaCount")]
    container = _container(used, path)
    chief = pools[0]
    disk = chief.get("diskSpec") or {}
    return {
        "image": container.get("imageUri"),
        "region": region,
        **_machine(chief["machineSpec"]),
        "replicas": {
            _NAMES[ROLES[index]]: {
                "count": int(pool["replicaCount"]),
                **{"accelerators": "none", **_machine(pool["machineSpec"])},
            }
            for index, pool in used
            if index
        },
        "command": container.get("command"),
        "arguments": container.get("args"),
        "environment": {one["name"]: one.get("value", "") for one in container.get("env") or []},
        "job_dir": (spec.get("baseOutputDirectory") or {}).get("outputUriPrefix"),
        "service_account": spec.get("serviceAccount"),
        "network": spec.get("network"),
        "tensorboard": spec.get("tensorboard"),
        "disk": {
            name: value
            for name, value in {
                "type": disk.get("bootDiskType"),
                "size_gb": disk.get("bootDiskSizeGb"),
            }.items()
            if value
        },
        "scheduling": _scheduling(spec.get("scheduling") or {}),
        "labels": {
            name: value
            for name, value in (body.get("labels") or {}).items()
            if not name.startswith("builder-")
        },
        "study": _study(body),
    }


def _container(used: list[tuple[int, Any]], path: Path) -> Mapping[str, Any]:
    """The program, which all roles have in common. Raises InputError where they do not."""
    first: Mapping[str, Any] = {}
    for index, pool in used:
        where = f"{path}: workerPoolSpecs[{index}]"
        if "containerSpec" not in pool:
            raise InputError(
                f"{where}: a Python package has no image",
                "builder job submit --package DIR --module NAME makes one of your folder",
            )
        told = {**pool["containerSpec"], "env": list(_own(pool["containerSpec"]))}
        if index == 0:
            first = told
        elif told != first:
            other = [
                name
                for name in ("imageUri", "command", "args", "env")
                if told.get(name) != first.get(name)
            ]
            raise InputError(
                f"{where}.containerSpec.{other[0]}: is not the chief's, and a job's file has one "
                "program for all",
                "let one program read its role from TF_CONFIG",
            )
        if index >= len(ROLES):
            raise InputError(f"{where}: there are {len(ROLES)} roles", "remove the pool")
    return first


def _own(container: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The variables of a container without the one that `render` makes for each machine."""
    for one in container.get("env") or []:
        if one["name"] != contract.ACCELERATOR or one.get("value") == contract.CPU:
            yield one


def _machine(spec: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": spec.get("machineType")}
    if spec.get("acceleratorCount"):
        found["accelerators"] = {
            "type": spec["acceleratorType"],
            "count": int(spec["acceleratorCount"]),
        }
    if spec.get("tpuTopology"):
        found["topology"] = spec["tpuTopology"]
    return found


def _scheduling(spec: Mapping[str, Any]) -> dict[str, Any]:
    restarts = "job" if spec.get("restartJobOnWorkerRestart") else None
    strategy = str(spec.get("strategy") or "").lower().replace("_", "-")
    found = {
        "strategy": {"on-demand": "standard", "low-cost": "spot"}.get(strategy, strategy),
        "timeout": spec.get("timeout"),
        "max_wait": spec.get("maxWaitDuration"),
        "restarts": "never" if spec.get("disableRetries") else restarts,
    }
    return {name: value for name, value in found.items() if value}


def _study(body: Mapping[str, Any]) -> dict[str, Any] | None:
    spec = body.get("studySpec")
    if spec is None:
        return None
    metric = (spec.get("metrics") or [{}])[0]
    stopping = {"medianAutomatedStoppingSpec": "median", "decayCurveStoppingSpec": "curve"}
    algorithms = {"GRID_SEARCH": "grid", "RANDOM_SEARCH": "random"}
    return {
        "metric": metric.get("metricId"),
        "goal": str(metric.get("goal", "MAXIMIZE")).lower(),
        "trials": body.get("maxTrialCount", 1),
        "parallel": body.get("parallelTrialCount", 1),
        "algorithm": algorithms.get(spec.get("algorithm", ""), "bayesian"),
        "max_failed": body.get("maxFailedTrialCount", 0),
        "early_stopping": next((kind for name, kind in stopping.items() if name in spec), "none"),
        "parameters": {one["parameterId"]: _parameter(one) for one in spec.get("parameters") or []},
    }


def _parameter(spec: Mapping[str, Any]) -> dict[str, Any]:
    kind = next(
        name
        for name in ("double", "integer", "discrete", "categorical")
        if f"{name}ValueSpec" in spec
    )
    inner = spec[f"{kind}ValueSpec"]
    found: dict[str, Any] = {"type": kind}
    if kind in ("double", "integer"):
        found |= {"min": inner.get("minValue", 0), "max": inner.get("maxValue", 0)}
    else:
        found["values"] = inner.get("values")
    scales = {"UNIT_LOG_SCALE": "log", "UNIT_REVERSE_LOG_SCALE": "reverse-log"}
    if scale := scales.get(spec.get("scaleType", "")):
        found["scale"] = scale
    return found
