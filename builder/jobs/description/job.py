"""A job as its file describes it: every field, its default, and what it refuses.

This module checks shapes, names and limits that hold everywhere. The machines on offer, the region,
the image and the project are checked before a job is sent (`check` of its backend), because
`builder job local` needs none of that. What one backend alone has is a section that the backend
brings (`described`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, create_model, model_validator

from builder.core import backends
from builder.core.filemodel import invalid
from builder.core.settings import ProjectId, Region
from builder.core.yamlfile import Document
from builder.jobs.description.study import Study
from builder.jobs.description.values import (
    ACCELERATORS,
    DEFAULT_TIMEOUT,
    Accelerators,
    Arguments,
    Duration,
    Environment,
    JobDir,
    JobName,
    Secret,
    Text,
    WrittenModel,
)
from builder.jobs.machines import Pool, Role

Section = TypeVar("Section", bound=WrittenModel)


class PoolSpec(WrittenModel):
    """The replicas of one role. What is left out is as for the chief."""

    count: int = Field(1, ge=1, le=1000, examples=[2])
    """How many replicas."""

    machine: Text | None = Field(None, examples=["n1-standard-8"])
    """The machine type of each."""

    accelerators: Accelerators | None = Field(None, examples=["2 x V100"])
    """What each carries; `none`: no accelerator. Parameter servers have none where this is left
    out."""


def _pool_spec(value: object) -> object:
    """Return {count: 2} for `workers: 2`."""
    return {"count": value} if isinstance(value, str) else value


_PoolSpec = Annotated[PoolSpec, BeforeValidator(_pool_spec, json_schema_input_type=PoolSpec | int)]


class Replicas(WrittenModel):
    """The replicas beside the chief, of which there is always exactly one."""

    workers: _PoolSpec | None = Field(None, examples=[2])
    """Workers beside the chief; the chief works, too."""

    parameter_servers: _PoolSpec | None = Field(None, examples=[2])
    """Parameter servers."""

    evaluator: _PoolSpec | None = Field(None, examples=[1])
    """An evaluator. It is never part of the cluster that trains."""


ROLE_FIELDS: Mapping[Role, str] = {
    "worker": "workers",
    "ps": "parameter_servers",
    "evaluator": "evaluator",
}
"""The roles beside the chief, and their fields of `replicas`."""


class BootDisk(WrittenModel):
    """The boot disk of every machine."""

    type: Text | None = Field(None, examples=["pd-ssd"])
    """By default the service's: pd-ssd, or hyperdisk-balanced on machines that take no other."""

    size_gb: int | None = Field(None, examples=[200])
    """The size in gigabytes; by default 100."""


class Scheduling(WrittenModel):
    """Which machines the job waits for, how long it may run, and what happens when one fails."""

    strategy: Literal["standard", "spot", "flex-start"] = Field("standard", examples=["spot"])
    """standard; spot: cheaper, can be taken away at any time; flex-start: waits for machines."""

    timeout: Duration = Field(DEFAULT_TIMEOUT, examples=["2h"])
    """How long the job may run."""

    max_wait: Duration | None = Field(None, examples=["24h"])
    """How long a flex-start job may wait for its machines."""

    restarts: Literal["worker", "never"] = Field("worker", examples=["never"])
    """worker: a replica that a signal or a disruption ends is started again; never: the job
    fails."""

    @model_validator(mode="after")
    def _check(self) -> Scheduling:
        if self.max_wait is not None and self.strategy != "flex-start":
            raise invalid(
                "max_wait holds for flex-start only",
                "remove max_wait, or write strategy: flex-start",
            )
        return self


# --- the job --------------------------------------------------------------------------------------


