"""The kinds of values in a job's file: each type reads what a person wrote, or refuses it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from builder.core.errors import InputError
from builder.core.filemodel import FileModel, matches, refuse, shown

NAME_LENGTH = 63
"""A job's name becomes part of a display name (128), of a label's value (63), of a container's."""
ENVIRONMENT_LIMIT = 100
"""Variables of one container. Source: aiplatform v1, ContainerSpec.env."""
DISK_GB = (100, 64_000)
"""Source: Google Cloud, serverless training, configure-compute."""
DEFAULT_TIMEOUT = 7 * 24 * 3600
"""Seconds. Source: aiplatform v1, Scheduling.timeout."""

_SET_BY_THE_SERVICE = r"TF_CONFIG$|CLUSTER_SPEC$|TPU_CONFIG$|TPU_NODE_NAME$|AIP_|CLOUD_ML_"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = r"([0-9]{1,5}(\.[0-9]+)?[smhd]\s*){1,4}"
_ACCELERATORS = r"(?:([0-9]+)\s*[x*]\s*)?([A-Za-z][\w.-]*)(?:\s*[x*]\s*([0-9]+))?"


class WrittenModel(FileModel):
    """A part of a job's file, whose attributes' docstrings describe the fields to editors."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @property
    def written(self) -> tuple[str, ...]:
        """Return the names of the fields that the job's file has."""
        return tuple(name for name in type(self).model_fields if getattr(self, name))


# --- numbers and times ----------------------------------------------------------------------------


def seconds(text: str) -> int:
    """Return the seconds of `90s`, `30m`, `2h`, `1h30m` or `7d`. Raises ValueError."""
    text = text.strip().lower()
    if not re.fullmatch(_DURATION, text):
        raise ValueError(text)
    parts = re.findall(r"([0-9.]+)([smhd])", text)
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def length(flag: str, text: str | None) -> float | None:
    """Return the seconds of an option's `22m`; None for None. Raises InputError naming the flag."""
    if text is None:
        return None
    try:
        return float(seconds(text))
    except ValueError:
        raise InputError(
            f"{flag} {text}: not a length of time",
            "write a number and s, m, h or d, such as 2h or 22m",
        ) from None


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError:
        raise refuse(
            f"{shown(value)} is not a length of time",
            "write a number and s, m, h or d, such as 2h or 22m",
        ) from None


def is_number(text: str) -> bool:
    """Tell whether a text is a finite number."""
    try:
        return float(text) - float(text) == 0
    except ValueError:
        return False


def _number(value: str) -> str:
    if not is_number(value):
        raise refuse(f"{shown(value)} is not a number", "write it as 0.001 or 1e-3")
    return value


# --- programs -------------------------------------------------------------------------------------


def _arguments(value: object) -> object:
    """Return names and values as --name=value; a name without a value is the flag alone."""
    if not isinstance(value, dict):
        return value
    arguments = []
    for name, item in value.items():
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise refuse(
                f"{shown(name)} is not the name of an argument",
                "write it without dashes before it, or write a list: [--name, value]",
            )
        if isinstance(item, list | dict):
            raise refuse(
                f"{name} has several values",
                "write a list of all arguments: [--name, first, second]",
            )
        arguments.append(f"--{name}" if item is None else f"--{name}={item}")
    return arguments


def _as_written(value: object) -> object:
    """Return the value: the reader leaves every scalar as text, and an editor may take it for a
    number."""
    return value


