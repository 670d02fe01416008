"""A job as Vertex AI or gcloud has it, turned into a job's file, with a ledger of every field.

Read are a CustomJob and a HyperparameterTuningJob, as the API or as `gcloud ai ... create --config`
has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from builder import contract
from builder.core.errors import InputError
from builder.jobs import ledger
from builder.jobs.ledger import Imported, Line
from builder.jobs.places.vertex import messages
from builder.jobs.pools import REDUCTION, ROLES
from builder.jobs.ready import Image, Ready

_WRITTEN_BY_THE_SERVICE: Final = (
    *("createTime", "endTime", "error", "name", "startTime", "state", "trials", "updateTime"),
    "webAccessUris",
)
_NAMES: Final = {
    "worker": "workers",
    "ps": "parameter_servers",
    "evaluator": "evaluator",
    REDUCTION: "reduction_servers",
}
_REDUCER: Final = "reductionserver"
"""By the name of its image the service tells Reduction Server from parameter servers."""
_CONDITIONS: Final = ("parentIntValues", "parentDiscreteValues", "parentCategoricalValues")
_LISTS: Final = ("workerPoolSpecs", "worker_pool_specs", "env", "metrics", "parameters")
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
    if not any(name in given for name in ("displayName", "display_name")):
        outer.pop("displayName", None)  # of gcloud's --config, which has none
    text, job = ledger.written(told, path)
    placements = tuple(ledger.placed(pool, path) for pool in job.pools)
    own = {pool.role: Image(job.of(pool.role).image) for pool in job.pools}
    ready = Ready(job, Image(job.image), where or "", placements, _project(body), images=own)
    again = messages.to_dict(messages.message(ready))
    late = [key for key in body if key in _WRITTEN_BY_THE_SERVICE]
    gone = [Line(key, "dropped", "the service writes it") for key in late]
    lines = (*ledger.compared(outer, again, _own_field), *gone)
    return Imported(text, lines, tuple(ledger.remarks(job)))


def _project(body: Mapping[str, Any]) -> str | None:
    """The project that an experiment's name has."""
    spec = body.get("jobSpec") or body.get("trialJobSpec") or {}
    parts = str(spec.get("experiment") or "").split("/")
    return parts[1] if len(parts) > 1 else None


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
        return kind.from_json(json.dumps(_lists(given), default=str))
    except ParseError as error:
        said = str(error).replace("google.cloud.aiplatform.v1.", "").replace("\n", " ")
        said = re.sub(r"^(Failed to parse \w+ field: )+", "", said)
        raise InputError(
            f"{path}: {said}", "correct the field, as the API's reference has it"
        ) from None


def _lists(value: Any) -> Any:
    """The same with a list where one entry stands without one. gcloud's --config takes that, and
    many files have `workerPoolSpecs:` with the chief's lines below it."""
    if isinstance(value, Mapping):
        return {
            name: [_lists(one)] if name in _LISTS and isinstance(one, Mapping) else _lists(one)
            for name, one in value.items()
        }
    return [_lists(one) for one in value] if isinstance(value, list) else value


# --- the job's file -------------------------------------------------------------------------------


def _job(body: Mapping[str, Any], path: Path, region: str | None) -> dict[str, Any]:
    spec = body.get("jobSpec") or body.get("trialJobSpec") or {}
    pools = spec.get("workerPoolSpecs") or []
    if not pools or not pools[0].get("machineSpec"):
        raise InputError(f"{path}: workerPoolSpecs[0] names no machine", "name the chief's machine")
    used = [(index, pool) for index, pool in enumerate(pools) if pool.get("replicaCount")]
    for index, pool in used:
        _check_pool(index, pool, path)
    chief = pools[0]
    program = _program(chief)
    return {
        **program,
        "region": region,
        **_machine(chief["machineSpec"]),
        "replicas": dict(_beside(index, pool, program) for index, pool in used if index),
        "job_dir": (spec.get("baseOutputDirectory") or {}).get("outputUriPrefix"),
        "service_account": spec.get("serviceAccount"),
        "network": spec.get("network"),
        "tensorboard": spec.get("tensorboard"),
        "disk": _disk(chief.get("diskSpec") or {}),
        "scheduling": _scheduling(spec.get("scheduling") or {}),
        "labels": {
            name: value
            for name, value in (body.get("labels") or {}).items()
            if not name.startswith("builder-")
        },
        "study": _study(body),
        "vertex": _vertex(body, spec, chief),
    }


