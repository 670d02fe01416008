"""A job on this machine: its replicas, and what Vertex AI would tell each of them.

Pure: a LocalJob goes in, frozen replicas come out. Names, ports and variables are those of the
service's custom containers (Vertex AI, "Use custom containers": CLUSTER_SPEC, TF_CONFIG, AIP_*),
so that a trainer cannot tell the difference; only the folders are local ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from builder import contract
from builder.core.errors import InputError
from builder.jobs.pools import Pool

PORT = 2222
"""Where replicas reach each other. Source: Vertex AI, distributed training, CLUSTER_SPEC."""

JOB, GCS, RECORDS = "/job", "/gcs", "/records"
"""Where a container finds the job's folder, the buckets, and the data of --records."""

METRICS = "/tmp/hypertune"
"""Where cloudml-hypertune writes output.metrics, which is what the service reads of a trial."""

Restarts = Literal["worker", "job", "never"]


@dataclass(frozen=True)
class Trial:
    """One trial of a study: its number from 1, its arguments, the folder its metrics arrive in.

    place: among the `at_once` trials that run side by side, from 0: no two have the same.
    """

    number: int
    arguments: tuple[str, ...]
    metrics: Path
    place: int = 0
    at_once: int = 1


@dataclass(frozen=True)
class LocalJob:
    """What is run. `image` is a reference or an id that the engine holds.

    folder: the job's folder on this machine; base: the gs:// folder that it stands for, "" for
    none; records: a folder of data, mounted read-only, passed as --records; buckets: a folder whose
    folders stand for buckets; timeout and grace in seconds; shm in bytes. key, run: a
    hash of everything that the job asks for, and the count of its submissions; the place sets both.
    """

    name: str
    image: str
    folder: Path
    pools: tuple[Pool, ...] = (Pool("chief"),)
    command: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    pass_job_dir: bool = False
    records: Path | None = None
    buckets: Path | None = None
    restarts: Restarts = "worker"
    timeout: float = 7 * 24 * 3600.0
    grace: float = 30.0
    shm: int = 1 << 30
    trial: Trial | None = None
    key: str = ""
    run: int = 1


@dataclass(frozen=True)
class Replica:
    """One container of a job. `gpus`: the ids of this machine's GPUs that it gets."""

    role: str
    index: int
    host: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """worker-0: what stands before its lines."""
        return f"{self.role}-{self.index}"

    @property
    def primary(self) -> bool:
        """Whether the job ends when this replica does."""
        return self.role == "chief"


def replicas(job: LocalJob, identity: str, gpus: Sequence[str] = ()) -> tuple[Replica, ...]:
    """Every replica of a job. `identity`: letters and digits of its host names; `gpus`: the ids of
    this machine's. Raises InputError where an argument names a bucket without a local folder."""
    places = [(pool, index) for pool in job.pools for index in range(pool.count)]
    hosts = {(pool.role, index): _host(pool.role, index, identity) for pool, index in places}
    mine, crowded = _of_trial(gpus, job.trial)
    shares = _shares([pool.accelerators for pool, _ in places], mine, crowded)
    arguments = _arguments(job)
    return tuple(
        Replica(
            pool.role,
            index,
            hosts[pool.role, index],
            arguments,
            _environment(job, pool.role, index, hosts, shared=share.shared),
            share.ids,
        )
        for (pool, index), share in zip(places, shares, strict=True)
    )


def place_of(job: LocalJob) -> str:
    """Where a container finds the job's folder; a trial has a part of its own in its study's."""
    return f"{JOB}/{job.trial.number}" if job.trial else JOB


def _position(role: str) -> int:
    return Pool(role).position


def _host(role: str, index: int, identity: str) -> str:
    return f"cmle-training-workerpool{_position(role)}-{identity}-{index}"


