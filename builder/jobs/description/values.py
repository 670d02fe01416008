"""The kinds of values in a job's file: each type reads what a person wrote, or refuses it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from builder.core.errors import InputError
from builder.core.findings import FileModel, matches, refuse

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

DEFAULT_PATIENCE = 15 * 60
"""Seconds: our own choice."""

# Set on each replica by the service: a value of the user's would not be the one that arrives.
_RESERVED = ("TF_CONFIG", "CLUSTER_SPEC", "TPU_CONFIG", "TPU_NODE_NAME")
_RESERVED_PREFIXES = ("AIP_", "CLOUD_ML_")

OUR_LABELS = "builder-"
REGION = "{region}"
"""In job_dir: the region that the job runs in."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhd]\s*)+")


def _plain(value: str) -> str:
    for character in value:
        if character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cs"}:
            raise refuse(
                f"a control character (U+{ord(character):04X}) is not allowed", "remove it"
            )
    return value


def seconds(text: str) -> int:
    """Seconds of `90s`, `30m`, `2h`, `1h30m` or `7d`, 10,000 days at most. Raises ValueError."""
    text = text.strip().lower()
    if not _DURATION.fullmatch(text):
        raise ValueError(text)
    parts = re.findall(r"([0-9.]+)([smhd])", text)
    found = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if found > LONGEST:
        raise ValueError(text)
    return round(found)


def length(flag: str, text: str | None) -> float | None:
    """Seconds of an option's `22m`; None for None. Raises InputError that names the flag."""
    if text is None:
        return None
    try:
        return float(seconds(text))
    except ValueError:
        raise InputError(
            f"{flag} {text}: not a length of time",
            "write a number and s, m, h or d, such as 2h or 22m",
        ) from None


def shortened(text: str) -> str:
    """The text in quotes; of a long one its beginning."""
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}... ({len(text)} characters)"


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError:
        raise refuse(
            f"{shortened(value)} is not a length of time",
            "write a number and s, m, h or d, such as 2h or 22m; at most 10000d",
        ) from None


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
    if value.startswith("gs://") and not re.match(
        r"gs://[a-z0-9][a-z0-9._-]{1,221}(/|$)", value.replace(REGION, "us-central1")
    ):
        raise refuse(f"{value!r} names no bucket", "write gs://BUCKET/FOLDER")
    if re.search(r"\{(?!(?:job|region)\})", value):
        raise refuse(f"{value!r} holds an unknown {{word}}", "only {job} and {region} are replaced")
    if re.search(r"[*?\[\]\s#]", value):
        raise refuse(f"{value!r} cannot be a folder's name", "leave out spaces and * ? [ ] #")
    return value.rstrip("/") or "/"


def _number(value: str) -> str:
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if found != found or found in (float("inf"), float("-inf")):
        raise refuse(f"{shortened(value)} is not a number", "write it as 0.001 or 1e-3")
    return value


Text = Annotated[str, AfterValidator(_plain)]
Number = Annotated[str, AfterValidator(_number)]
Duration = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
Variable = Annotated[
    str,
    matches(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name", "use A-Z, 0-9 and _"),
    AfterValidator(_variable),
]


def _label(name: str) -> str:
    if name.startswith(OUR_LABELS):
        raise refuse(
            f"{name} cannot be set: labels with {OUR_LABELS} are the factory's own, by which it "
            "finds the job again",
            "write another name",
        )
    return name


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
Machine = Annotated[
    str,
    matches(
        r"(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)+", "a machine type", "write one such as n1-standard-8"
    ),
]


Arguments = Annotated[tuple[Text, ...], BeforeValidator(_arguments), AfterValidator(_within_limit)]
Environment = Annotated[dict[Variable, Text], AfterValidator(_environment)]
JobDir = Annotated[str, AfterValidator(_job_dir)]


class WrittenModel(FileModel):
    model_config = ConfigDict(use_attribute_docstrings=True)
