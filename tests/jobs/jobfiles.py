"""Jobs as tests write them: text in, checked job out, without a project on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.facts.cuda import OldestDriver
from builder.jobs import description
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.service import Service
from builder.jobs.description import Job
from builder.jobs.ready import Image, Ready

DIGEST = "sha256:" + "a" * 64
REPOSITORY = "us-central1-docker.pkg.dev/my-project/training/images"
TARGETS = {
    "cpu": "CPU",
    "v100": "V100",
    "t4": "T4",
    "a100": "A100",
    "l4": "L4",
    "h100": "H100",
    "tpu": "TPU",
    "v100-torch": "V100",
}


def job(text: str, name: str = "cats") -> Job:
    """The job of a file jobs/<name>.yaml with this text."""
    return description.parse(text, Path("jobs") / f"{name}.yaml")


def image(target: str = "v100", accelerator: str | None = None) -> Image:
    """A proven image of a target in Artifact Registry."""
    made_for = accelerator or TARGETS.get(target, target.upper())
    return Image(
        f"{REPOSITORY}@{DIGEST}",
        DIGEST,
        target,
        made_for,
        True,
        True,
        driver=OldestDriver("525", "12"),
    )


def ready(text: str, target: str = "v100", *, project: str | None = "my-project") -> Ready:
    """The job of this text, through every check."""
    return checked(job(text), image(target), project=project)


def checked(
    read: Job,
    made: Image,
    *,
    project: str | None = "my-project",
    targets: Mapping[str, str] = TARGETS,
    endpoint: str | None = None,
) -> Ready:
    """The job with this image, through every check for Vertex AI."""
    backend = VertexAI(Service(project, read.region, endpoint))
    return backend.check(read, made, targets)