def _environment(
    job: LocalJob,
    role: str,
    index: int,
    hosts: Mapping[tuple[str, int], str],
    *,
    shared: bool,
) -> dict[str, str]:
    named: dict[str, list[str]] = {}
    pools: dict[str, list[str]] = {}
    for (other, _), host in hosts.items():
        address = f"{host}:{PORT}"
        pools.setdefault(f"workerpool{_position(other)}", []).append(address)
        if other != "evaluator":  # it is never part of the cluster that trains
            named.setdefault(other, []).append(address)
    trial = {"trial": str(job.trial.number)} if job.trial else {}
    cluster_spec = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": f"workerpool{_position(role)}", "index": index, **trial},
        "job": {"worker_pool_specs": _pool_specs(job)},
    }
    task: dict[str, Any] = {"type": role, "index": index, **trial}
    base = place_of(job)
    found = {
        "CLUSTER_SPEC": json.dumps(cluster_spec),
        "AIP_MODEL_DIR": f"{base}/model/",
        "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
    }
    if len(hosts) > 1:  # the service sets TF_CONFIG for several replicas only
        config = {"cluster": named, "environment": "cloud", "task": task}
        found["TF_CONFIG"] = json.dumps(config)
    if job.trial:
        found["CLOUD_ML_TRIAL_ID"] = str(job.trial.number)
        found["CLOUD_ML_HP_METRIC_FILE"] = f"{METRICS}/output.metrics"
    if shared:  # several processes on one GPU: none may take all of its memory
        found["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    own = {name: _local(value, job, name) for name, value in job.environment.items()}
    return {"PYTHONUNBUFFERED": "1", **own, **found}


def _pool_specs(job: LocalJob) -> list[dict[str, Any]]:
    """The pools by position, those that are skipped empty, as the service's own job has them."""
    found: list[dict[str, Any]] = []
    for pool in job.pools:
        position = pool.position
        found += [{}] * (position - len(found))
        container = {"image_uri": job.image, "args": list(job.arguments)}
        found.append({"replica_count": str(pool.count), "container_spec": container})
    return found


def _arguments(job: LocalJob) -> tuple[str, ...]:
    given = [_local(one, job, "arguments") for one in job.arguments]
    if job.records is not None:
        given = [*_without(given, contract.RECORDS), f"{contract.RECORDS}={RECORDS}"]
    if job.pass_job_dir:
        # the same for all trials, as it is in a HyperparameterTuningJob; AIP_* are each one's
        given = [*_without(given, contract.JOB_DIR), f"{contract.JOB_DIR}={JOB}"]
    return (*given, *(job.trial.arguments if job.trial else ()))


def _without(arguments: Sequence[str], option: str) -> list[str]:
    """The arguments without `--option=value` and `--option value`."""
    found: list[str] = []
    skip = False
    for one in arguments:
        if skip:
            skip = False
        elif one == option:
            skip = True
        elif not one.startswith(f"{option}="):
            found.append(one)
    return found


_URL = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)((?:/[^\s,;]*)?)")


def _local(text: str, job: LocalJob, where: str) -> str:
    """Cloud Storage as a container on this machine finds it: the job's own folder, or /gcs."""

    def replace(match: re.Match[str]) -> str:
        whole, bucket, rest = match[0].rstrip("/"), match[1], match[2]
        if job.base and (whole + "/").startswith(job.base.rstrip("/") + "/"):
            return JOB + whole[len(job.base.rstrip("/")) :]
        if option == contract.RECORDS and job.records is not None:
            return match[0]  # left out later
        _known(bucket, job, where)
        return f"{GCS}/{bucket}{rest}"

    option = text.partition("=")[0] if text.startswith("--") else ""
    found = _URL.sub(replace, text)
    for bucket in re.findall(rf"(?:^|[=,;:\s]){GCS}/([a-z0-9][a-z0-9._-]+)", found):
        _known(bucket, job, where)
    return found


def _known(bucket: str, job: LocalJob, where: str) -> None:
    if job.buckets is None or not (job.buckets / bucket).is_dir():
        place = job.buckets / bucket if job.buckets else f"FOLDER/{bucket}"
        raise InputError(
            f"{job.name}: {where}: no folder on this machine stands for gs://{bucket}",
            f"create {place}"
            + ("" if job.buckets else " and give --buckets FOLDER")
            + "; or --records DIR for the data",
        )


@dataclass(frozen=True)
class Share:
    """The GPUs of one replica; `shared` where others use the same ones."""

    ids: tuple[str, ...] = ()
    shared: bool = False


def _of_trial(gpus: Sequence[str], trial: Trial | None) -> tuple[Sequence[str], bool]:
    """The GPUs of a trial among those that run at once, and whether others use them, too: as many
    for each, what does not divide stays idle; one of them, where there are fewer than trials."""
    if trial is None or trial.at_once == 1 or not gpus:
        return gpus, False
    each = len(gpus) // trial.at_once
    if not each:
        return [gpus[trial.place % len(gpus)]], True
    return gpus[trial.place * each : (trial.place + 1) * each], False


def _shares(wanted: Sequence[int], gpus: Sequence[str], crowded: bool = False) -> list[Share]:
    """GPUs among the replicas that would carry some: each its own as far as they reach, else they
    go round. `crowded`: other trials use them, too."""
    total = sum(wanted)
    if not gpus or not total:
        return [Share() for _ in wanted]
    found, position = [], 0
    for count in wanted:
        ids = [gpus[(position + step) % len(gpus)] for step in range(min(count, len(gpus)))]
        position += count
        found.append(Share(tuple(ids), bool(ids) and (crowded or total > len(gpus))))
    return found