_Scalar = str | float | bool
Text = Annotated[str, BeforeValidator(_as_written, json_schema_input_type=_Scalar)]
Number = Annotated[
    str, BeforeValidator(_as_written, json_schema_input_type=str | float), AfterValidator(_number)
]
Duration = Annotated[
    int,
    BeforeValidator(
        _duration, json_schema_input_type=Annotated[str, Field(pattern=f"^{_DURATION}$")]
    ),
    Field(gt=0),
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

    secret: str
    """The name of a Secret of Kubernetes, or of one in Secret Manager."""

    key: str | None = None
    """The key in a Secret of Kubernetes. In Secret Manager a secret is one value."""


def _secret(value: object) -> object:
    """Return the secret that a mapping names; a text stays as it is."""
    if not isinstance(value, dict):
        return value
    name, key = str(value.get("secret", "")), value.get("key")
    named = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", name)
    keyed = key is None or re.fullmatch(r"[A-Za-z0-9._-]{1,253}", str(key))
    if set(value) - {"secret", "key"} or not named or not keyed:
        what = "a variable is a text, or names a secret, of Kubernetes with a key in it"
        raise refuse(what, "write {secret: NAME, key: KEY}")
    return Secret(secret=name, key=key)


_Value = Annotated[Text | Secret, BeforeValidator(_secret, json_schema_input_type=_Scalar | Secret)]
Environment = Annotated[dict[_Variable, _Value], Field(max_length=ENVIRONMENT_LIMIT)]
JobDir = Annotated[
    str,
    matches(
        r"gs://[a-z0-9][a-z0-9._-]{1,221}(/([^\s*?\[\]#{}/]|\{job\})+)*/?",
        "a folder of Cloud Storage",
        "write gs://BUCKET/FOLDER; only {job} is replaced",
    ),
    AfterValidator(lambda folder: folder.rstrip("/")),
]

# --- names ----------------------------------------------------------------------------------------

JobName = Annotated[
    str,
    matches(
        rf"[a-z](?:[a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?",
        "a job's name",
        f"use a-z, 0-9 and -, a letter first, at most {NAME_LENGTH}",
    ),
]
ImageName = Annotated[
    str, matches(r"[A-Za-z0-9][\w./:@-]*", "an image", "write a target, or HOST/PATH@sha256:")
]
Project = Annotated[
    str,
    matches(
        r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,}",
        "a project",
        "write its id, such as my-project",
    ),
]
Region = Annotated[
    str,
    matches(
        r"[a-z]+(-[a-z]+)+[0-9]+",
        "a region",
        "write one such as us-central1; a zone's last letter does not belong to it",
    ),
]
Machine = Annotated[
    str,
    matches(
        r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)+", "a machine type", "write one such as n1-standard-8"
    ),
]
Topology = Annotated[str, matches(r"[0-9]{1,4}(x[0-9]{1,4}){1,2}", "a topology", "write 2x2")]
ServiceAccount = Annotated[
    str, matches(r"[^@\s]+@[^@\s]+\.[^@\s]+", "a service account", "write NAME@PROJECT.iam...")
]
LabelKey = Annotated[
    str,
    matches(
        r"(?!builder-)[a-z][a-z0-9_-]{0,62}",
        "a label's name",
        "use a-z, 0-9, _ and -, a letter first, <= 63; builder- is the factory's",
    ),
]
LabelValue = Annotated[
    str, matches(r"[a-z0-9_-]{0,63}", "a label's value", "use a-z, 0-9, _ and -, at most 63")
]
Strategy = Literal["standard", "spot", "flex-start"]


def _accelerators(value: object) -> object:
    """Return {type: V100, count: 2 or 1} for `2 x V100` and `V100`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_ACCELERATORS, value.strip())
    if match is None or (match[1] and match[3]):
        raise refuse(f"{shown(value)} is not a number of accelerators", "write 2 x V100")
    return {"type": match[2], "count": match[1] or match[3] or "1"}


class Accelerators(WrittenModel):
    """How many accelerators of which type one machine carries."""

    type: Annotated[str, matches(r"[A-Za-z][\w.-]*", "an accelerator", "write V100")] = Field(
        examples=["V100"]
    )
    """V100, T4, A100, A100-80GB, L4, H100, TPU-v3 ...; the API's own names are understood, too."""

    count: int = Field(1, ge=1, le=4096, examples=[2])
    """How many on each machine; of a TPU v2 or v3 the number of cores."""


_Written: Any = Accelerators | Annotated[str, Field(pattern=f"^{_ACCELERATORS}$")]
AcceleratorsField = Annotated[
    Accelerators, BeforeValidator(_accelerators, json_schema_input_type=_Written)
]
