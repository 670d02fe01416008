"""A checked job as Vertex AI takes it: the API's messages, and gcloud's YAML of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from builder.jobs import expected
from builder.jobs.description import Parameter, Study
from builder.jobs.description.values import DISK_GB, ENVIRONMENT_LIMIT
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool
from builder.jobs.ready import Ready, arguments

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import (
        CustomJob,
        CustomJobSpec,
        HyperparameterTuningJob,
        StudySpec,
        WorkerPoolSpec,
    )

KEY_LABEL = "builder-key"
"""The label with the job's key, by which the same command finds the job that it created."""
NAME_LABEL = "builder-job"
RUN_LABEL = "builder-run"
KEY_LENGTH = 12
DISPLAY_NAME_LENGTH = 128
"""Source: aiplatform v1, CustomJob.display_name."""
RESERVATION_KEY = "compute.googleapis.com/reservation-name"

_ALGORITHMS = {"bayesian": 0, "grid": 2, "random": 3}
_SCALES = {"linear": 1, "log": 2, "reverse-log": 3}
_STRATEGIES = {"standard": 3, "spot": 4, "flex-start": 6}
_INT64 = frozenset({"replicaCount", "maxTrialCount", "parallelTrialCount", "minValue", "maxValue"})


def key(ready: Ready) -> str:
    """Return a hash of all that the job asks for: image, machines, arguments, region, project.

    Runs of the same job have the same key; another label holds the run's number.
    """
    content = [ready.project, ready.region, to_dict(_message(ready, ready.job.id, {}))]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def display_name(ready: Ready, run: int = 1) -> str:
    """Return `<name>-<key>`, which also replaces {job} in job_dir; the name is cut to fit."""
    suffix = f"-{key(ready)}" + (f"-{run}" if run > 1 else "")
    return ready.job.id[: DISPLAY_NAME_LENGTH - len(suffix)] + suffix


def message(ready: Ready, run: int = 1) -> CustomJob | HyperparameterTuningJob:
    """Return the CustomJob, or the HyperparameterTuningJob where there is a study."""
    labels = {KEY_LABEL: key(ready), NAME_LABEL: ready.job.id, RUN_LABEL: str(run)}
    name = display_name(ready, run)
    return _message(ready, name, labels, name)


def _message(
    ready: Ready, name: str, labels: Mapping[str, str], folder: str | None = None
) -> CustomJob | HyperparameterTuningJob:
    """folder: what replaces {job} in job_dir, None: nothing does."""
    from google.cloud import aiplatform_v1

    job, spec = ready.job, _spec(ready, folder)
    common: dict[str, Any] = {"display_name": name, "labels": {**job.labels, **labels}}
    if job.vertex.encryption_key:
        common["encryption_spec"] = {"kms_key_name": job.vertex.encryption_key}
    if job.study is None:
        return aiplatform_v1.CustomJob(job_spec=spec, **common)
    return aiplatform_v1.HyperparameterTuningJob(
        study_spec=_study(job.study),
        max_trial_count=job.study.trials,
        parallel_trial_count=job.study.parallel,
        max_failed_trial_count=job.study.max_failed,
        trial_job_spec=spec,
        **common,
    )


def _spec(ready: Ready, folder: str | None) -> CustomJobSpec:
    from google.cloud import aiplatform_v1

    job, plan, own = ready.job, ready.job.scheduling, ready.job.vertex
    job_dir = job.job_dir.replace("{job}", folder) if job.job_dir and folder else job.job_dir
    scheduling = aiplatform_v1.Scheduling(
        timeout=timedelta(seconds=plan.timeout),
        strategy=_STRATEGIES[plan.strategy],
        restart_job_on_worker_restart=plan.restarts == "job",
        disable_retries=plan.restarts == "never",
    )
    if plan.max_wait is not None:
        scheduling.max_wait_duration = timedelta(seconds=plan.max_wait)
    pools: list[Any] = []  # a missing role is an empty pool, because a position is a role
    for pool, placement in ready.pools:
        pools += [aiplatform_v1.WorkerPoolSpec()] * (pool.position - len(pools))
        pools.append(_pool(ready, pool, placement, job_dir))
    spec = aiplatform_v1.CustomJobSpec(
        worker_pool_specs=pools,
        scheduling=scheduling,
        service_account=job.service_account or "",
        network=job.network or "",
        tensorboard=job.tensorboard or "",
        persistent_resource_id=own.persistent_resource or "",
        enable_web_access=own.web_access,
        enable_dashboard_access=own.dashboard_access,
    )
    if job_dir:
        spec.base_output_directory = aiplatform_v1.GcsDestination(output_uri_prefix=job_dir)
    if own.experiment:
        spec.experiment = _context(ready, own.experiment)
        if own.experiment_run:
            spec.experiment_run = _context(ready, f"{own.experiment}-{own.experiment_run}")
    return spec


def _context(ready: Ready, name: str) -> str:
    """Return the whole name of an experiment or of a run of one, whose store is always `default`.

    Source: aiplatform v1, CustomJobSpec.experiment and experiment_run.
    """
    store = f"projects/{ready.project or '-'}/locations/{ready.region}/metadataStores/default"
    return f"{store}/contexts/{name}"


