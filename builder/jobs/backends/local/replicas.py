"""The replicas of a local job, and the environment that Vertex AI would give each of them.

These functions are pure: a LocalJob goes in, frozen replicas come out. Names, ports and variables
are those of the service's custom containers (Vertex AI, "Use custom containers": CLUSTER_SPEC,
TF_CONFIG, AIP_*), so that a trainer sees no difference. Only the folders are local.
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
from builder.jobs import expected
from builder.jobs.pools import ROLES, Pool

PORT = 2222
"""The replicas' port. Source: Vertex AI, distributed training, CLUSTER_SPEC."""

JOB, GCS, RECORDS = "/job", "/gcs", "/records"
"""The folders in a container for the job, the buckets, and the data of --records."""

METRICS = "/tmp/hypertune"
"""The folder where cloudml-hypertune writes output.metrics, the result of a trial."""

Restarts = Literal["worker", "job", "never"]


@dataclass(frozen=True)
class Trial:
    """One trial of a study: its number from 1, its arguments, the folder its metrics arrive in.

    place: a number from 0 among the `at_once` trials that run side by side; no two share it.
    """

    number: int
    arguments: tuple[str, ...]
    metrics: Path
    place: int = 0
    at_once: int = 1


@dataclass(frozen=True)
class LocalJob:
    """A job for this machine. `image` is a reference or an id that the engine holds.

    folder: the job's folder on this machine; base: the gs:// folder that it stands for, "" for
    none; records: a folder of data, mounted read-only, passed as --records; buckets: a folder whose
    folders stand for buckets; timeout and grace in seconds; shm in bytes.
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
    return tuple(
        Replica(
            pool.role,
            index,
            hosts[pool.role, index],
            _arguments(job),
            {
                **expected.on_this_machine(pool.accelerators, len(share.ids)),
                **_environment(job, pool.role, index, hosts, shared=share.shared),
            },
            share.ids,
        )
        for (pool, index), share in zip(places, shares, strict=True)
    )


def place_of(job: LocalJob) -> str:
    """The job's folder in a container; a trial has its own part of the study's folder."""
    return f"{JOB}/{job.trial.number}" if job.trial else JOB


def _host(role: str, index: int, identity: str) -> str:
    return f"cmle-training-workerpool{ROLES.index(role)}-{identity}-{index}"


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
        pools.setdefault(f"workerpool{ROLES.index(other)}", []).append(address)
        if other != "evaluator":  # it is never part of the cluster that trains
            named.setdefault(other, []).append(address)
    trial = {"trial": str(job.trial.number)} if job.trial else {}
    cluster_spec = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": f"workerpool{ROLES.index(role)}", "index": index, **trial},
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
    """The pools by position, as in the service's own job: a missing role is an empty pool."""
    found: list[dict[str, Any]] = []
    for pool in job.pools:
        position = pool.position
        found += [{}] * (position - len(found))
        mine = job
        container = {"image_uri": mine.image, "args": list(mine.arguments)}
        found.append({"replica_count": str(pool.count), "container_spec": container})
    return found


def _arguments(job: LocalJob) -> tuple[str, ...]:
    given = [_local(one, job, "arguments") for one in job.arguments]
    if job.records is not None:
        given = [*_without(given, contract.RECORDS), f"{contract.RECORDS}={RECORDS}"]
    if job.pass_job_dir:
        # the same for all trials, as in a HyperparameterTuningJob; AIP_* differ for each trial
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
    """A text with each gs:// address replaced by its folder in the container: /job or /gcs."""

    def local(match: re.Match[str]) -> str:
        whole, bucket, rest = match[0].rstrip("/"), match[1], match[2]
        if job.base and (whole + "/").startswith(job.base.rstrip("/") + "/"):
            return JOB + whole[len(job.base.rstrip("/")) :]
        if option == contract.RECORDS and job.records is not None:
            return match[0]  # --records replaces this argument later
        _known(bucket, job, where)
        return f"{GCS}/{bucket}{rest}"

    option = text.partition("=")[0] if text.startswith("--") else ""
    found = _URL.sub(local, text)
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
    """The GPUs of one trial, and whether other trials use them, too.

    Trials that run at once get the same number each; a remainder stays idle. Where there are fewer
    GPUs than trials, each trial gets one.
    """
    if trial is None or trial.at_once == 1 or not gpus:
        return gpus, False
    each = len(gpus) // trial.at_once
    if not each:
        return [gpus[trial.place % len(gpus)]], True
    return gpus[trial.place * each : (trial.place + 1) * each], False


def _shares(wanted: Sequence[int], gpus: Sequence[str], crowded: bool = False) -> list[Share]:
    """Distribute GPUs among the replicas that ask for some.

    Each replica gets its own while they last; after that they are shared in turn. crowded: other
    trials use these GPUs, too.
    """
    total = sum(wanted)
    if not gpus or not total:
        return [Share() for _ in wanted]
    found, position = [], 0
    for count in wanted:
        ids = [gpus[(position + step) % len(gpus)] for step in range(min(count, len(gpus)))]
        position += count
        found.append(Share(tuple(ids), bool(ids) and (crowded or total > len(gpus))))
    return found
