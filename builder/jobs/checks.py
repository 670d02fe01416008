"""The checks of a job that every remote place makes: machines, the image, the job's folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from builder.core.errors import InputError
from builder.facts import accelerators
from builder.jobs import description, machines
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.pools import REDUCTION, Pool
from builder.jobs.ready import Image, Ready


class Problems:
    """The refusals of several checks, each at the line of the job's file that causes it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._found: list[tuple[str, InputError]] = []

    def add(self, fields: tuple[str, ...], error: InputError) -> None:
        """Note a refusal at a field of the job's file."""
        self._found.append((description.where(self._job, *fields), error))

    def attempt(self, fields: tuple[str, ...], check: Callable[[], None]) -> None:
        """Note what a check refuses."""
        try:
            check()
        except InputError as error:
            self.add(fields, error)

    def stop(self) -> None:
        """Raises InputError with every refusal; does nothing where there is none."""
        if self._found:
            raise refusal(self._found)


def refusal(problems: list[tuple[str, InputError]]) -> InputError:
    """One error of all problems; each has its place in the job's file."""
    if len(problems) == 1:
        where, error = problems[0]
        return InputError(f"{where}: {error.message}", error.fix)
    problems = sorted(problems, key=lambda one: _line_number(one[0]))
    lines = [f"{where}: {error.message} -> {error.fix}" for where, error in problems]
    return InputError("\n".join(lines), f"correct these {len(lines)} lines, then try again")


def _line_number(where: str) -> int:
    found = re.search(r":(\d+): ", where)
    return int(found[1]) if found else 0


_ROLE_FIELDS = {
    "worker": "workers",
    "ps": "parameter_servers",
    "evaluator": "evaluator",
    REDUCTION: "reduction_servers",
}


def fields_of(job: Job, pool: Pool) -> tuple[str, ...]:
    """The field of the job's file that asks for a pool."""
    if job.preset != "CUSTOM":
        return ("preset",)
    if pool.role == "chief":
        return ("accelerators",) if pool.accelerator else ("machine",)
    return ("replicas", _ROLE_FIELDS[pool.role])


def image_field(role: str) -> tuple[str, ...]:
    """The field of the job's file that names the image of a role of its own."""
    return ("replicas", _ROLE_FIELDS[role], "image")


def images_of(ready: Ready) -> list[tuple[tuple[str, ...], Image, list[Placement]]]:
    """Each image of a job: the field that names it, and the machines that it runs on."""
    of_job = [one for pool, one in ready.pools if pool.role not in ready.images]
    own = [
        (image_field(pool.role), ready.images[pool.role], [one])
        for pool, one in ready.pools
        if pool.role in ready.images and pool.role != REDUCTION
    ]
    return [(("image",), ready.image, of_job), *own]


def place(pool: Pool) -> Placement:
    """What a pool runs on. Raises InputError for what is not on offer."""
    return machines.place(pool.machine, pool.accelerator, pool.accelerators, pool.topology)


def check_job_dir(job: Job) -> None:
    """Raises InputError where the job's folder is on this machine."""
    if job.job_dir and not job.job_dir.startswith("gs://"):
        raise InputError(
            f"{job.job_dir!r} is on this machine, and the job is not",
            "write gs://BUCKET/FOLDER; `builder job local` takes a folder",
        )


def check_image(image: Image, placements: list[Placement], targets: Mapping[str, str]) -> list[str]:
    """Check that the image is made for the replicas' accelerators. Returns notes."""
    wanted = {_base_name(one): one for one in placements if one.device is not None}
    if image.accelerator is None:
        return [f"{image.reference} is not an image of ours: its accelerator is not known"]
    made_for = accelerators.find(image.accelerator).name
    for name, placement in wanted.items():
        known = accelerators.find(name)
        if known.name == made_for:
            continue
        if known.refused and image.target:
            raise InputError(
                f"{known.name} {known.refused}", f"write accelerators: 1 x {known.instead}"
            )
        fitting = [one for one, accelerator in targets.items() if accelerator == known.name]
        pruned = ", and its device code for other GPUs is taken out" if image.pruned else ""
        called = image.target or image.reference
        raise InputError(
            f"{called} is an image for {made_for}{pruned}; the job runs on {placement}",
            f"write image: {fitting[0]}"
            if fitting
            else f"make an image for it: images/{known.name.lower()}/image.yaml with accelerator: "
            f"{known.name}",
        )
    if not wanted and made_for != "CPU":
        kind = accelerators.find(made_for).kind
        if kind == "tpu":
            raise InputError(
                f"{image.target or image.reference} is an image for {made_for}, and the job has "
                "no accelerator",
                "write image: cpu" if "cpu" in targets else "add accelerators",
            )
        return [f"an image for {made_for} on machines without one: it computes on the CPU"]
    return []


def _base_name(placement: Placement) -> str:
    assert placement.device is not None
    return placement.device.name


def advice(job: Job) -> list[str]:
    """What a person should know about a job that is right as it stands."""
    notes = []
    if job.job_dir is None:
        notes.append("no job_dir: AIP_MODEL_DIR and its like are not set, and outputs are lost")
    if job.scheduling.strategy == "spot" and job.scheduling.restarts == "never":
        notes.append("spot without restarts: the job ends when a machine is taken away")
    synchronous = sum(pool.count for pool in job.pools if pool.role in ("chief", "worker")) > 1
    if synchronous and job.scheduling.restarts == "worker":
        notes.append(
            "several workers: if they train in step, a single one cannot come back alone; then "
            "write scheduling: {restarts: job}"
        )
    return notes
