"""A checked job as Vertex AI takes it: the API's messages, and gcloud's YAML of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from builder.jobs import expected
from builder.jobs.description import Job, Parameter, Study
from builder.jobs.description.values import DISK_GB, ENVIRONMENT_LIMIT
from builder.jobs.machines import Placement
from builder.jobs.pools import REDUCTION, Pool
from builder.jobs.ready import CHOICE_LABEL, Ready, arguments

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
    """A hash of all that the job asks for: image, machines, arguments, region, project.

    Runs of the same job have the same key; another label holds the run's number. So have all ways
    to run a job that names alternatives.
    """
    if ready.group is not None:
        return ready.group
    told = [ready.project, ready.region, to_dict(_message(ready, None, 1))]
    text = json.dumps(told, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def display_name(job: Job, suffix: str) -> str:
    """`<name>-<suffix>`; the name is cut to the length that the service takes."""
    return f"{job.id[: DISPLAY_NAME_LENGTH - len(suffix) - 1]}-{suffix}"


def job_id(ready: Ready, run: int = 1) -> str:
    """The job's display name, which also replaces {job} in job_dir."""
    return display_name(ready.job, key(ready) + (f"-{run}" if run > 1 else ""))


def message(ready: Ready, run: int = 1) -> CustomJob | HyperparameterTuningJob:
    """The CustomJob, or the HyperparameterTuningJob where there is a study."""
    return _message(ready, key(ready), run)


def _message(ready: Ready, found: str | None, run: int) -> CustomJob | HyperparameterTuningJob:
    from google.cloud import aiplatform_v1

    job = ready.job
    name = job.id if found is None else job_id(ready, run)
    labels = dict(job.labels)
    if found is not None:
        labels |= {KEY_LABEL: found, NAME_LABEL: job.id, RUN_LABEL: str(run)}
        labels |= {CHOICE_LABEL: ready.choice} if ready.choice else {}
    spec = _spec(ready, None if found is None else name)
    wrapped = _encryption(job)
    if job.study is None:
        return aiplatform_v1.CustomJob(display_name=name, job_spec=spec, labels=labels, **wrapped)
    return aiplatform_v1.HyperparameterTuningJob(
        display_name=name,
        study_spec=_study(job.study),
        max_trial_count=job.study.trials,
        parallel_trial_count=job.study.parallel,
        max_failed_trial_count=job.study.max_failed,
        trial_job_spec=spec,
        labels=labels,
        **wrapped,
    )


def _encryption(job: Job) -> dict[str, Any]:
    key = job.vertex.encryption_key
    return {"encryption_spec": {"kms_key_name": key}} if key else {}


def _spec(ready: Ready, name: str | None) -> CustomJobSpec:
    from google.cloud import aiplatform_v1

    job, plan = ready.job, ready.job.scheduling
    job_dir = _job_dir(ready, name)
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
        pools.append(_pool(ready.of(pool.role), pool, placement, job_dir))
    spec = aiplatform_v1.CustomJobSpec(worker_pool_specs=pools, scheduling=scheduling)
    if job_dir:
        spec.base_output_directory = aiplatform_v1.GcsDestination(output_uri_prefix=job_dir)
    spec.service_account = job.service_account or ""
    spec.network = job.network or ""
    spec.tensorboard = job.tensorboard or ""
    own = job.vertex
    spec.persistent_resource_id = own.persistent_resource or ""
    spec.enable_web_access = own.web_access
    spec.enable_dashboard_access = own.dashboard_access
    if own.experiment:
        spec.experiment = experiment(ready, own.experiment)
        if own.experiment_run:
            spec.experiment_run = experiment(ready, f"{own.experiment}-{own.experiment_run}")
    return spec


def experiment(ready: Ready, name: str) -> str:
    """The whole name of an experiment or of a run of one, whose store has always the same name.

    Source: aiplatform v1, CustomJobSpec.experiment and experiment_run.
    """
    store = f"projects/{ready.project or '-'}/locations/{ready.region}/metadataStores/default"
    return f"{store}/contexts/{name}"


def _reservation(written: str | None) -> dict[str, Any] | None:
    """Source: aiplatform v1, ReservationAffinity."""
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


def _job_dir(ready: Ready, name: str | None) -> str | None:
    found = ready.job.job_dir
    return found.replace("{job}", name) if found and name else found


def job_dir(ready: Ready, run: int = 1) -> str | None:
    """The folder that a run writes to."""
    return _job_dir(ready, job_id(ready, run))


