"""A job that can be sent: its description, its image, and the machines that it runs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder import contract
from builder.facts.cuda import OldestDriver
from builder.jobs.description.job import Job
from builder.jobs.machines import Placement, Pool

if TYPE_CHECKING:
    from builder.prove.receipts import CheckResult

KEY_LABEL, NAME_LABEL, RUN_LABEL = "builder-key", "builder-job", "builder-run"
"""The labels of a job: its key, the name of its description, and the number of its run."""
STUDY_LABEL, TRIAL_LABEL = "builder-study", "builder-trial"
"""The labels of a trial's job: a hash of its study, and its number."""
KEY_LENGTH = 12


@dataclass(frozen=True)
class JobImage:
    reference: str
    """What is sent; by digest once `digest` is known."""
    digest: str | None = None
    target: str | None = None
    """Of images/, None for any other image."""
    accelerator: str | None = None
    """What it is proven for (None: not known)."""
    proven: bool = False
    """A receipt says so."""
    driver: OldestDriver | None = None
    """The oldest for it."""
    in_registry: bool = True
    """False for an image that has a name on this machine only."""
    entrypoint: tuple[str, ...] = ()
    """What it starts, () where that is not known."""
    one_host: bool = False
    """Its framework trains on one host of a TPU alone."""
    serves: Mapping[str, OldestDriver | None] = field(default_factory=dict)
    """The other GPUs that its libraries have kernels for, each with the oldest driver there."""
    image_id: str = ""
    """What an engine may call it, "" where that is not known."""
    compiled: CheckResult | None = None
    """What its receipt says of its step (builder/prove/checks/compile.py); None without one."""

    def promised(self, placement: Placement) -> dict[str, str]:
        """Return the variables with what a machine carries, and the image of a known digest."""
        name = placement.device.name if placement.device else ""
        image = {contract.IMAGE: self.reference} if self.digest else {}
        return {**placement.promise(self.serves.get(name, self.driver)), **image}


@dataclass(frozen=True)
class Ready:
    job: Job
    image: JobImage
    region: str
    placements: tuple[Placement, ...]
    """What each pool of `job.pools` runs on."""
    project: str | None = None
    notes: tuple[str, ...] = ()
    """What a person should know."""

    @property
    def pools(self) -> tuple[tuple[Pool, Placement], ...]:
        return tuple(zip(self.job.pools, self.placements, strict=True))


def arguments(job: Job, job_dir: str | None) -> tuple[str, ...]:
    """Return the arguments of a replica's container, `--job-dir` last where the job passes it."""
    passed = (f"{contract.JOB_DIR}={job_dir}",) if job.pass_job_dir and job_dir else ()
    return (*job.arguments, *passed)


def output_variables(base: str) -> dict[str, str]:
    """Return the variables that tell a program where it writes. Source: Vertex AI, Use custom
    containers, AIP_MODEL_DIR."""
    folders = {"MODEL": "model", "CHECKPOINT": "checkpoints", "TENSORBOARD_LOG": "logs"}
    return {f"AIP_{name}_DIR": f"{base}/{folder}/" for name, folder in folders.items()}


def tf_config(addresses: Mapping[str, list[str]], **task: Any) -> str:
    """Return TF_CONFIG: the addresses of each role, and the task of the process that gets it."""
    cluster = {role: hosts for role, hosts in addresses.items() if role != "evaluator"}
    # the evaluator is never part of the cluster that trains
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": task})


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value, as a message of an API leaves out the others."""
    return {name: value for name, value in fields.items() if value not in (None, False, "", [], {})}


def key_of(content: Any) -> str:
    """Return the hash of all that a job asks for, by which the same command finds its job."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def number_of(labels: Mapping[str, str], name: str) -> int:
    """Return the number in a label of a job, 1 where there is none."""
    number = labels.get(name, "")
    return int(number) if number.isdigit() else 1
