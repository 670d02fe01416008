"""jobs/<name>.yaml -> Job: what a person asks for, checked where it is written.

This module checks shapes, names and limits that hold everywhere. The machines on offer, the region,
the image and the project are checked before a job is sent (builder/jobs/places/vertex/checks.py),
because `builder job local` needs none of that. All errors of a file are reported at once, each with
file, line, field and what to write instead.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from builder.core import findings, yamlfile
from builder.core.errors import InputError
from builder.core.findings import matches, refuse
from builder.core.yamlfile import Mistake
from builder.jobs.aiplatform import presets

JOBS = "jobs"
SUFFIX = ".yaml"
SCHEMA = "schema.json"

Role = Literal["chief", "worker", "ps", "evaluator"]
ROLES: tuple[Role, ...] = ("chief", "worker", "ps", "evaluator")
"""The names of TF_CONFIG. The position is that of the worker pool on Vertex AI."""

NAME_LENGTH = 63
"""A job's name becomes part of a display name (128), of a label's value (63), of a container's."""
ENVIRONMENT_LIMIT = 100
"""Variables of one container. Source: aiplatform v1, ContainerSpec.env."""
ARGUMENTS_LIMIT = 100_000
"""Characters of all arguments of one container. Source: aiplatform v1, ContainerSpec.args."""
DISK_GB = (100, 64_000)
"""Source: Google Cloud, serverless training, configure-compute."""
DEFAULT_TIMEOUT = 7 * 24 * 3600
"""Seconds. Source: aiplatform v1, Scheduling.timeout."""

# Set on each replica by the service: a value of the user's would not be the one that arrives.
_RESERVED = ("TF_CONFIG", "CLUSTER_SPEC", "TPU_CONFIG", "TPU_NODE_NAME")
_RESERVED_PREFIXES = ("AIP_", "CLOUD_ML_")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhd]\s*)+")
_ACCELERATORS = re.compile(
    r"(?:(?P<count>[0-9]+)\s*[x*]\s*)?(?P<type>[A-Za-z][\w.-]*)(?:\s*[x*]\s*(?P<after>[0-9]+))?"
)


def _plain(value: str) -> str:
    for character in value:
        if character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cs"}:
            raise refuse(
                f"a control character (U+{ord(character):04X}) is not allowed", "remove it"
            )
    return value


def seconds(text: str) -> int:
    """Seconds of `90s`, `30m`, `2h`, `1h30m` or `7d`. Raises ValueError."""
    text = text.strip().lower()
    if not _DURATION.fullmatch(text):
        raise ValueError(text)
    parts = re.findall(r"([0-9.]+)([smhd])", text)
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError:
        raise refuse(
            f"{value!r} is not a length of time", "write a number and s, m, h or d, such as 2h"
        ) from None


def _accelerators(value: object) -> object:
    """`2 x V100` and `V100` mean {type: V100, count: 2 or 1}."""
    if not isinstance(value, str):
        return value
    match = _ACCELERATORS.fullmatch(value.strip())
    if match is None or (match["count"] and match["after"]):
        raise refuse(f"{value!r} is not a number of accelerators", "write 2 x V100")
    return {"type": match["type"], "count": match["count"] or match["after"] or "1"}


def _pool(value: object) -> object:
    """`workers: 2` means {count: 2}."""
    return {"count": value} if isinstance(value, str) else value


def _arguments(value: object) -> object:
    """Names and values become --name=value; a name without a value is the flag alone."""
    if not isinstance(value, dict):
        return value
    found = []
    for name, item in value.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise refuse(
                f"{name!r} is not the name of an argument",
                "write it without dashes before it, or write a list: [--name, value]",
            )
        if isinstance(item, list | dict):
            raise refuse(
                f"{name} has several values",
                "write a list of all arguments: [--name, first, second]",
            )
        found.append(f"--{name}" if item is None else f"--{name}={item}")
    return found


def _variable(name: str) -> str:
    if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
        raise refuse(f"{name} cannot be set: the training service sets it", "remove it")
    return name