def _pool(ready: Ready, pool: Pool, placement: Placement, job_dir: str | None) -> WorkerPoolSpec:
    from google.cloud import aiplatform_v1

    job, device, reserved = ready.job, placement.device, ready.job.vertex.reservation
    machine = aiplatform_v1.MachineSpec(
        machine_type=placement.machine,
        reservation_affinity=_reservation(None if pool.role == REDUCTION else reserved),
    )
    if placement.topology:
        machine.tpu_topology = placement.topology
    elif device is not None:
        machine.accelerator_type = getattr(aiplatform_v1.AcceleratorType, str(device.type))
        machine.accelerator_count = placement.count
    disk = None  # without a wish the service takes the one that fits the machine
    if job.disk.type or job.disk.size_gb != DISK_GB[0]:
        disk = aiplatform_v1.DiskSpec(
            boot_disk_type=job.disk.type or "", boot_disk_size_gb=job.disk.size_gb
        )
    return aiplatform_v1.WorkerPoolSpec(
        machine_spec=machine,
        replica_count=pool.count,
        disk_spec=disk,
        nfs_mounts=[
            {"server": one.server, "path": one.path, "mount_point": one.name}
            for one in job.vertex.nfs
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
    """The job's variables, and what the replica's machine carries if there is room for one more."""
    own = ready.job.environment
    if len(own) >= ENVIRONMENT_LIMIT:
        return own
    return {**expected.on_a_machine(placement, ready.image.cuda), **own}


def _study(study: Study) -> StudySpec:
    from google.cloud import aiplatform_v1

    spec = aiplatform_v1.StudySpec(
        metrics=[
            aiplatform_v1.StudySpec.MetricSpec(
                metric_id=name,
                goal=getattr(aiplatform_v1.StudySpec.MetricSpec.GoalType, goal.upper()),
            )
            for name, goal in {study.metric: study.goal, **study.more_metrics}.items()
        ],
        parameters=[
            _parameter(study, name, one) for name, one in study.parameters.items() if not one.when
        ],
        algorithm=_ALGORITHMS[study.algorithm],
    )
    if study.early_stopping == "median":
        spec.median_automated_stopping_spec = aiplatform_v1.StudySpec.MedianAutomatedStoppingSpec()
    elif study.early_stopping == "curve":
        spec.decay_curve_stopping_spec = aiplatform_v1.StudySpec.DecayCurveAutomatedStoppingSpec()
    return spec


def _parameter(study: Study, name: str, one: Parameter) -> StudySpec.ParameterSpec:
    from google.cloud import aiplatform_v1

    kinds = aiplatform_v1.StudySpec.ParameterSpec
    spec = kinds(parameter_id=name)
    if one.kind != "categorical":
        spec.scale_type = kinds.ScaleType(_SCALES[one.scale])
    values = one.values or ()
    low, high = str(one.min), str(one.max)
    match one.kind:
        case "double":
            spec.double_value_spec = kinds.DoubleValueSpec(
                min_value=float(low), max_value=float(high)
            )
        case "integer":
            spec.integer_value_spec = kinds.IntegerValueSpec(
                min_value=int(float(low)), max_value=int(float(high))
            )
        case "discrete":
            spec.discrete_value_spec = kinds.DiscreteValueSpec(
                values=sorted(float(value) for value in values)
            )
        case "categorical":
            spec.categorical_value_spec = kinds.CategoricalValueSpec(values=list(values))
    for child, other in study.parameters.items():
        if wanted := (other.when or {}).get(name):
            spec.conditional_parameter_specs.append(
                kinds.ConditionalParameterSpec(
                    parameter_spec=_parameter(study, child, other), **_condition(one, wanted)
                )
            )
    return spec


def _condition(parent: Parameter, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Which values of its parent bring a parameter into a trial.

    Source: aiplatform v1, StudySpec.ParameterSpec.ConditionalParameterSpec.
    """
    if parent.kind == "integer":
        return {"parent_int_values": {"values": [int(one) for one in wanted]}}
    if parent.kind == "discrete":
        return {"parent_discrete_values": {"values": sorted(float(one) for one in wanted)}}
    return {"parent_categorical_values": {"values": list(wanted)}}


# --- as text --------------------------------------------------------------------------------------


def to_dict(job: CustomJob | HyperparameterTuningJob) -> dict[str, Any]:
    """The REST body: proto3 JSON, names of enums."""
    text = type(job).to_json(
        job, always_print_fields_with_no_presence=False, use_integers_for_enums=False
    )
    return dict(json.loads(text))


def gcloud(ready: Ready, run: int = 1) -> tuple[str, dict[str, Any]]:
    """The gcloud command and its config file.

    gcloud takes the display name, labels and the study's numbers as flags, and the rest as YAML.
    """
    told = to_dict(message(ready, run))
    flags = [f"--region={ready.region}"]
    flags += [f"--project={ready.project}"] if ready.project else []
    flags.append(f"--display-name={told['displayName']}")
    flags.append("--labels=" + ",".join(f"{k}={v}" for k, v in sorted(told["labels"].items())))
    if ready.job.study is None:
        command, config = "custom-jobs", told["jobSpec"]
    else:
        command = "hp-tuning-jobs"
        config = {key: told[key] for key in ("studySpec", "trialJobSpec")}
        if ready.job.study.max_failed:
            config["maxFailedTrialCount"] = told["maxFailedTrialCount"]
        flags.append(f"--max-trial-count={ready.job.study.trials}")
        flags.append(f"--parallel-trial-count={ready.job.study.parallel}")
    words = " \\\n    ".join([f"gcloud ai {command} create", *flags, "--config=job.yaml"])
    return words, _numbers(config)


def _numbers(value: Any, name: str = "") -> Any:
    """The value with each int64 as a number: proto3 JSON writes it as text."""
    if isinstance(value, Mapping):
        return {key: _numbers(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one, name) for one in value]
    return int(value) if name in _INT64 and isinstance(value, str) else value
