"""A job in the format of AI Platform: the `trainingInput` of its REST API, and its config.yaml.

AI Platform Training was shut down on 2025-01-31, so no service takes this format any more. It shows
an old job beside its description, and proves that `convert` loses nothing. Schema: aiplatform's
predecessor `ml.v1`, GoogleCloudMlV1__TrainingInput.
"""

from __future__ import annotations

import re
from typing import Any

from builder.core.errors import InputError
from builder.jobs import description
from builder.jobs.description import DEFAULT_TIMEOUT, Job, Study
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready

_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
"""Source: AI Platform Training, Job.jobId: unique in the project, never used twice."""

SHUTDOWN = "2025-01-31"
GONE = (
    f"AI Platform Training was shut down on {SHUTDOWN}: no service takes this any more.\n"
    "`builder job render` without --to legacy makes a Vertex AI job of the same description."
)

PREFIXES = {
    "chief": "master",
    "worker": "worker",
    "ps": "parameterServer",
    "evaluator": "evaluator",
}
SCALES = {
    "linear": "UNIT_LINEAR_SCALE",
    "log": "UNIT_LOG_SCALE",
    "reverse-log": "UNIT_REVERSE_LOG_SCALE",
}
ALGORITHMS = {
    "bayesian": "ALGORITHM_UNSPECIFIED",
    "random": "RANDOM_SEARCH",
    "grid": "GRID_SEARCH",
}
_ACCELERATORS = (
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "TPU_V2",
    "TPU_V3",
)
_FAMILIES = ("a2-", "c2-", "e2-", "m1-", "n1-", "n2-", "cloud-tpu")


def training_input(ready: Ready) -> dict[str, Any]:
    """The whole trainingInput of the REST API. Raises InputError for what it did not have."""
    job = ready.job
    found = _cluster(ready)
    found["masterConfig"] = found.get("masterConfig", {}) | {"imageUri": ready.image.reference}
    if job.command:
        found["masterConfig"]["containerCommand"] = list(job.command)
    if job.arguments and _own_programs(job):
        found["masterConfig"]["containerArgs"] = list(job.arguments)
    elif job.arguments:
        found["args"] = list(job.arguments)
    found["region"] = ready.region
    if job.job_dir:
        found["jobDir"] = _job_dir(ready)
    if job.service_account:
        found["serviceAccount"] = job.service_account
    return found


def config(ready: Ready) -> tuple[str, dict[str, Any]]:
    """The gcloud command of the time, and its config.yaml, which holds what no flag could."""
    job = ready.job
    words = [
        f"gcloud ai-platform jobs submit training {job_id(job)}",
        f"--region {ready.region}",
        f"--master-image-uri {ready.image.reference}",
        "--config config.yaml",
    ]
    words += [f"--job-dir {_job_dir(ready)}"] if job.job_dir else []
    words += [f"--service-account {job.service_account}"] if job.service_account else []
    found, chief = _cluster(ready), dict[str, Any]()
    if job.arguments and _own_programs(job):
        chief["containerArgs"] = list(job.arguments)
    elif job.arguments:
        words += ["--", *job.arguments]
    if job.command:
        chief["containerCommand"] = list(job.command)
    if chief:
        found["masterConfig"] = found.get("masterConfig", {}) | chief
    return " \\\n    ".join(words), {"trainingInput": found}


def _own_programs(job: Job) -> bool:
    """Whether a role has other arguments than the chief. Then no role can have `args`, which were
    for all. Source: ml.v1, ReplicaConfig."""
    return any(job.of(pool.role) is not job for pool in job.pools)


def _program(job: Job, role: str) -> dict[str, Any]:
    """What a role beside the chief has of its own."""
    mine, found = job.of(role), dict[str, Any]()
    if not _own_programs(job):
        return found
    if mine.image != job.image:
        found["imageUri"] = mine.image
    if mine.command:
        found["containerCommand"] = list(mine.command)
    if mine.arguments:
        found["containerArgs"] = list(mine.arguments)
    return found


def job_id(job: Job) -> str:
    """The job's name as AI Platform took it: letters, digits and underscores.

    Raises InputError where nothing is left of it.
    """
    found = re.sub(r"[^A-Za-z0-9_]", "_", job.id)
    if not _JOB_ID.fullmatch(found):
        raise InputError(
            f"{description.where(job, 'name')}: {found!r} was no job id of AI Platform",
            "a letter first, then letters, digits and _, at most 128",
        )
    return found