class Job(WrittenModel):
    """One training job. This is where every default stands."""

    model_config = ConfigDict(title="jobs/*.yaml", validate_default=False)

    image: Text = Field(examples=["v100"])
    """A target of images/, or any image in a registry. It is sent by digest, never by tag."""

    name: JobName | None = Field(None, examples=["cats-and-dogs"])
    """The job's name; by default the file's."""

    project: ProjectId | None = Field(None, examples=["my-project"])
    """The Google Cloud project; by default that of the flag or of the environment."""

    region: Region | None = Field(None, examples=["us-central1"])
    """The region that the job runs in."""

    machine: Text = Field(examples=["n1-standard-8"])
    """The machine type of the chief, and of each replica that names no other."""

    accelerators: Accelerators | None = Field(None, examples=["2 x V100"])
    """What the chief's machine carries: `2 x V100`, or `V100` for one; of a TPU v2 or v3 the number
    of cores. The API's own names are understood, too."""

    topology: Text | None = Field(None, examples=["2x2"])
    """Of a TPU v5e: how its chips are laid out."""

    replicas: Replicas = Field(Replicas.model_validate({}), examples=[{"workers": 2}])
    """Workers, parameter servers and evaluator beside the chief."""

    command: tuple[Text, ...] | None = Field(None, examples=[["python", "-m", "trainer.task"]])
    """Replaces the image's ENTRYPOINT."""

    arguments: Arguments = Field((), examples=[{"steps": "1000"}])
    """The trainer's arguments: `name: value` lines, or a list as on a command line."""

    environment: Environment = Field({}, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}])
    """Environment variables of every replica: texts, or secrets as {secret: NAME, key: KEY}, which
    a cluster's Secret holds, Secret Manager, or the file of `builder job local --env-file`."""

    job_dir: JobDir | None = Field(None, examples=["gs://my-bucket/jobs/{job}"])
    """Where the job writes: gs://BUCKET/FOLDER; in a cluster also s3://BUCKET/FOLDER, or a folder
    of a volume. {job} is replaced by the job's own id."""

    pass_job_dir: bool = Field(False, examples=[True])
    """Pass --job-dir, too, as AI Platform did. AIP_MODEL_DIR and its like are always set."""

    service_account: Text | None = Field(
        None, examples=["trainer@my-project.iam.gserviceaccount.com"]
    )
    """The account that the job runs as."""

    network: Text | None = Field(None, examples=["projects/123456789/global/networks/default"])
    """A VPC network to peer with, named with the project's number."""

    tensorboard: Text | None = Field(
        None, examples=["projects/my-project/locations/us-central1/tensorboards/123"]
    )
    """A Vertex AI TensorBoard that shows the job's logs while it runs. Needs service_account."""

    disk: BootDisk = Field(BootDisk.model_validate({}), examples=[{"size_gb": "200"}])
    """The boot disk of every machine."""

    scheduling: Scheduling = Field(
        Scheduling.model_validate({}), examples=[{"strategy": "spot", "timeout": "2h"}]
    )
    """Standard, spot or flex start; timeouts; restarts."""

    labels: dict[str, Text] = Field({}, examples=[{"team": "vision"}])
    """Labels of the job, for the bill."""

    study: Study | None = Field(None, examples=[{"metric": "accuracy"}])
    """A hyperparameter study over this job."""

    _name: str = PrivateAttr("job")
    _source: Path = PrivateAttr(Path("job.yaml"))
    _document: Document = PrivateAttr(Document({}))

    @model_validator(mode="after")
    def _check(self) -> Job:
        if self.topology and self.accelerators:
            raise invalid(
                "a topology says how many chips there are, so accelerators must be left out",
                "remove accelerators",
            )
        options = {word[2:].split("=")[0] for word in self.arguments if word.startswith("--")}
        for name in self.study.parameters if self.study else ():
            if name in options:
                raise invalid(
                    f"arguments has {name}, and the study varies it",
                    f"remove {name} from arguments, or from study.parameters",
                )
        return self

    @property
    def id(self) -> str:
        return self.name or self._name

    def section(self, name: str, model: type[Section]) -> Section:
        written = getattr(self, name, None)
        return written if isinstance(written, model) else model()

    def elsewhere(self, name: str) -> tuple[str, ...]:
        """Return the fields in sections of other backends than `name`: kubernetes.priority."""
        others = (kind.name for kind in backends.every() if kind.section and kind.name != name)
        return tuple(
            f"{other}.{field}" for other in others for field in getattr(self, other).written
        )

    def output(self, name: str) -> str | None:
        """Return where the job writes: job_dir with a name in the place of {job}."""
        return self.job_dir.replace("{job}", name) if self.job_dir else None

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if isinstance(value, str)}

    @property
    def secrets(self) -> dict[str, Secret]:
        """Return the environment variables whose values stand elsewhere."""
        return {
            name: value for name, value in self.environment.items() if isinstance(value, Secret)
        }

    @property
    def source(self) -> Path:
        return self._source

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools of chief, workers, parameter servers and evaluator, those that the job
        has."""
        chief = _pool("chief", 1, self.machine, self.accelerators)
        beside = [
            self._beside(role, spec)
            for role, field in ROLE_FIELDS.items()
            if (spec := getattr(self.replicas, field))
        ]
        return (replace(chief, topology=self.topology), *beside)

    def _beside(self, role: Role, spec: PoolSpec) -> Pool:
        """Return the pool of a role: only workers on the chief's own kind of machine carry what the
        chief carries, where nothing is said."""
        carried = spec.accelerators
        if carried is None and role != "ps" and spec.machine in (None, self.machine):
            carried = self.accelerators
        return _pool(role, spec.count, spec.machine or self.machine, carried)

    @property
    def distributed(self) -> bool:
        """Tell whether there is more than one replica; only then the service sets TF_CONFIG."""
        return sum(pool.count for pool in self.pools) > 1


def _pool(role: Role, count: int, machine: str, carried: str | None) -> Pool:
    if carried in (None, "none"):
        return Pool(role, count, machine)
    match = re.fullmatch(ACCELERATORS, str(carried))
    number, accelerator = match.groups() if match else (None, carried)
    return Pool(role, count, machine, accelerator, int(number or 1))


@cache
def described() -> type[Job]:
    """Return the whole of a job's file: a Job with the section of each backend."""
    sections = {kind.name: _section(kind.section()) for kind in backends.every() if kind.section}
    fields: dict[str, Any] = sections
    return create_model("Job", __base__=Job, __doc__=Job.__doc__, **fields)


def _section(default: WrittenModel) -> tuple[type[WrittenModel], Any]:
    model = type(default)
    name, first = next(iter(model.model_fields.items()))
    example = {name: first.examples[0] if first.examples else "..."}
    return model, Field(default, description=model.__doc__, examples=[example])
