"""A job as its file describes it: every field, its default, and what it refuses.

This module checks shapes, names and limits that hold everywhere. The machines on offer, the region,
the image and the project are checked before a job is sent (builder/jobs/places/vertex/checks.py),
because `builder job local` needs none of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from builder.core.findings import matches, refuse
from builder.jobs.aiplatform import presets
from builder.jobs.description.alternatives import (
    Accelerators,
    AcceleratorsField,
    Alternative,
    Cheapest,
    ImageName,
    Region,
    Strategy,
    Topology,
)
from builder.jobs.description.study import Study
from builder.jobs.description.values import (
    DEFAULT_TIMEOUT,
    DISK_GB,
    NAME_LENGTH,
    Arguments,
    Duration,
    Environment,
    JobDir,
    LabelKey,
    LabelValue,
    Machine,
    Text,
    WrittenModel,
)
from builder.jobs.description.vertex import Vertex
from builder.jobs.pools import REDUCTION, Pool, Role


def _pool(value: object) -> object:
    """`workers: 2` means {count: 2}."""
    return {"count": value} if isinstance(value, str) else value


class PoolSpec(WrittenModel):
    """The replicas of one role. What is left out is as for the chief."""

    count: int = Field(1, ge=1, le=1000, examples=[2])
    """How many replicas."""

    machine: Machine | None = Field(None, examples=["n1-standard-8"])
    """The machine type of each."""

    accelerators: AcceleratorsField | Literal["none"] | None = Field(None, examples=["2 x V100"])
    """What each carries; `none`: no accelerator. Parameter servers have none where this is left
    out."""

    image: ImageName | None = Field(None, examples=["cpu"])
    """An image of its own."""

    command: tuple[Text, ...] | None = Field(None, examples=[["python", "-m", "trainer.task"]])
    """Replaces the image's ENTRYPOINT. Of a role with an image of its own: by default that of the
    image."""

    arguments: Arguments | None = Field(None, examples=[{"steps": "1000"}])
    """Arguments in the place of the job's."""

    environment: Environment | None = Field(None, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}])
    """Environment variables in the place of the job's."""


class ReductionSpec(WrittenModel):
    """The reducers of Reduction Server, which add up gradients for workers with GPUs."""

    count: int = Field(1, ge=1, le=1000, examples=[2])
    """How many reducers."""

    machine: Machine = Field("n1-highcpu-16", examples=["n1-highcpu-16"])
    """The machine type of each; its network decides, and it carries no accelerator."""

    image: ImageName = Field(examples=["HOST/PATH/reductionserver:latest"])
    """Google's image of Reduction Server."""


class Replicas(WrittenModel):
    """The replicas beside the chief, of which there is always exactly one."""

    workers: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(None, examples=[2])
    """Workers beside the chief; the chief works, too."""

    parameter_servers: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(
        None, examples=[2]
    )
    """Parameter servers."""

    evaluator: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(None, examples=[1])
    """An evaluator. It is never part of the cluster that trains."""

    reduction_servers: ReductionSpec | None = Field(None, examples=[{"count": 2}])
    """Reduction Server, in the place of parameter servers. Vertex AI's own."""

    @model_validator(mode="after")
    def _fits(self) -> Replicas:
        if self.reduction_servers and self.parameter_servers:
            raise refuse(
                "reduction_servers take the place of parameter_servers", "remove one of them"
            )
        if self.reduction_servers and not self.workers:
            raise refuse("reduction_servers serve workers, and there are none", "add workers: 2")
        return self


_ALONE = Replicas(workers=None, parameter_servers=None, evaluator=None, reduction_servers=None)


class BootDisk(WrittenModel):
    """The boot disk of every machine."""

    type: Literal["pd-ssd", "pd-standard", "hyperdisk-balanced"] | None = Field(
        None, examples=["pd-ssd"]
    )
    """By default the service's: pd-ssd, or hyperdisk-balanced on machines that take no other."""

    size_gb: int = Field(DISK_GB[0], ge=DISK_GB[0], le=DISK_GB[1], examples=[200])
    """The size in gigabytes, at least 100."""