def _job_dir(ready: Ready) -> str:
    return str(ready.job.job_dir).replace("{job}", job_id(ready.job))


def _cluster(ready: Ready) -> dict[str, Any]:
    job = ready.job
    _possible(ready)
    found: dict[str, Any] = {"scaleTier": "CUSTOM"}
    for pool, placement in ready.pools:
        prefix = PREFIXES[pool.role]
        found[f"{prefix}Type"] = _type(placement)
        if pool.role != "chief":
            found[f"{prefix}Count"] = pool.count
        if pool.role != "chief" and (own := _program(job, pool.role)):
            found[f"{prefix}Config"] = own
        if placement.device is not None:
            accelerators = {"count": placement.count, "type": placement.device.type}
            config = found.setdefault(f"{prefix}Config", {})
            config["acceleratorConfig"] = accelerators
    if job.network:
        found["network"] = job.network
    if job.vertex.web_access:
        found["enableWebAccess"] = True
    if job.vertex.encryption_key:
        found["encryptionConfig"] = {"kmsKeyName": job.vertex.encryption_key}
    if job.scheduling.timeout != DEFAULT_TIMEOUT:
        found["scheduling"] = {"maxRunningTime": f"{job.scheduling.timeout}s"}
    if job.study is not None:
        found["hyperparameters"] = _hyperparameters(job.study)
    if any(pool.role == "worker" for pool, _ in ready.pools):
        found["useChiefInTfConfig"] = True  # TF_CONFIG says chief, as on Vertex AI
    return found


def _type(placement: Placement) -> str:
    return "cloud_tpu" if placement.machine == "cloud-tpu" else placement.machine


def _possible(ready: Ready) -> None:
    job = ready.job
    lacking: list[tuple[str, str]] = []
    if any(job.of(pool.role).environment for pool in job.pools):
        lacking.append(("environment", "environment variables"))
    if job.scheduling.strategy != "standard":
        lacking.append(("scheduling", f"{job.scheduling.strategy} machines"))
    if job.tensorboard:
        lacking.append(("tensorboard", "managed TensorBoard"))
    had = ("web_access", "encryption_key")
    lacking += [("vertex", name) for name in job.vertex.written if name not in had]
    if job.study is not None and job.study.more_metrics:
        lacking.append(("study", "second metric"))
    if job.study is not None and any(one.when for one in job.study.parameters.values()):
        lacking.append(("study", "parameters under a condition"))
    for pool, placement in ready.pools:
        device = placement.device
        if pool.role not in PREFIXES:
            lacking.append(("replicas", "Reduction Server"))
            break
        if not placement.machine.startswith(_FAMILIES) or (
            device is not None and device.type not in _ACCELERATORS
        ):
            lacking.append((_field(pool), f"{placement}"))
    if lacking:
        field, what = lacking[0]
        raise InputError(
            f"{description.where(job, field)}: AI Platform had no {what}",
            "render it for Vertex AI, without --to legacy",
        )


def _field(pool: Pool) -> str:
    return "machine" if pool.role == "chief" else "replicas"


def _hyperparameters(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {
        "goal": study.goal.upper(),
        "hyperparameterMetricTag": study.metric,
        "maxTrials": study.trials,
        "maxParallelTrials": study.parallel,
    }
    if study.max_failed:
        found["maxFailedTrials"] = study.max_failed
    if study.algorithm != "bayesian":
        found["algorithm"] = ALGORITHMS[study.algorithm]
    if study.early_stopping != "none":
        found["enableTrialEarlyStopping"] = True
    params = []
    for name, one in study.parameters.items():
        spec: dict[str, Any] = {"parameterName": name, "type": one.kind.upper()}
        match one.kind:
            case "double":
                spec |= {"minValue": float(str(one.min)), "maxValue": float(str(one.max))}
            case "integer":
                spec |= {"minValue": int(float(str(one.min))), "maxValue": int(float(str(one.max)))}
            case "discrete":
                spec["discreteValues"] = sorted(float(value) for value in one.values or ())
            case "categorical":
                spec["categoricalValues"] = list(one.values or ())
        if one.kind != "categorical":
            spec["scaleType"] = SCALES[one.scale]
        params.append(spec)
    found["params"] = params
    return found
