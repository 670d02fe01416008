"""A job that can be sent: its description, its image, and the machines that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from builder import contract
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool


@dataclass(frozen=True)
class Image:
    """The image of a job, as far as it is known.

    reference: what is sent; by digest once `digest` is known. target: of images/, None for any
    other image. accelerator: what it is proven for (None: not known); proven: a receipt says so.
    pruned: the device code of other GPUs was taken out. cuda: the version of its CUDA.
    """

    reference: str
    digest: str | None = None
    target: str | None = None
    accelerator: str | None = None
    proven: bool = False
    pruned: bool = False
    cuda: str | None = None


@dataclass(frozen=True)
class Ready:
    """A job with everything that it takes to send it.

    placements: what each pool of `job.pools` runs on; notes: what a person should know. images:
    those of the roles that have one of their own. group: the key that all ways to run a job share,
    None for a job with one way; choice: this way's own key.
    """

    job: Job
    image: Image
    region: str
    placements: tuple[Placement, ...]
    project: str | None = None
    notes: tuple[str, ...] = field(default=())
    images: Mapping[str, Image] = field(default_factory=dict)
    group: str | None = None
    choice: str = ""

    def of(self, role: str) -> Ready:
        """The job as one role's replicas have it: their own program, if the job names one."""
        return replace(self, job=self.job.of(role), image=self.images.get(role, self.image))

    @property
    def pools(self) -> tuple[tuple[Pool, Placement], ...]:
        """Each pool with what it runs on."""
        return tuple(zip(self.job.pools, self.placements, strict=True))


CHOICE_LABEL = "builder-choice"
"""The label with the way in which a job runs that has several."""


def arguments(job: Job, job_dir: str | None) -> tuple[str, ...]:
    """The arguments of a replica's container, with `--job-dir` last where the job passes it."""
    passed = (f"{contract.JOB_DIR}={job_dir}",) if job.pass_job_dir and job_dir else ()
    return (*job.arguments, *passed)
