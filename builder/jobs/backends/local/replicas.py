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
from builder.jobs.machines import ROLES, Pool
from builder.jobs.ready import output_variables, tf_config
from builder.jobs.studies import TRIAL_VARIABLE

PORT = 2222
"""The replicas' port. Source: Vertex AI, distributed training, CLUSTER_SPEC."""

SHARES_A_GPU: Mapping[str, str] = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""What a process that shares a GPU gets: no framework takes memory that it does not use. Source:
TensorFlow, Use a GPU, limiting GPU memory growth; JAX, GPU memory allocation."""

JOB, GCS, RECORDS = "/job", "/gcs", "/records"
"""The folders in a container for the job, the buckets, and the data of --records."""

METRICS = "/tmp/hypertune"
"""The folder where cloudml-hypertune writes output.metrics, the result of a trial."""


@dataclass(frozen=True)
class Trial:
    """One trial of a study: its number from 1, its arguments, the folder its metrics arrive in."""

    number: int
    arguments: tuple[str, ...]
    metrics: Path
    place: int = 0
    """A number from 0 among the `at_once` trials that run side by side; no two share it."""
    at_once: int = 1


@dataclass(frozen=True)
class LocalJob:
    """A job for this machine. `image` is a reference or an id that the engine holds."""

    name: str
    image: str
    folder: Path
    """The job's folder on this machine."""
    pools: tuple[Pool, ...] = (Pool("chief"),)
    command: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    base: str = ""
    """The gs:// folder that it stands for, "" for none."""
    pass_job_dir: bool = False
    records: Path | None = None
    """A folder of data, mounted read-only, passed as --records."""
    buckets: Path = Path("build") / "buckets"
    """A folder whose folders stand for buckets; timeout and grace in seconds; shm in bytes."""
    restarts: Literal["worker", "never"] = "worker"
    timeout: float = 7 * 24 * 3600.0
    grace: float = 30.0
    shm: int = 1 << 30
    trial: Trial | None = None


@dataclass(frozen=True)
class Replica:
    role: str
    index: int
    host: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    """The ids of this machine's GPUs that it gets."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def replicas(job: LocalJob, identity: str, gpus: Sequence[str] = ()) -> tuple[Replica, ...]:
    """Return every replica. identity: of the host names; gpus: the ids of this machine's."""
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
                contract.ACCELERATOR: contract.accelerator(contract.ANY_GPU, len(share))
                if share
                else contract.CPU,
                **_environment(job, role, index, hosts),
                **(SHARES_A_GPU if share and shared else {}),
            },
            share,
        )
        for ((role, index), host), count, share in zip(hosts.items(), wanted, shares, strict=True)
    )


def _environment(
    job: LocalJob, role: str, index: int, hosts: Mapping[tuple[str, int], str]
) -> dict[str, str]:
    addresses: dict[str, list[str]] = {}
    for (other, _), host in hosts.items():
        addresses.setdefault(other, []).append(f"{host}:{PORT}")
    trial = {"trial": str(job.trial.number)} if job.trial else {}
    names: dict[str, str] = {each: f"workerpool{at}" for at, each in enumerate(ROLES)}
    spec = {
        "cluster": {names[other]: of_role for other, of_role in addresses.items()},
        "environment": "cloud",
        "task": {"type": names[role], "index": index, **trial},
    }
    variables = {
        "PYTHONUNBUFFERED": "1",
        **{name: _local(value, job) for name, value in job.environment.items()},
        "CLUSTER_SPEC": json.dumps(spec),
        **output_variables(f"{JOB}/{job.trial.number}" if job.trial else JOB),
    }
    if len(hosts) > 1:  # the service sets TF_CONFIG for several replicas only
        variables["TF_CONFIG"] = tf_config(addresses, type=role, index=index, **trial)
    if job.trial:
        variables[TRIAL_VARIABLE] = str(job.trial.number)
        variables["CLOUD_ML_HP_METRIC_FILE"] = f"{METRICS}/output.metrics"
    return variables


def _arguments(job: LocalJob) -> tuple[str, ...]:
    words = [_local(word, job) for word in job.arguments]
    if job.records is not None:
        words = [*_without(words, contract.RECORDS), f"{contract.RECORDS}={RECORDS}"]
    if job.pass_job_dir:
        # the same for all trials, as in a HyperparameterTuningJob; AIP_* differ for each trial
        words = [*_without(words, contract.JOB_DIR), f"{contract.JOB_DIR}={JOB}"]
    return (*words, *(job.trial.arguments if job.trial else ()))


def _without(words: Sequence[str], option: str) -> list[str]:
    return [
        word
        for before, word in zip(("", *words), words, strict=False)
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]


def _local(text: str, job: LocalJob) -> str:
    """Return a text with the job's gs:// folder as its folder in the container."""
    folder = re.escape(job.base.rstrip("/"))
    return re.sub(rf"{folder}(?=[/,;\s]|$)", JOB, text) if folder else text


def _shares(
    wanted: Sequence[int], gpus: Sequence[str], trial: Trial | None
) -> tuple[list[tuple[str, ...]], bool]:
    """Return the GPUs of each replica that asks for some, and whether others use the same ones.

    Each replica gets its own while they last, and so do the trials that run at once; after that
    they are shared in turn.
    """
    whole = sum(wanted)
    shares, position = [], trial.place * whole if trial else 0
    for count in wanted:
        ids = (gpus[(position + step) % len(gpus)] for step in range(min(count, len(gpus))))
        shares.append(tuple(ids))
        position += count
    return shares, whole * (trial.at_once if trial else 1) > len(gpus)
