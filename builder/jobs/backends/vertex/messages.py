"""A checked job as the REST API of Vertex AI takes it, in plain values.

Names and values are those of proto3's JSON (aiplatform v1, CustomJob and HyperparameterTuningJob),
so a job is rendered without Google's library. tests/jobs/test_vertex.py reads them with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.jobs.backends.vertex import section
from builder.jobs.description.study import Parameter, Study
from builder.jobs.description.values import ENVIRONMENT_LIMIT
from builder.jobs.machines import Placement, Pool
from builder.jobs.ready import KEY_LABEL, NAME_LABEL, RUN_LABEL, Ready, arguments, given, key_of

Values = dict[str, Any]

DISPLAY_NAME_LENGTH = 128
"""Source: aiplatform v1, CustomJob.display_name."""

_ALGORITHMS = {"grid": "GRID_SEARCH", "random": "RANDOM_SEARCH"}
_STOPPING = {"median": "medianAutomatedStoppingSpec", "curve": "decayCurveStoppingSpec"}
_SCALES = {"linear": "UNIT_LINEAR_SCALE", "log": "UNIT_LOG_SCALE"}
_RESERVATIONS = {"none": "NO_RESERVATION", "any": "ANY_RESERVATION"}


def key(ready: Ready) -> str:
    """Return a hash of all that the job asks for: image, machines, arguments, region, project.

    Runs of the same job have the same key; another label holds the run's number.
    """
    return key_of([ready.project, ready.region, _body(ready, ready.job.id, {})])


def display_name(ready: Ready, run: int = 1) -> str:
    """Return `<name>-<key>`, which also replaces {job} in job_dir; the name is cut to fit."""
    suffix = f"-{key(ready)}" + (f"-{run}" if run > 1 else "")
    return ready.job.id[: DISPLAY_NAME_LENGTH - len(suffix)] + suffix


def body(ready: Ready, run: int = 1) -> Values:
    name = display_name(ready, run)
    labels = {KEY_LABEL: key(ready), NAME_LABEL: ready.job.id, RUN_LABEL: str(run)}
    return _body(ready, name, labels, name)


def _body(ready: Ready, name: str, labels: Mapping[str, str], folder: str | None = None) -> Values:
    """Return the job. folder: what replaces {job} in job_dir; None: nothing does."""
    job, spec = ready.job, _spec(ready, folder)
    values: Values = {"displayName": name, "labels": {**job.labels, **labels}}
    if key := section.of(job).encryption_key:
        values["encryptionSpec"] = {"kmsKeyName": key}
    if job.study is None:
        return {**values, "jobSpec": spec}
    return {
        **values,
        "studySpec": _study(job.study),
        "maxTrialCount": job.study.trials,
        "parallelTrialCount": job.study.parallel,
        **given(maxFailedTrialCount=job.study.max_failed or None),
        "trialJobSpec": spec,
    }


def _spec(ready: Ready, folder: str | None) -> Values:
    job, plan, options = ready.job, ready.job.scheduling, section.of(ready.job)
    job_dir = job.output(folder) if folder else job.job_dir
    pools: list[Values] = []  # a missing role is an empty pool, because a position is a role
    for pool, placement in ready.pools:
        pools += [{}] * (pool.position - len(pools))
        pools.append(_pool(ready, pool, placement, job_dir))
    scheduling = given(
        timeout=f"{plan.timeout}s",
        strategy=plan.strategy.upper().replace("-", "_"),
        disableRetries=plan.restarts == "never",
        maxWaitDuration=f"{plan.max_wait}s" if plan.max_wait is not None else None,
    )
    return {
        "workerPoolSpecs": pools,
        "scheduling": scheduling,
        **given(
            baseOutputDirectory={"outputUriPrefix": job_dir} if job_dir else None,
            serviceAccount=job.service_account,
            network=job.network,
            tensorboard=job.tensorboard,
            enableWebAccess=options.web_access,
        ),
    }


def _reservation(written: str | None) -> Values | None:
    """Return a reservation. Source: aiplatform v1, ReservationAffinity."""
    if written is None or written in _RESERVATIONS:
        return {"reservationAffinityType": _RESERVATIONS[written]} if written else None
    return {
        "reservationAffinityType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [written],
    }


def _pool(ready: Ready, pool: Pool, placement: Placement, job_dir: str | None) -> Values:
    job, device = ready.job, placement.device
    counted = device is not None and not placement.topology
    machine = given(
        machineType=placement.machine,
        reservationAffinity=_reservation(section.of(job).reservation),
        tpuTopology=placement.topology,
        acceleratorType=device.type if device and counted else None,
        acceleratorCount=placement.count if counted else None,
    )
    disk = given(bootDiskType=job.disk.type, bootDiskSizeGb=job.disk.size_gb)
    variables = _environment(ready, placement).items()
    container = given(
        imageUri=ready.image.reference,
        command=_command(ready),
        args=list(arguments(job, job_dir)),
        env=[{"name": name, "value": value} for name, value in variables],
    )
    return {
        "machineSpec": machine,
        "replicaCount": pool.count,
        **({"diskSpec": disk} if disk else {}),  # else the service takes the one that fits
        "containerSpec": container,
    }


def _command(ready: Ready) -> list[str]:
    """Return what replaces the ENTRYPOINT: the job's command, after a start that reads secrets."""
    job, image = ready.job, ready.image
    if not job.secrets:
        return list(job.command or ())
    of_project = f"projects/{ready.project}/secrets"
    versions = {
        name: f"{of_project}/{secret.secret}/versions/latest"
        for name, secret in job.secrets.items()
    }
    # without the packages and the hooks of the image: neither is needed, and they take time
    python = (image.entrypoint[0] if image.entrypoint else "python3", "-I", "-S", "-c")
    start = Path(__file__).with_name("start.py").read_text(encoding="utf-8")
    return [*python, start, json.dumps(versions), *(job.command or image.entrypoint)]


def _environment(ready: Ready, placement: Placement) -> Mapping[str, str]:
    """Return the job's variables; what the machine carries, and the image, if there is room."""
    variables = ready.job.variables
    every = {**ready.image.promised(placement), **variables}
    return every if len(every) <= ENVIRONMENT_LIMIT else variables


def _study(study: Study) -> Values:
    spec: Values = {
        "metrics": [{"metricId": study.metric, "goal": study.goal.upper()}],
        "parameters": [_parameter(*item) for item in study.parameters.items()],
    }
    if study.early_stopping in _STOPPING:
        spec[_STOPPING[study.early_stopping]] = {}
    return spec | given(algorithm=_ALGORITHMS.get(study.algorithm))


def _parameter(name: str, parameter: Parameter) -> Values:
    """Return a parameter. Source: aiplatform v1, StudySpec.ParameterSpec."""
    values, ends = parameter.values or (), (str(parameter.min), str(parameter.max))
    spec: Values = {"parameterId": name, "scaleType": _SCALES[parameter.scale]}
    match parameter.kind:
        case "double":
            low, high = map(float, ends)
            spec["doubleValueSpec"] = {"minValue": low, "maxValue": high}
        case "integer":
            first, last = (int(float(end)) for end in ends)
            spec["integerValueSpec"] = {"minValue": first, "maxValue": last}
        case "discrete":
            spec["discreteValueSpec"] = {"values": sorted(map(float, values))}
        case "categorical":
            del spec["scaleType"]
            spec["categoricalValueSpec"] = {"values": list(values)}
    return spec