def _environment(value: Mapping[str, str]) -> Mapping[str, str]:
    if len(value) > ENVIRONMENT_LIMIT:
        raise refuse(
            f"{len(value)} variables: a container takes {ENVIRONMENT_LIMIT}",
            "put the rest into a file beside the data, or into one variable as JSON",
        )
    return value


def _within_limit(value: tuple[str, ...]) -> tuple[str, ...]:
    length = sum(len(argument) for argument in value)
    if length > ARGUMENTS_LIMIT:
        raise refuse(
            f"the arguments are {length:,} characters: a container takes {ARGUMENTS_LIMIT:,}",
            "write what is long into a file in the bucket, and pass its name",
        )
    return value


def _job_dir(value: str) -> str:
    if re.match(r"[a-z0-9]+://", value) and not value.startswith("gs://"):
        raise refuse(f"{value!r} is not in Cloud Storage", "write gs://BUCKET/FOLDER")
    if value.startswith("gs://") and not re.match(r"gs://[a-z0-9][a-z0-9._-]{1,221}(/|$)", value):
        raise refuse(f"{value!r} names no bucket", "write gs://BUCKET/FOLDER")
    if re.search(r"\{(?!job\})", value):
        raise refuse(f"{value!r} holds an unknown {{word}}", "only {job} is replaced")
    if re.search(r"[*?\[\]\s#]", value):
        raise refuse(f"{value!r} cannot be a folder's name", "leave out spaces and * ? [ ] #")
    return value.rstrip("/") or "/"


def _number(value: str) -> str:
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if found != found or found in (float("inf"), float("-inf")):
        raise refuse(f"{value!r} is not a number", "write it as 0.001 or 1e-3")
    return value


