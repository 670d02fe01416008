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
from typing import Literal

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

_URL = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)((?:/[^\s,;]*)?)")
_FOLDER = re.compile(rf"(?:^|[=,;:\s]){GCS}/([a-z0-9][a-z0-9._-]+)")


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
    buckets: Path = Path("build") / "buckets"
    restarts: Literal["worker", "job", "never"] = "worker"
    timeout: float = 7 * 24 * 3600.0
    grace: float = 30.0
    shm: int = 1 << 30
    trial: Trial | None = None


@dataclass(frozen=True)
class Replica:
    """One container of a job. gpus: the ids of this machine's GPUs that it gets."""

    role: str
    index: int
    host: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return what stands before its lines: worker-0."""
        return f"{self.role}-{self.index}"

    @property
    def primary(self) -> bool:
        """Tell whether the job ends when this replica does."""
        return self.role == "chief"


def replicas(job: LocalJob, identity: str, gpus: Sequence[str] = ()) -> tuple[Replica, ...]:
    """Return every replica of a job.

    identity: letters and digits of its host names; gpus: the ids of this machine's. Raises
    InputError where an argument names a bucket without a local folder.
    """
    hosts = {
        (pool.role, index): f"cmle-training-workerpool{pool.position}-{identity}-{index}"
        for pool in job.pools
        for index in range(pool.count)
    }
    wanted = [pool.accelerators for pool in job.pools for _ in range(pool.count)]
    shares, shared = _shares(wanted, gpus, job.trial)
    arguments = _arguments(job)
    return tuple(
        Replica(
            role,
            index,
            host,
            arguments,
            {
                **expected.on_this_machine(count, len(share)),
                **_environment(job, role, index, hosts),
                # several processes on one GPU: none may take all of its memory
                **({"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if share and shared else {}),
            },
            share,
        )
        for ((role, index), host), count, share in zip(hosts.items(), wanted, shares, strict=True)
    )


# --- environment ----------------------------------------------------------------------------------


def _environment(
    job: LocalJob, role: str, index: int, hosts: Mapping[tuple[str, int], str]
) -> dict[str, str]:
    cluster: dict[str, list[str]] = {}
    pools: dict[str, list[str]] = {}
    for (other, _), host in hosts.items():
        pools.setdefault(_pool(other), []).append(f"{host}:{PORT}")
        if other != "evaluator":  # it is never part of the cluster that trains
            cluster.setdefault(other, []).append(f"{host}:{PORT}")
    trial = {"trial": str(job.trial.number)} if job.trial else {}
    spec = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": _pool(role), "index": index, **trial},
    }
    base = f"{JOB}/{job.trial.number}" if job.trial else JOB
    own = {name: _local(value, job, name) for name, value in job.environment.items()}
    variables = {
        "PYTHONUNBUFFERED": "1",
        **own,
        "CLUSTER_SPEC": json.dumps(spec),
        "AIP_MODEL_DIR": f"{base}/model/",
        "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
    }
    if len(hosts) > 1:  # the service sets TF_CONFIG for several replicas only
        task = {"type": role, "index": index, **trial}
        variables["TF_CONFIG"] = json.dumps(
            {"cluster": cluster, "environment": "cloud", "task": task}
        )
    if job.trial:
        variables["CLOUD_ML_TRIAL_ID"] = str(job.trial.number)
        variables["CLOUD_ML_HP_METRIC_FILE"] = f"{METRICS}/output.metrics"
    return variables


def _pool(role: str) -> str:
    return f"workerpool{ROLES.index(role)}"


# --- arguments and folders ------------------------------------------------------------------------


def _arguments(job: LocalJob) -> tuple[str, ...]:
    words = [_local(word, job, "arguments") for word in job.arguments]
    if job.records is not None:
        words = [*_without(words, contract.RECORDS), f"{contract.RECORDS}={RECORDS}"]
    if job.pass_job_dir:
        # the same for all trials, as in a HyperparameterTuningJob; AIP_* differ for each trial
        words = [*_without(words, contract.JOB_DIR), f"{contract.JOB_DIR}={JOB}"]
    return (*words, *(job.trial.arguments if job.trial else ()))


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return the arguments without `--option=value` and `--option value`."""
    return [
        word
        for before, word in zip(("", *words), words, strict=False)
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]


def _local(text: str, job: LocalJob, where: str) -> str:
    """Return a text with each gs:// address as its folder in the container: /job or /gcs."""
    if job.records is not None and text.startswith(f"{contract.RECORDS}="):
        return text  # --records replaces this argument later
    base = job.base.rstrip("/")

    def local(match: re.Match[str]) -> str:
        whole = match[0].rstrip("/")
        if base and f"{whole}/".startswith(f"{base}/"):
            return JOB + whole[len(base) :]
        _require(match[1], job, where)
        return f"{GCS}/{match[1]}{match[2]}"

    for bucket in _FOLDER.findall(text):
        _require(bucket, job, where)
    return _URL.sub(local, text)


def _require(bucket: str, job: LocalJob, where: str) -> None:
    if not (job.buckets / bucket).is_dir():
        raise InputError(
            f"{job.name}: {where}: no folder on this machine stands for gs://{bucket}",
            f"create {job.buckets / bucket}; or --records DIR for the data",
        )


# --- GPUs -----------------------------------------------------------------------------------------


def _shares(
    wanted: Sequence[int], gpus: Sequence[str], trial: Trial | None
) -> tuple[list[tuple[str, ...]], bool]:
    """Return the GPUs of each replica that asks for some, and whether others use the same ones.

    Each replica gets its own while they last; after that they are shared in turn. Trials that run
    at once get the same number each, at least one; a remainder stays idle.
    """
    shared = False
    if trial is not None and trial.at_once > 1 and gpus:
        each = len(gpus) // trial.at_once
        shared = not each
        begin = trial.place * each if each else trial.place % len(gpus)
        gpus = gpus[begin : begin + max(each, 1)]
    shares, position = [], 0
    for count in wanted:
        ids = (gpus[(position + step) % len(gpus)] for step in range(min(count, len(gpus))))
        shares.append(tuple(ids))
        position += count
    return shares, shared or position > len(gpus)
