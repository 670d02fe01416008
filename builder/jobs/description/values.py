"""The kinds of values in a job's file: each type reads what a person wrote, or refuses it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from builder.core.errors import InputError
from builder.core.filemodel import FileModel, invalid, matches, shown

NAME_LENGTH = 63
"""A job's name becomes part of a display name (128), of a label's value (63), of a container's."""
ENVIRONMENT_LIMIT = 100
"""Variables of one container. Source: aiplatform v1, ContainerSpec.env."""
DEFAULT_TIMEOUT = 7 * 24 * 3600
"""Seconds. Source: aiplatform v1, Scheduling.timeout."""

LEAST_KEPT = 300
"""Seconds: commands look every 10 s, and again after a few minutes where a server is away."""

_SET_BY_THE_SERVICE = r"TF_CONFIG$|CLUSTER_SPEC$|TPU_CONFIG$|TPU_NODE_NAME$|AIP_|CLOUD_ML_"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = r"([0-9]{1,7}(\.[0-9]+)?[smhd]\s*){1,4}"
ACCELERATORS = r"(?:([1-9][0-9]{0,3}) ?x ?)?([A-Za-z][\w.-]*)"
"""How many, one where that is left out, and of which type."""


class WrittenModel(FileModel):
    """A part of a job's file, whose attributes' docstrings describe the fields to editors."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @property
    def written(self) -> tuple[str, ...]:
        """Return the names of the fields that the job's file has."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))


_TIME_FIX = "write a number and s, m, h or d, such as 2h or 22m"


def seconds(text: object) -> int:
    """Return the seconds of `90s`, `30m`, `2h`, `1h30m` or `7d`. Raises PydanticCustomError."""
    if not isinstance(text, str) or not re.fullmatch(_DURATION, text.strip().lower()):
        raise invalid(f"{shown(text)} is not a length of time", _TIME_FIX)
    parts = re.findall(r"([0-9.]+)([smhd])", text.lower())
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def _long_enough(lifetime: int) -> int:
    """Return how long an ended job is kept, where that is long enough to read its end."""
    if lifetime < LEAST_KEPT:
        raise invalid("it is gone before anybody has read how it ended", "write 5m or more")
    return lifetime


def length(flag: str, text: str) -> float:
    """Return the seconds of an option's `22m`. Raises InputError naming the flag."""
    try:
        return float(seconds(text))
    except ValueError as error:
        raise InputError(f"{flag}: {error}", _TIME_FIX) from None


def is_number(text: str) -> bool:
    try:
        return float(text) - float(text) == 0
    except ValueError:
        return False


def _number(value: str) -> str:
    if not is_number(value):
        raise invalid(f"{shown(value)} is not a number", "write it as 0.001 or 1e-3")
    return value


def _arguments(value: object) -> object:
    """Return names and values as --name=value; a name without a value is the flag alone."""
    if not isinstance(value, dict):
        return value
    arguments = []
    for name, item in value.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise invalid(
                f"{shown(name)} is not the name of an argument",
                "write it without dashes before it, or write a list: [--name, value]",
            )
        if isinstance(item, list | dict):
            raise invalid(
                f"{name} has several values",
                "write a list of all arguments: [--name, first, second]",
            )
        arguments.append(f"--{name}" if item is None else f"--{name}={item}")
    return arguments


_Scalar = str | float | bool
# the file's reader leaves every scalar as text; an editor takes it for what it looks like
Text = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]
Number = Annotated[str, WithJsonSchema({"type": ["string", "number"]}), AfterValidator(_number)]
Duration = Annotated[int, BeforeValidator(seconds, json_schema_input_type=str), Field(gt=0)]
Kept = Annotated[Duration, AfterValidator(_long_enough)]
Cpu = Annotated[
    Text, matches(r"[0-9]+(\.[0-9]+)?|[0-9]+m", "a number of processors", "write 4, 0.5 or 500m")
]
Memory = Annotated[
    Text, matches(r"[0-9]+(\.[0-9]+)?[MGT]i?", "an amount of memory", "write 16Gi or 512Mi")
]
Arguments = Annotated[
    tuple[Text, ...],
    BeforeValidator(_arguments, json_schema_input_type=list[_Scalar] | dict[str, _Scalar | None]),
]
_Variable = Annotated[
    str,
    matches(
        rf"(?!{_SET_BY_THE_SERVICE})[A-Za-z_][A-Za-z0-9_]*",
        "a variable's name",
        "use A-Z, 0-9 and _; TF_CONFIG, CLUSTER_SPEC, AIP_* and CLOUD_ML_* are the service's",
    ),
]


class Secret(WrittenModel):
    """A value that stands elsewhere: the job's file names it, and never holds it."""

    secret: str = Field(examples=["wandb"])
    """The name of a Secret of Kubernetes, or of one in Secret Manager."""

    key: str | None = Field(None, examples=["api-key"])
    """The key in a Secret of Kubernetes. In Secret Manager a secret is one value."""


def _secret(value: object) -> object:
    """Return the secret that a mapping names; a text stays as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not {"secret"} <= value.keys() <= {"secret", "key"}:
        raise invalid("a variable is a text, or names a secret", "write {secret: NAME, key: KEY}")
    return Secret(**value)


_Value = Annotated[Text | Secret, BeforeValidator(_secret, json_schema_input_type=_Scalar | Secret)]
Environment = Annotated[dict[_Variable, _Value], Field(max_length=ENVIRONMENT_LIMIT)]
_PARTS = r"(/([^\s*?\[\]#{}/]|\{job\})+)"
JobDir = Annotated[
    str,
    matches(
        rf"(gs|s3)://[a-z0-9][a-z0-9._-]{{1,221}}{_PARTS}*/?|{_PARTS}+/?",
        "a folder of a bucket, or a path",
        "write gs://BUCKET/FOLDER; only {job} is replaced",
    ),
    AfterValidator(lambda folder: folder.rstrip("/")),
]
Folder = Annotated[
    str, matches(r"(/[A-Za-z0-9_][\w.-]*)+", "a folder of a container", "write it as /mnt/NAME")
]


JobName = Annotated[
    str,
    matches(
        rf"[a-z](?:[a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?",
        "a job's name",
        f"use a-z, 0-9 and -, a letter first, at most {NAME_LENGTH}",
    ),
]
Accelerators = Annotated[str, matches(ACCELERATORS, "a number of accelerators", "write 2 x V100")]