Text = Annotated[str, AfterValidator(_plain)]
Number = Annotated[str, AfterValidator(_number)]
Duration = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
Variable = Annotated[
    str,
    matches(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name", "use A-Z, 0-9 and _"),
    AfterValidator(_variable),
]
LabelKey = Annotated[
    str,
    matches(
        r"[a-z][a-z0-9_-]{0,62}", "a label's name", "use a-z, 0-9, _ and -, a letter first, <= 63"
    ),
]
LabelValue = Annotated[
    str, matches(r"[a-z0-9_-]{0,63}", "a label's value", "use a-z, 0-9, _ and -, at most 63")
]
Machine = Annotated[
    str, matches(r"[a-z0-9]+(-[a-z0-9]+)+", "a machine type", "write one such as n1-standard-8")
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Accelerators(_Model):
    """How many accelerators of which type one machine carries."""

    type: Annotated[str, matches(r"[A-Za-z][\w.-]*", "an accelerator", "write V100")] = Field(
        examples=["V100"]
    )
    """V100, T4, A100, A100-80GB, L4, H100, TPU-v3 ...; the API's own names do as well."""

    count: int = Field(1, ge=1, le=4096, examples=[2])
    """How many on each machine; of a TPU v2 or v3 the number of cores."""


AcceleratorsField = Annotated[Accelerators, BeforeValidator(_accelerators)]


class PoolSpec(_Model):
    """The replicas of one role. What is left out is as the chief has it."""

    count: int = Field(1, ge=1, le=1000, examples=[2])
    """How many replicas."""

    machine: Machine | None = Field(None, examples=["n1-standard-8"])
    """The machine type of each."""

    accelerators: AcceleratorsField | Literal["none"] | None = Field(None, examples=["2 x V100"])
    """What each carries; `none`: no accelerator. Parameter servers have none where it is left
    out."""


class Replicas(_Model):
    """The replicas beside the chief, of which there is always exactly one."""

    workers: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(None, examples=[2])
    """Workers, beside the chief, which works too."""

    parameter_servers: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(
        None, examples=[2]
    )
    """Parameter servers."""

    evaluator: Annotated[PoolSpec, BeforeValidator(_pool)] | None = Field(None, examples=[1])
    """An evaluator; it never is part of the cluster that trains."""


_ALONE = Replicas(workers=None, parameter_servers=None, evaluator=None)


class Disk(_Model):
    """The boot disk of every machine."""

    type: Literal["pd-ssd", "pd-standard", "hyperdisk-balanced"] | None = Field(
        None, examples=["pd-ssd"]
    )
    """pd-ssd where it is left out, hyperdisk-balanced on machines that take no other."""

    size_gb: int = Field(DISK_GB[0], ge=DISK_GB[0], le=DISK_GB[1], examples=[200])
    """Gigabytes, from 100."""


class Scheduling(_Model):
    """When machines are given, how long the job may take, and what happens when one fails."""

    strategy: Literal["standard", "spot", "flex-start"] = Field("standard", examples=["spot"])
    """standard; spot: cheaper, can be taken away at any time; flex-start: waits for machines."""

    timeout: Duration = Field(DEFAULT_TIMEOUT, examples=["2h"])
    """How long the job may run."""

    max_wait: Duration | None = Field(None, examples=["24h"])
    """How long a flex-start job may wait for its machines."""

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


class Parameter(_Model):
    """One thing a study tries: a range (min, max) or values."""

    min: Number | None = Field(None, examples=["0.0001"])
    """The least value."""

    max: Number | None = Field(None, examples=["0.1"])
    """The largest value."""

    values: tuple[Text, ...] | None = Field(None, examples=[["16", "32", "64"]])
    """The values to choose from: numbers, or words."""

    type: Literal["double", "integer", "discrete", "categorical"] | None = Field(
        None, examples=["integer"]
    )
    """As it is written where left out: integer for whole min and max, discrete for numbers."""

    scale: Literal["linear", "log", "reverse-log"] = Field("linear", examples=["log"])
    """How the range is searched."""

    @property
    def kind(self) -> Literal["double", "integer", "discrete", "categorical"]:
        """What the parameter is: as written, or as its values look."""
        if self.type:
            return self.type
        if self.values is not None:
            return "discrete" if all(_is_number(one) for one in self.values) else "categorical"
        ends = (self.min or "", self.max or "")
        return "integer" if all(re.fullmatch(r"[+-]?[0-9]+", one) for one in ends) else "double"

    @model_validator(mode="after")
    def _whole(self) -> Parameter:
        ranged, listed = self.min is not None or self.max is not None, self.values is not None
        if ranged == listed or (ranged and (self.min is None or self.max is None)):
            raise refuse("needs min and max, or values", "write {min: 0.001, max: 0.1}")
        if self.values is not None:
            self._check_values(self.values)
        if self.min is not None and self.max is not None:
            self._check_range(self.min, self.max)
        if self.scale != "linear" and self.kind == "categorical":
            raise refuse("words have no scale", "remove scale")
        return self

    def _check_values(self, values: tuple[str, ...]) -> None:
        if self.kind in ("double", "integer"):
            raise refuse(f"a list of values is not {self.kind}", "write type: discrete")
        if not values or len(set(values)) < len(values):
            raise refuse("the values are empty or stand twice", "write different values")
        if self.kind == "discrete":
            if not all(_is_number(one) for one in values):
                raise refuse("discrete values are numbers", "write type: categorical")
            if self.scale != "linear" and min(float(one) for one in values) <= 0:
                raise refuse("a log scale needs values above 0", "write scale: linear")

    def _check_range(self, low: str, high: str) -> None:
        if self.kind in ("discrete", "categorical"):
            raise refuse(f"{self.kind} needs values", "write values: [a, b, c]")
        if self.kind == "integer" and any(float(one) != int(float(one)) for one in (low, high)):
            raise refuse("an integer's min and max are whole numbers", "write type: double")
        if float(low) >= float(high):
            raise refuse(f"min {low} is not below max {high}", "write the smaller one as min")
        if self.scale != "linear" and float(low) <= 0:
            raise refuse(f"a {self.scale} scale needs min above 0", "write scale: linear")


def _is_number(text: str) -> bool:
    try:
        return float(text) - float(text) == 0
    except ValueError:
        return False


def _metric(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w./-]*", value):
        raise refuse(f"{value!r} is not a metric's name", "write the name that is reported")
    return value


class Study(_Model):
    """A hyperparameter study: the job is run once for each trial, with other arguments."""

    metric: Annotated[str, AfterValidator(_metric)] = Field(examples=["validation_accuracy"])
    """What the trainer reports, by this name."""

    goal: Literal["maximize", "minimize"] = Field("maximize", examples=["maximize"])
    """Which way is better."""

    trials: int = Field(10, ge=1, le=1000, examples=[20])
    """How many trials."""

    parallel: int = Field(1, ge=1, le=100, examples=[2])
    """How many at once. The fewer, the more each learns from those before."""

    algorithm: Literal["bayesian", "random", "grid"] = Field("bayesian", examples=["random"])
    """How the next trial is chosen."""

    max_failed: int = Field(0, ge=0, le=1000, examples=[3])
    """How many trials may fail before the study does; 0: the service decides."""

    early_stopping: Literal["none", "median", "curve"] = Field("none", examples=["median"])
    """Stop a trial that is worse than the median so far, or whose curve will not get there."""

    parameters: dict[
        Annotated[
            str,
            matches(r"[A-Za-z][\w-]*", "an argument's name", "write it without dashes before it"),
        ],
        Parameter,
    ] = Field(min_length=1, examples=[{"learning-rate": {"min": "0.0001", "max": "0.1"}}])
    """What is tried. Each arrives as --name=value after the job's own arguments."""

    @model_validator(mode="after")
    def _fits(self) -> Study:
        if self.parallel > self.trials:
            raise refuse(
                f"{self.parallel} at once of {self.trials} trials", f"write parallel: {self.trials}"
            )
        if self.algorithm == "grid":
            for name, one in self.parameters.items():
                if one.kind == "double":
                    raise refuse(
                        f"a grid has no points between {one.min} and {one.max} of {name}",
                        f"write {name}: {{values: [...]}}, or algorithm: random",
                    )
        return self


@dataclass(frozen=True)
class Pool:
    """The replicas of one role, with nothing left open. `topology` is a TPU's."""

    role: Role
    count: int
    machine: str
    accelerators: Accelerators | None = None
    topology: str | None = None

    @property
    def position(self) -> int:
        """Which worker pool of Vertex AI this is."""
        return ROLES.index(self.role)


class Job(_Model):
    """One training job. This is where every default stands."""

    model_config = ConfigDict(title="jobs/*.yaml", validate_default=False)

    image: Annotated[
        str, matches(r"[A-Za-z0-9][\w./:@-]*", "an image", "write a target, or HOST/PATH@sha256:")
    ] = Field(examples=["v100"])
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
    """The job's name; left out, it is the file's."""

    project: (
        Annotated[
            str,
            matches(
                r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,}", "a project", "write ID"
            ),
        ]
        | None
    ) = Field(None, examples=["my-project"])
    """The Google Cloud project; left out, it is the one of the flag or of the environment."""

    region: (
        Annotated[
            str,
            matches(
                r"[a-z]+(-[a-z]+)+[0-9]+",
                "a region",
                "write one such as us-central1; a zone's last letter does not belong to it",
            ),
        ]
        | None
    ) = Field(None, examples=["us-central1"])
    """The region that the job runs in."""

    preset: Literal["BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "BASIC_TPU", "CUSTOM"] = Field(
        "CUSTOM", examples=["BASIC_GPU"]
    )
    """A scale tier of AI Platform, on today's machines. CUSTOM: as `machine` says."""

    machine: Machine | None = Field(None, examples=["n1-standard-8"])
    """The machine type of the chief, and of every replica that says nothing else."""

    accelerators: AcceleratorsField | None = Field(None, examples=["2 x V100"])
    """What the chief's machine carries: `2 x V100`, or {type: V100, count: 2}."""

    topology: Annotated[str, matches(r"[0-9]+(x[0-9]+){1,2}", "a topology", "write 2x2")] | None = (
        Field(None, examples=["2x2"])
    )
    """Of a TPU v5e: how its chips are laid out."""

    replicas: Replicas = Field(_ALONE, examples=[{"workers": 2}])
    """Workers, parameter servers and evaluator beside the chief."""

    command: tuple[Text, ...] | None = Field(None, examples=[["python", "-m", "trainer.task"]])
    """Takes the place of the image's ENTRYPOINT."""

    arguments: Annotated[
        tuple[Text, ...], BeforeValidator(_arguments), AfterValidator(_within_limit)
    ] = Field((), examples=[{"steps": "1000"}])
    """What the trainer is told: `name: value` lines, or a list as on a command line."""

    environment: Annotated[dict[Variable, Text], AfterValidator(_environment)] = Field(
        {}, examples=[{"TF_CPP_MIN_LOG_LEVEL": "1"}]
    )
    """Environment variables of every replica."""

    job_dir: Annotated[str, AfterValidator(_job_dir)] | None = Field(
        None, examples=["gs://my-bucket/jobs/{job}"]
    )
    """Where the job writes: gs://BUCKET/FOLDER. {job} is replaced by the job's own id."""

    pass_job_dir: bool = Field(False, examples=[True])
    """Pass --job-dir too, as AI Platform did; AIP_MODEL_DIR and its like are always there."""

    service_account: (
        Annotated[
            str,
            matches(r"[^@\s]+@[^@\s]+\.[^@\s]+", "a service account", "write NAME@PROJECT.iam..."),
        ]
        | None
    ) = Field(None, examples=["trainer@my-project.iam.gserviceaccount.com"])
    """Whom the job runs as."""

    network: Text | None = Field(None, examples=["projects/123456789/global/networks/default"])
    """A VPC network to peer with; with the project's number, not its name."""

    tensorboard: Text | None = Field(
        None, examples=["projects/my-project/locations/us-central1/tensorboards/123"]
    )
    """A Vertex AI TensorBoard that shows the job's logs while it runs. Needs service_account."""

    disk: Disk = Field(Disk(type=None, size_gb=DISK_GB[0]), examples=[{"size_gb": "200"}])
    """The boot disk of every machine."""

    scheduling: Scheduling = Field(
        Scheduling(strategy="standard", timeout=DEFAULT_TIMEOUT, max_wait=None, restarts="worker"),
        examples=[{"strategy": "spot", "timeout": "2h"}],
    )
    """Standard, spot or flex start; timeouts; restarts."""

    labels: dict[LabelKey, LabelValue] = Field({}, max_length=60, examples=[{"team": "vision"}])
    """Labels of the job, for the bill."""

    study: Study | None = Field(None, examples=[{"metric": "accuracy"}])
    """A hyperparameter study over this job."""

    _name: str = PrivateAttr("job")
    _source: Path = PrivateAttr(Path("job.yaml"))

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
    def pools(self) -> tuple[Pool, ...]:
        """Chief, workers, parameter servers, evaluator: those there are, with their machines."""
        if self.preset != "CUSTOM":
            return tuple(
                Pool(
                    role=one.role,
                    count=one.count,
                    machine=one.machine,
                    accelerators=Accelerators(type=one.accelerator, count=one.accelerators)
                    if one.accelerator
                    else None,
                )
                for one in presets.PRESETS[self.preset].pools
            )
        assert self.machine is not None
        chief = Pool("chief", 1, self.machine, self.accelerators, self.topology)
        rest: tuple[tuple[Role, PoolSpec | None], ...] = (
            ("worker", self.replicas.workers),
            ("ps", self.replicas.parameter_servers),
            ("evaluator", self.replicas.evaluator),
        )
        return (chief, *(_beside(chief, role, spec) for role, spec in rest if spec))

    @property
    def distributed(self) -> bool:
        """Whether there is more than one replica, which is when the service sets TF_CONFIG."""
        return sum(pool.count for pool in self.pools) > 1


def _beside(chief: Pool, role: Role, spec: PoolSpec) -> Pool:
    accelerators: Accelerators | None
    if spec.accelerators == "none":
        accelerators = None
    elif spec.accelerators is not None:
        accelerators = spec.accelerators
    else:  # another machine than the chief's does not carry what the chief's carries
        same = role != "ps" and spec.machine in (None, chief.machine)
        accelerators = chief.accelerators if same else None
    return Pool(role, spec.count, spec.machine or chief.machine, accelerators)


# --- reading --------------------------------------------------------------------------------------


def names(root: Path) -> tuple[str, ...]:
    """The names of all jobs of a project, sorted."""
    return tuple(sorted(path.stem for path in (root / JOBS).glob(f"*{SUFFIX}")))


def load(root: Path, name_or_path: str) -> Job:
    """One job: by its name (jobs/<name>.yaml of the project), or by the path of its file.

    Raises InputError: no such job, or every problem of its file.
    """
    written = name_or_path.endswith((SUFFIX, ".yml")) or "/" in name_or_path
    path = Path(name_or_path) if written else root / JOBS / f"{name_or_path}{SUFFIX}"
    if written and not path.is_absolute() and not path.exists() and (root / path).exists():
        path = root / path
    if not path.is_file():
        known = names(root)
        near = difflib.get_close_matches(path.stem.lower(), known, n=1, cutoff=0.5)
        has = f"known: {', '.join(known)}" if known else f"create {JOBS}/{path.stem}{SUFFIX}"
        raise InputError(
            f"no job is called {name_or_path!r}: there is no {shown(path)}",
            f"write {near[0]}; {has}" if near else has,
        )
    text = findings.read_text(path, shown(path))
    return parse(text, path)


def parse(text: str, source: Path) -> Job:
    """The text of one job's file. Raises InputError with every problem of the text."""
    where = shown(source)
    document = yamlfile.parse(text, where)
    problems = list(document.problems)
    job = None
    if isinstance(document.value, dict):
        try:
            job = Job.model_validate(document.value)
        except ValidationError as error:
            problems += findings.problems(document, error.errors(), Job)
    else:
        problems.append(Mistake(1, "", "is not a list of `key: value` lines", "image: v100"))
    if job is not None and job.name is None:
        problems += _name_problems(source.stem)
    if problems or job is None:
        raise findings.error(where, problems)
    job._name, job._source = source.stem, source
    return job


def where(job: Job, *field: str) -> str:
    """`jobs/cats.yaml:3: machine`: where a field is written, or would be."""
    return findings.place(job.source, shown(job.source), *field)


def shown(path: Path) -> str:
    """A job's file as a person names it: from jobs/ on."""
    return "/".join(path.parts[-2:]) if path.parent.name == JOBS else str(path)


def schema() -> dict[str, Any]:
    """JSON Schema of jobs/*.yaml, for an editor."""
    result = Job.model_json_schema(mode="validation")
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    words = {"type": ["string", "number", "boolean", "null"]}
    fields, more = result["properties"], result["$defs"]
    fields["arguments"] = {
        "description": fields["arguments"]["description"],
        "anyOf": [
            {"type": "array", "items": {"type": ["string", "number"]}},
            {"type": "object", "additionalProperties": words},
        ],
    }
    fields["environment"]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    short = {"type": "string", "pattern": r"^([0-9]+ *[x*] *)?[A-Za-z][A-Za-z0-9_.-]*$"}
    for owner in (fields, more["PoolSpec"]["properties"]):
        owner["accelerators"]["anyOf"].insert(0, short)
    for name in ("workers", "parameter_servers", "evaluator"):
        more["Replicas"]["properties"][name]["anyOf"].insert(0, {"type": "integer", "minimum": 1})
    time = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?[smhd] *)+$"}
    for name in ("timeout", "max_wait"):
        told = more["Scheduling"]["properties"][name]["description"]
        more["Scheduling"]["properties"][name] = {**time, "description": told}
    parameter = more["Parameter"]["properties"]
    for name in ("min", "max"):
        parameter[name]["anyOf"].insert(0, {"type": "number"})
    parameter["values"] = {
        "description": parameter["values"]["description"],
        "type": "array",
        "items": {"type": ["string", "number"]},
    }
    return result


def schema_text() -> str:
    """The bytes of jobs/schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


# --- problems in the words of the file ------------------------------------------------------------


def _name_problems(name: str) -> Iterator[Mistake]:
    if not re.fullmatch(rf"[a-z](?:[a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?", name):
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:NAME_LENGTH] or "job"
        what = f"the file's name {name!r} is not a job's name: a-z, 0-9 and -, a letter first"
        yield Mistake(1, "", what, f"rename the file to {slug}{SUFFIX}, or add name: {slug}")