def _reservation(written: str | None) -> dict[str, Any] | None:
    """Return the message of a reservation. Source: aiplatform v1, ReservationAffinity."""
    if written is None:
        return None
    kinds = {"none": "NO_RESERVATION", "any": "ANY_RESERVATION"}
    if written in kinds:
        return {"reservation_affinity_type": kinds[written]}
    return {
        "reservation_affinity_type": "SPECIFIC_RESERVATION",
        "key": RESERVATION_KEY,
        "values": [written],
    }


def _pool(ready: Ready, pool: Pool, placement: Placement, job_dir: str | None) -> WorkerPoolSpec:
    from google.cloud import aiplatform_v1

    job, device = ready.job, placement.device
    machine = aiplatform_v1.MachineSpec(
        machine_type=placement.machine, reservation_affinity=_reservation(job.vertex.reservation)
    )
    if placement.topology:
        machine.tpu_topology = placement.topology
    elif device is not None:
        machine.accelerator_type = getattr(aiplatform_v1.AcceleratorType, str(device.type))
        machine.accelerator_count = placement.count
    disk = None  # where none is asked for, the service takes the one that fits the machine
    if job.disk.type or job.disk.size_gb != DISK_GB[0]:
        disk = aiplatform_v1.DiskSpec(
            boot_disk_type=job.disk.type or "", boot_disk_size_gb=job.disk.size_gb
        )
    return aiplatform_v1.WorkerPoolSpec(
        machine_spec=machine,
        replica_count=pool.count,
        disk_spec=disk,
        nfs_mounts=[
            {"server": mount.server, "path": mount.path, "mount_point": mount.name}
            for mount in job.vertex.nfs
        ],
        container_spec=aiplatform_v1.ContainerSpec(
            image_uri=ready.image.reference,
            command=list(job.command or ()),
            args=list(arguments(job, job_dir)),
            env=[
                {"name": name, "value": value}
                for name, value in _environment(ready, placement).items()
            ],
        ),
    )


def _environment(ready: Ready, placement: Placement) -> Mapping[str, str]:
    """Return the job's variables, and what the replica's machine carries if there is room for one
    more."""
    own = ready.job.variables
    if len(own) >= ENVIRONMENT_LIMIT:
        return own
    return {**expected.on_a_machine(placement, ready.image.cuda), **own}


def _study(study: Study) -> StudySpec:
    from google.cloud import aiplatform_v1

    goals = aiplatform_v1.StudySpec.MetricSpec.GoalType
    spec = aiplatform_v1.StudySpec(
        metrics=[{"metric_id": study.metric, "goal": getattr(goals, study.goal.upper())}],
        parameters=[_parameter(name, one) for name, one in study.parameters.items()],
        algorithm=_ALGORITHMS[study.algorithm],
    )
    if study.early_stopping == "median":
        spec.median_automated_stopping_spec = aiplatform_v1.StudySpec.MedianAutomatedStoppingSpec()
    elif study.early_stopping == "curve":
        spec.decay_curve_stopping_spec = aiplatform_v1.StudySpec.DecayCurveAutomatedStoppingSpec()
    return spec


def _parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    """Return the message of a parameter. Source: aiplatform v1, StudySpec.ParameterSpec."""
    spec: dict[str, Any] = {"parameter_id": name}
    if parameter.kind != "categorical":
        spec["scale_type"] = _SCALES[parameter.scale]
    values, ends = parameter.values or (), (str(parameter.min), str(parameter.max))
    match parameter.kind:
        case "double":
            low, high = map(float, ends)
            spec["double_value_spec"] = {"min_value": low, "max_value": high}
        case "integer":
            first, last = (int(float(end)) for end in ends)
            spec["integer_value_spec"] = {"min_value": first, "max_value": last}
        case "discrete":
            spec["discrete_value_spec"] = {"values": sorted(map(float, values))}
        case "categorical":
            spec["categorical_value_spec"] = {"values": list(values)}
    return spec


# --- as text --------------------------------------------------------------------------------------


def to_dict(job: CustomJob | HyperparameterTuningJob) -> dict[str, Any]:
    """Return the REST body: proto3 JSON, names of enums."""
    text = type(job).to_json(
        job, always_print_fields_with_no_presence=False, use_integers_for_enums=False
    )
    return dict(json.loads(text))


def gcloud(ready: Ready, run: int = 1) -> tuple[str, dict[str, Any]]:
    """Return the gcloud command and its config file.

    gcloud takes the display name, labels and the study's numbers as flags, and the rest as YAML.
    """
    body, study = to_dict(message(ready, run)), ready.job.study
    flags = [f"--region={ready.region}"]
    flags += [f"--project={ready.project}"] if ready.project else []
    flags.append(f"--display-name={body['displayName']}")
    labels = sorted(body["labels"].items())
    flags.append("--labels=" + ",".join(f"{name}={value}" for name, value in labels))
    if study is None:
        command, config = "custom-jobs", body["jobSpec"]
    else:
        command = "hp-tuning-jobs"
        names = ("studySpec", "trialJobSpec", "maxFailedTrialCount")
        config = {name: body[name] for name in names if name in body}
        flags.append(f"--max-trial-count={study.trials}")
        flags.append(f"--parallel-trial-count={study.parallel}")
    words = " \\\n    ".join([f"gcloud ai {command} create", *flags, "--config=job.yaml"])
    return words, _numbers(config)


def _numbers(value: Any, name: str = "") -> Any:
    """Return the value with each int64 as a number: proto3 JSON writes it as text."""
    if isinstance(value, Mapping):
        return {key: _numbers(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner, name) for inner in value]
    return int(value) if name in _INT64 and isinstance(value, str) else value
