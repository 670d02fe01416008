"""A job as Vertex AI or gcloud writes it, turned into a job's file, and a ledger of every field.

The ledger is no list of intentions: the new file is rendered again, and each field of what was read
is compared with what would be sent. Read are a CustomJob and a HyperparameterTuningJob, as the API
or as `gcloud ai ... create --config` has them, in YAML or JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from builder import contract
from builder.core import yamlfile
from builder.core.errors import InputError
from builder.jobs import description
from builder.jobs.checks import place
from builder.jobs.places.vertex import messages
from builder.jobs.pools import ROLES
from builder.jobs.ready import Image, Ready

Fate = Literal["kept", "changed", "dropped", "added"]
_WRITTEN_BY_THE_SERVICE: Final = (
    *("createTime", "endTime", "error", "name", "startTime", "state", "trials", "updateTime"),
    "webAccessUris",
)
_NAMES: Final = {"worker": "workers", "ps": "parameter_servers", "evaluator": "evaluator"}
_GCLOUD: Final = ("workerPoolSpecs", "worker_pool_specs")


@dataclass(frozen=True)
class Line:
    """What became of one field. field: its path in the job; why: "" where it was kept."""

    field: str
    fate: Fate
    why: str = ""


@dataclass(frozen=True)
class Imported:
    """The text of a job's file, and what became of each field of the job that was read."""

    text: str
    ledger: tuple[Line, ...]

    def having(self, fate: Fate) -> tuple[Line, ...]:
        """The lines of one fate."""
        return tuple(one for one in self.ledger if one.fate == fate)


def import_file(path: Path, region: str | None = None) -> Imported:
    """Read a job of Vertex AI. region: where it runs, if its name does not say.

    Raises InputError for a file that is none, or for a job that one file cannot say.
    """
    given = _read(path)
    body = messages.to_dict(_message(given, path))
    outer = {key: value for key, value in body.items() if key not in _WRITTEN_BY_THE_SERVICE}
    parts = str(given.get("name") or "").split("/")
    where = region or (parts[3] if len(parts) == 6 else None)
    told = {key: value for key, value in _job(outer, path, where).items() if value}
    text = yamlfile.dump(told, f"Imported from {path.name}.")
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "imported"
    job = description.parse(text, Path(f"{name if name[0].isalpha() else 'job'}.yaml"))
    placements = tuple(place(pool) for pool in job.pools)
    ready = Ready(job, Image(job.image), where or "", placements)
    again = messages.to_dict(messages.message(ready))
    gone = [Line(key, "dropped", "the service writes it") for key in body if key not in outer]
    return Imported(text, (*_ledger(outer, again), *gone))


# --- reading --------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{path}: {why}", "name the file of a CustomJob") from None
    yamlfile.parse(text, str(path))  # its bounds, and its errors with their lines
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        raise InputError(f"{path}: not YAML: {error}", "write YAML or JSON") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is no job", "name the file of a CustomJob")
    if value.get("kind") == "JobSet":
        raise InputError(f"{path}: a JobSet is not imported yet", "write the job's file by hand")
    return value


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


# --- the ledger -----------------------------------------------------------------------------------


def _ledger(given: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[Line]:
    """Each field of the job that was read, and of the one that would be sent."""
    old, new = dict(_fields(given)), dict(_fields(again))
    for field, value in old.items():
        if field not in new:
            yield Line(field, "dropped", f"{value!r}: a job's file does not have it")
        elif new[field] == value:
            yield Line(field, "kept")
        elif field == "displayName" or field.startswith("labels.builder-"):
            yield Line(field, "changed", "the factory's own: the file's name and the job's key")
        elif field.endswith(f"env[{contract.ACCELERATOR}].value"):
            yield Line(
                field, "changed", "the factory's own: made anew for the machine and the image"
            )
        else:
            yield Line(field, "changed", f"{value!r} becomes {new[field]!r}")
    for field, value in new.items():
        if field not in old:
            yield Line(field, "added", f"{value!r}")


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _fields(one, f"{path}.{name}" if path else name)
    elif path.endswith((".env", ".parameters")):  # lists whose entries have names
        for one in value:
            name = one.get("name") or one.get("parameterId")
            yield from _fields(
                {key: inner for key, inner in one.items() if key not in ("name", "parameterId")},
                f"{path}[{name}]",
            )
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, one in enumerate(value):
            yield from _fields(one, f"{path}[{number}]")
    else:
        yield path, value