def _check_pool(index: int, pool: Mapping[str, Any], path: Path) -> None:
    where = f"{path}: workerPoolSpecs[{index}]"
    if index >= len(ROLES):
        raise InputError(f"{where}: there are {len(ROLES)} roles", "remove the pool")
    if "containerSpec" not in pool:
        raise InputError(
            f"{where}: a Python package has no image",
            "builder job submit --package DIR --module NAME makes one of your folder",
        )
    if not pool.get("machineSpec"):
        raise InputError(f"{where}: names no machine", "add machineSpec.machineType")


def _program(pool: Mapping[str, Any]) -> dict[str, Any]:
    """Image, command, arguments and environment of a pool, as a job's file calls them."""
    container = pool["containerSpec"]
    return {
        "image": container.get("imageUri"),
        "command": container.get("command"),
        "arguments": container.get("args"),
        "environment": {one["name"]: one.get("value", "") for one in _own(pool)},
    }


def _beside(
    index: int, pool: Mapping[str, Any], chief: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The replicas of a role beside the chief, with what they do not share with it."""
    program, count = _program(pool), int(pool["replicaCount"])
    machine = _machine(pool["machineSpec"])
    if ROLES[index] == "ps" and _REDUCER in str(program["image"]):
        return _NAMES[REDUCTION], {"count": count, **machine, "image": program["image"]}
    own = {
        name: value if value is not None else []
        for name, value in program.items()
        if (value or None) != (chief[name] or None)
    }
    if "image" in own and not program["command"]:
        own.pop("command", None)  # of another image: its own
    return _NAMES[ROLES[index]], {"count": count, **{"accelerators": "none", **machine}, **own}


def _own(pool: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The variables of a pool without the one that `render` makes for each machine."""
    machine = pool["machineSpec"]
    paid = bool(machine.get("acceleratorType") or machine.get("tpuTopology"))
    for one in pool["containerSpec"].get("env") or []:
        if one["name"] != contract.ACCELERATOR or (paid and one.get("value") == contract.CPU):
            yield one


def _disk(spec: Mapping[str, Any]) -> dict[str, Any]:
    told = {"type": spec.get("bootDiskType"), "size_gb": spec.get("bootDiskSizeGb")}
    return {name: value for name, value in told.items() if value}


def _vertex(
    body: Mapping[str, Any], spec: Mapping[str, Any], chief: Mapping[str, Any]
) -> dict[str, Any]:
    """The table `vertex`: what no other place has."""
    experiment = str(spec.get("experiment") or "").rpartition("/")[2]
    run = str(spec.get("experimentRun") or "").rpartition("/")[2]
    found = {
        "reservation": _reservation(chief["machineSpec"].get("reservationAffinity") or {}),
        "persistent_resource": spec.get("persistentResourceId"),
        "experiment": experiment,
        "experiment_run": run.removeprefix(f"{experiment}-"),
        "web_access": spec.get("enableWebAccess"),
        "dashboard_access": spec.get("enableDashboardAccess"),
        "encryption_key": (body.get("encryptionSpec") or {}).get("kmsKeyName"),
        "nfs": [
            {"server": one.get("server"), "path": one.get("path"), "name": one.get("mountPoint")}
            for one in chief.get("nfsMounts") or []
        ],
    }
    return {name: value for name, value in found.items() if value}


def _reservation(spec: Mapping[str, Any]) -> str | None:
    kind = spec.get("reservationAffinityType")
    if kind == "SPECIFIC_RESERVATION":
        return next(iter(spec.get("values") or []), None)
    return {"NO_RESERVATION": "none", "ANY_RESERVATION": "any"}.get(str(kind))


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
    metric, *others = spec.get("metrics") or [{}]
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
        "more_metrics": {one["metricId"]: str(one["goal"]).lower() for one in others},
        "parameters": dict(_parameters(spec.get("parameters") or [])),
    }


def _parameters(
    specs: Sequence[Mapping[str, Any]], when: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each parameter, and after it those that hang on it, which the API has inside of it."""
    for one in specs:
        yield one["parameterId"], _parameter(one) | ({"when": when} if when else {})
        for inner in one.get("conditionalParameterSpecs") or []:
            condition = next(
                inner[name]["values"] for name in _CONDITIONS if inner.get(name) is not None
            )
            yield from _parameters([inner["parameterSpec"]], {one["parameterId"]: condition})


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
