"""The kinds of values in a job's file: each type reads what a person wrote, or refuses it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from builder.core.errors import InputError
from builder.core.filemodel import FileModel, matches, refuse, shown

NAME_LENGTH = 63
"""A job's name becomes part of a display name (128), of a label's value (63), of a container's."""
ENVIRONMENT_LIMIT = 100
"""Variables of one container. Source: aiplatform v1, ContainerSpec.env."""
ARGUMENTS_LIMIT = 100_000
"""Characters of all arguments of one container. Source: aiplatform v1, ContainerSpec.args."""
DISK_GB = (100, 64_000)
"""Source: Google Cloud, serverless training, configure-compute."""
LONGEST = 10_000 * 24 * 3600
"""Seconds: the longest length of time that a file may name."""
DEFAULT_TIMEOUT = 7 * 24 * 3600
"""Seconds. Source: aiplatform v1, Scheduling.timeout."""
REGION = "{region}"
"""In job_dir: the region that the job runs in."""

_SET_BY_THE_SERVICE = re.compile(
    r"TF_CONFIG|CLUSTER_SPEC|TPU_CONFIG|TPU_NODE_NAME|AIP_.*|CLOUD_ML_.*"
)
_OUR_LABELS = "builder-"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = r"([0-9]+(\.[0-9]+)?[smhd]\s*)+"
_ACCELERATORS = r"(?:([0-9]+)\s*[x*]\s*)?([A-Za-z][\w.-]*)(?:\s*[x*]\s*([0-9]+))?"


class WrittenModel(FileModel):
    """A part of a job's file, whose attributes' docstrings describe the fields to editors."""

    model_config = ConfigDict(use_attribute_docstrings=True)


# --- numbers and times ----------------------------------------------------------------------------


def seconds(text: str) -> int:
    """Return the seconds of `90s`, `30m`, `2h`, `1h30m` or `7d`, LONGEST at most.

    Raises ValueError.
    """
    text = text.strip().lower()
    if not re.fullmatch(_DURATION, text):
        raise ValueError(text)
    parts = re.findall(r"([0-9.]+)([smhd])", text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if total > LONGEST:
        raise ValueError(text)
    return round(total)


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
            "write a number and s, m, h or d, such as 2h or 22m; at most 10000d",
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


def _text(value: str) -> str:
    for character in value:
        if character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cs"}:
            raise refuse(
                f"a control character (U+{ord(character):04X}) is not allowed", "remove it"
            )
    return value


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


def _within_limit(value: tuple[str, ...]) -> tuple[str, ...]:
    characters = sum(len(argument) for argument in value)
    if characters > ARGUMENTS_LIMIT:
        raise refuse(
            f"the arguments are {characters:,} characters: a container takes {ARGUMENTS_LIMIT:,}",
            "write what is long into a file in the bucket, and pass its name",
        )
    return value


def _variable(name: str) -> str:
    if _SET_BY_THE_SERVICE.fullmatch(name):
        raise refuse(f"{name} cannot be set: the training service sets it", "remove it")
    return name


def _environment(value: Mapping[str, object]) -> Mapping[str, object]:
    if len(value) > ENVIRONMENT_LIMIT:
        raise refuse(
            f"{len(value)} variables: a container takes {ENVIRONMENT_LIMIT}",
            "put the rest into a file beside the data, or into one variable as JSON",
        )
    return value


def _job_dir(value: str) -> str:
    if re.match(r"[a-z0-9]+://", value) and not value.startswith("gs://"):
        raise refuse(f"{shown(value)} is not in Cloud Storage", "write gs://BUCKET/FOLDER")
    if value.startswith("gs://") and not re.match(
        r"gs://[a-z0-9][a-z0-9._-]{1,221}(/|$)", value.replace(REGION, "us-central1")
    ):
        raise refuse(f"{shown(value)} names no bucket", "write gs://BUCKET/FOLDER")
    if re.search(r"\{(?!(?:job|region)\})", value):
        what = f"{shown(value)} holds an unknown {{word}}"
        raise refuse(what, "only {job} and {region} are replaced")
    if re.search(r"[*?\[\]\s#]", value):
        raise refuse(f"{shown(value)} cannot be a folder's name", "leave out spaces and * ? [ ] #")
    return value.rstrip("/") or "/"


def _label(name: str) -> str:
    if name.startswith(_OUR_LABELS):
        raise refuse(
            f"{name} cannot be set: labels with {_OUR_LABELS} are the factory's own, by which it "
            "finds the job again",
            "write another name",
        )
    return name


def _as_written(value: object) -> object:
    """Return the value: the reader leaves every scalar as text, and an editor may take it for a
    number."""
    return value


_Scalar = str | float | bool
Text = Annotated[
    str, BeforeValidator(_as_written, json_schema_input_type=_Scalar), AfterValidator(_text)
]
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
    AfterValidator(_within_limit),
]
_Variable = Annotated[
    str,
    matches(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name", "use A-Z, 0-9 and _"),
    AfterValidator(_variable),
]


class Secret(WrittenModel):
    """A value that stands elsewhere: the job's file names it, and never holds it."""

    secret: str
    """The Secret's name."""

    key: str
    """The key in it."""


def _secret(value: object) -> object:
    """Return the secret that a mapping names; a text stays as it is."""
    if not isinstance(value, dict):
        return value
    fix = "write {secret: NAME, key: KEY}"
    if set(value) != {"secret", "key"}:
        raise refuse("a variable is a text, or names a secret and its key", fix)
    name, key = str(value["secret"]), str(value["key"])
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name):
        raise refuse(f"{name!r} is not the name of a Secret", fix)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", key):
        raise refuse(f"{key!r} is not a key of a Secret", fix)
    return Secret(secret=name, key=key)


_Value = Annotated[Text | Secret, BeforeValidator(_secret, json_schema_input_type=_Scalar | Secret)]
Environment = Annotated[dict[_Variable, _Value], AfterValidator(_environment)]
JobDir = Annotated[str, AfterValidator(_job_dir)]

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
        r"[a-z][a-z0-9_-]{0,62}", "a label's name", "use a-z, 0-9, _ and -, a letter first, <= 63"
    ),
    AfterValidator(_label),
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