class Scheduling(WrittenModel):
    """Which machines the job waits for, how long it may run, and what happens when one fails."""

    strategy: Strategy = Field("standard", examples=["spot"])
    """standard; spot: cheaper, can be taken away at any time; flex-start: waits for machines."""

    timeout: Duration = Field(DEFAULT_TIMEOUT, examples=["2h"])
    """How long the job may run."""

    max_wait: Duration | None = Field(None, examples=["24h"])
    """How long a flex-start job may wait for its machines."""

    patience: Duration | None = Field(None, examples=["10m"])
    """How long one of several alternatives may wait for its machines before the next is tried; by
    default 15m."""

    restarts: Literal["worker", "job", "never"] = Field("worker", examples=["job"])
    """worker: a replica that fails is started again; job: all replicas are, which synchronous
    training needs; never: the job fails."""

    @model_validator(mode="after")
    def _fits(self) -> Scheduling:
        if self.max_wait is not None and self.strategy != "flex-start":
            raise refuse(
                "max_wait holds for flex-start only", "remove max_wait, or strategy: flex-start"
            )
        return self


_NO_VERTEX = Vertex.model_validate({})


class Job(WrittenModel):
    """One training job. This is where every default stands."""

    model_config = ConfigDict(title="jobs/*.yaml", validate_default=False)

    image: ImageName = Field(examples=["v100"])
    """A target of images/, or any image in a registry. It is sent by digest, never by tag."""

    name: (
        Annotated[
            str,
            matches(
                rf"[a-z](?:[a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?",
                "a job's name",
                f"use a-z, 0-9 and -, a letter first, at most {NAME_LENGTH}",
            ),
        ]
        | None
    ) = Field(None, examples=["cats-and-dogs"])
    """The job's name; by default the file's."""

    project: (
        Annotated[
            str,
            matches(
                r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,}", "a project", "write ID"
            ),
        ]
        | None
    ) = Field(None, examples=["my-project"])
    """The Google Cloud project; by default that of the flag or of the environment."""

    region: Region | None = Field(None, examples=["us-central1"])
    """The region that the job runs in."""

    preset: Literal["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM"] = Field(
        "CUSTOM", examples=["BASIC_GPU"]
    )
    """A scale tier of AI Platform, on today's machines. CUSTOM: as `machine` says."""

    machine: Machine | None = Field(None, examples=["n1-standard-8"])
    """The machine type of the chief, and of each replica that names no other."""

    accelerators: AcceleratorsField | None = Field(None, examples=["2 x V100"])
    """What the chief's machine carries: `2 x V100`, or {type: V100, count: 2}."""

    topology: Topology | None = Field(None, examples=["2x2"])
    """Of a TPU v5e: how its chips are laid out."""

    replicas: Replicas = Field(_ALONE, examples=[{"workers": 2}])
    """Workers, parameter servers and evaluator beside the chief."""

    command: tuple[Text, ...] | None = Field(None, examples=[["python", "-m", "trainer.task"]])
    """Replaces the image's ENTRYPOINT."""

    arguments: Arguments = Field((), examples=[{"steps": "1000"}])
    """The trainer's arguments: `name: value` lines, or a list as on a command line."""

    environment: Environment = Field({}, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}])
    """Environment variables of every replica."""

    job_dir: JobDir | None = Field(None, examples=["gs://my-bucket/jobs/{job}"])
    """Where the job writes: gs://BUCKET/FOLDER. {job} is replaced by the job's own id, {region} by
    its region."""

    pass_job_dir: bool = Field(False, examples=[True])
    """Pass --job-dir, too, as AI Platform did. AIP_MODEL_DIR and its like are always set."""

    service_account: (
        Annotated[
            str,
            matches(r"[^@\s]+@[^@\s]+\.[^@\s]+", "a service account", "write NAME@PROJECT.iam..."),
        ]
        | None
    ) = Field(None, examples=["trainer@my-project.iam.gserviceaccount.com"])
    """The account that the job runs as."""

    network: Text | None = Field(None, examples=["projects/123456789/global/networks/default"])
    """A VPC network to peer with, named with the project's number."""

    tensorboard: Text | None = Field(
        None, examples=["projects/my-project/locations/us-central1/tensorboards/123"]
    )
    """A Vertex AI TensorBoard that shows the job's logs while it runs. Needs service_account."""

    disk: BootDisk = Field(BootDisk(type=None, size_gb=DISK_GB[0]), examples=[{"size_gb": "200"}])
    """The boot disk of every machine."""

    scheduling: Scheduling = Field(
        Scheduling(
            strategy="standard",
            timeout=DEFAULT_TIMEOUT,
            max_wait=None,
            patience=None,
            restarts="worker",
        ),
        examples=[{"strategy": "spot", "timeout": "2h"}],
    )
    """Standard, spot or flex start; timeouts; restarts."""

    alternatives: tuple[Alternative, ...] = Field(
        (), max_length=50, examples=[[{"region": "europe-west4"}]]
    )
    """Where else it may run: tried one after the other where there is no room, in this order."""

    cheapest: Cheapest | None = Field(None, examples=[{"of": ["V100", "T4"], "regions": "europe"}])
    """The same, ordered by price."""

    labels: dict[LabelKey, LabelValue] = Field({}, max_length=60, examples=[{"team": "vision"}])
    """Labels of the job, for the bill."""

    study: Study | None = Field(None, examples=[{"metric": "accuracy"}])
    """A hyperparameter study over this job."""

    vertex: Vertex = Field(_NO_VERTEX, examples=[{"web_access": "true"}])
    """What only Vertex AI has: reservations, experiments, NFS, keys."""

    _name: str = PrivateAttr("job")
    _source: Path = PrivateAttr(Path("job.yaml"))
    _at: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _fits(self) -> Job:
        custom = self.preset == "CUSTOM"
        if custom and self.machine is None:
            raise refuse("says no machine", "add machine: n1-standard-8, or preset: BASIC_GPU")
        given = self.machine or self.accelerators or self.topology or self.replicas != _ALONE
        if not custom and given:
            raise refuse(
                f"preset {self.preset} brings machine, accelerators and replicas",
                "remove them, or write preset: CUSTOM",
            )
        if self.topology and self.accelerators:
            raise refuse(
                "a topology says how many chips there are, so accelerators must be left out",
                "remove accelerators",
            )
        _check_alternatives(self)
        if self.study:
            for one in (self, *(self.of(role) for role in _OWN_PROGRAM)):
                _check_clash(one.arguments, self.study)
        if self.tensorboard and not self.service_account:
            raise refuse(
                "tensorboard needs service_account: the service writes the logs in its name",
                "add service_account: NAME@PROJECT.iam.gserviceaccount.com",
            )
        return self

    @property
    def id(self) -> str:
        """The job's name: as written, or that of its file."""
        return self.name or self._name

    @property
    def source(self) -> Path:
        """The file that this was read from."""
        return self._source

    @property
    def at(self) -> tuple[str, ...]:
        """The field that this way to run the job comes from; () for the job itself."""
        return self._at

    @property
    def chooses(self) -> bool:
        """Whether there are several ways to run it."""
        return bool(self.alternatives or self.cheapest)

    def variant(self, at: tuple[str, ...], **values: Any) -> Job:
        """One way to run it, from the field `at`: itself with other values and no alternatives."""
        found = self.model_copy(update={**values, "alternatives": (), "cheapest": None})
        found._at = at
        return found

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of chief, workers, parameter servers and evaluator, those that the job has."""
        if self.preset != "CUSTOM":
            return tuple(self._with_disk(one) for one in presets.PRESETS[self.preset].pools)
        assert self.machine is not None
        chief = _pool_of("chief", 1, self.machine, self.accelerators, self.topology)
        beside = [
            self._beside(role, spec) for role in _OWN_PROGRAM if (spec := self._spec_of(role))
        ]
        if reducers := self.replicas.reduction_servers:
            beside.append(Pool(REDUCTION, reducers.count, reducers.machine))
        pools = sorted((chief, *beside), key=lambda pool: pool.position)
        return tuple(self._with_disk(one) for one in pools)

    def _spec_of(self, role: str) -> PoolSpec | None:
        name = _OWN_PROGRAM.get(role)  # type: ignore[call-overload]
        return getattr(self.replicas, name) if name else None

    def of(self, role: str) -> Job:
        """The job as one role's replicas have it: with their own image, command, arguments and
        environment."""
        if role == REDUCTION and (reducers := self.replicas.reduction_servers):
            bare: dict[str, object] = {"command": None, "arguments": (), "environment": {}}
            return self._with({**bare, "image": reducers.image, "pass_job_dir": False})
        spec = self._spec_of(role)
        if spec is None:
            return self
        own = {name: getattr(spec, name) for name in ("command", "arguments", "environment")}
        told = {name: value for name, value in own.items() if value is not None}
        image = {"image": spec.image, "command": spec.command} if spec.image else {}
        return self._with({**told, **image}) if told or image else self

    def _with(self, told: Mapping[str, object]) -> Job:
        return self.model_copy(update=dict(told))

    def _with_disk(self, pool: Pool) -> Pool:
        return replace(pool, disk_type=self.disk.type or "pd-ssd", disk_gb=self.disk.size_gb)

    def _beside(self, role: Role, spec: PoolSpec) -> Pool:
        assert self.machine is not None
        accelerators: Accelerators | None
        if spec.accelerators == "none":
            accelerators = None
        elif spec.accelerators is not None:
            accelerators = spec.accelerators
        else:  # only workers on the chief's own kind of machine carry what the chief carries
            same = role != "ps" and spec.machine in (None, self.machine)
            accelerators = self.accelerators if same else None
        return _pool_of(role, spec.count, spec.machine or self.machine, accelerators)

    @property
    def distributed(self) -> bool:
        """Whether there is more than one replica; only then the service sets TF_CONFIG."""
        return sum(pool.count for pool in self.pools) > 1


_OWN_PROGRAM: Mapping[Role, str] = {
    "worker": "workers",
    "ps": "parameter_servers",
    "evaluator": "evaluator",
}
"""The roles that may have a program of their own, and their names in `replicas`."""


def _check_alternatives(job: Job) -> None:
    if job.alternatives and job.cheapest:
        raise refuse("alternatives and cheapest are two orders of the same", "remove one of them")
    if job.chooses and job.preset != "CUSTOM":
        raise refuse(f"preset {job.preset} brings its machines", "remove preset, or alternatives")
    if job.chooses and job.study:
        raise refuse("a study takes no alternatives", "remove study, or alternatives")
    if not job.chooses and job.scheduling.patience is not None:
        raise refuse(
            "scheduling.patience holds for alternatives, and there are none", "remove patience"
        )


def _check_clash(arguments: tuple[str, ...], study: Study) -> None:
    """Refuse an argument that the study varies: each program takes another one of the two."""
    given = {one.removeprefix("--").split("=")[0] for one in arguments if one.startswith("--")}
    for name in study.parameters:
        if name in given:
            raise refuse(
                f"arguments has {name}, and the study varies it",
                f"remove {name} from arguments, or from study.parameters",
            )


def _pool_of(
    role: Role,
    count: int,
    machine: str,
    accelerators: Accelerators | None,
    topology: str | None = None,
) -> Pool:
    if accelerators is None:
        return Pool(role, count, machine, topology=topology)
    return Pool(role, count, machine, accelerators.type, accelerators.count, topology)
