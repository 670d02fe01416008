"""Jobs as tests write them: text in, checked job out, without a project on disk."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.core import project as projects
from builder.facts.cuda import OldestDriver
from builder.jobs import description, images
from builder.jobs.backends.local import backend as folders
from builder.jobs.backends.local.replicas import LocalJob
from builder.jobs.backends.protocol import JobStatus, ReplicaStatus
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.description.job import Job
from builder.jobs.machines import Pool
from builder.jobs.ready import JobImage, Ready
from builder.jobs.why import logs
from builder.jobs.why.diagnose import Diagnosis, diagnose

DIGEST = "sha256:" + "a" * 64
REPOSITORY = "us-central1-docker.pkg.dev/my-project/training/images"
TARGETS = images.targets(projects.find_root(Path(__file__).parent))
"""The accelerator of each target of this project."""


def job(text: str, name: str = "cats") -> Job:
    """The job of a file jobs/<name>.yaml with this text."""
    return description.parse(text, Path("jobs") / f"{name}.yaml")


def image(target: str = "v100", accelerator: str | None = None) -> JobImage:
    """A proven image of a target in Artifact Registry."""
    made_for = accelerator or TARGETS.get(target, target.upper())
    return JobImage(
        f"{REPOSITORY}@{DIGEST}",
        DIGEST,
        target,
        made_for,
        True,
        driver=OldestDriver("525", "12"),
        one_host=target == "tpu",
    )


def ready(text: str, target: str = "v100", *, project: str | None = "my-project") -> Ready:
    """The job of this text, through every check."""
    return checked(job(text), image(target), project=project)


def checked(
    read: Job,
    made: JobImage,
    *,
    project: str | None = "my-project",
    targets: Mapping[str, str] = TARGETS,
    endpoint: str | None = None,
) -> Ready:
    """The job with this image, through every check for Vertex AI."""
    backend = VertexAI(JobSettings(project=project, region=read.region, endpoint=endpoint))
    return backend.check(read, made, targets)


BEGAN = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
"""When a job of `ran` began."""


def ran(folder: Path, state: str, workers: int = 0, error: str = "", **more: Any) -> JobStatus:
    """What the runner writes of a job of this machine, in the job's folder."""
    pools = (Pool("chief"), *((Pool("worker", workers),) if workers else ()))
    names = [name for pool in pools for name in pool.replicas]
    more = {"replicas": tuple(ReplicaStatus(name, state, None, 2, 5.0) for name in names), **more}
    job = LocalJob(more.pop("name", folder.name), "training:cpu", folder, pools)
    return folders.write(job, state, more.pop("began", BEGAN), error, **more)


def why(folder: Path) -> Diagnosis:
    """Why a job of this machine ended, read from the job's folder."""
    place = folders.ThisMachine(folder)
    return diagnose(logs.of_job(place, place.find(str(folder))))
