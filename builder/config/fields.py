"""The types of image.yaml's fields: what a value may be, and what to write instead.

Every accepted value can stand in a Dockerfile as it is. No text holds a quote, a line break, a
backslash or a dollar sign, so that none can become an instruction.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, ValidationInfo

from builder import contract
from builder.core.errors import InputError
from builder.core.filemodel import FileModel, invalid, matches, shown
from builder.facts import accelerators

OWN = "own"
"""The `base` of an image that the factory makes from Debian and locked wheels."""

NEWEST = "newest"
"""The release of a framework that is not written: the newest one that works."""

RELEASE = re.compile(rf"{NEWEST}|[0-9]+\.[0-9]+(\.[0-9]+(\.[0-9]+)?)?(\+cu[0-9]+)?")
"""A release, or a minor release, which stands for its newest patch; of one CUDA by its label."""

PruneMode = str
"""The libraries that device code is taken out of: `off`, the framework's by its name, or `all`,
NVIDIA's too."""

# Characters that a value must not hold, and what they would do in a Dockerfile.
_UNSAFE = {
    '"': "a quote would end the value",
    "'": "a quote would end the value",
    "`": "a backtick runs a command in a shell",
    "\\": "a backslash continues or escapes in a Dockerfile",
    "$": "Docker would expand it",
}
# Variables that an image must not set: they would break the image, or the service that runs it.
_REFUSED_VARIABLES = {
    "PATH": "it leads to the image's Python",
    "LD_LIBRARY_PATH": "it decides which CUDA libraries are loaded; a wrong one hides the GPU",
    "LD_PRELOAD": "it puts a library before every other one, in every process",
    "LD_AUDIT": "it puts a library before every other one, in every process",
    "PYTHONHOME": "it replaces the image's Python",
    "PYTHONPATH": "it puts packages before the locked ones",
    "VIRTUAL_ENV": "it names the image's Python environment",
    contract.ACCELERATOR: "the factory sets it for the accelerator, and a job for its machine",
    f"{contract.ACCELERATOR}_LOOKED_AT": "the guard sets it",
    contract.IMAGE: "a job sets it",
    "TF_CONFIG": "the training service sets it, differently on each replica",
    "CLUSTER_SPEC": "the training service sets it, differently on each replica",
}
_REFERENCE = re.compile(
    r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_PLAIN_REQUIREMENT = re.compile(r"[A-Za-z][A-Za-z0-9-]*[A-Za-z0-9](?:[=<>]=[0-9]+(?:\.[0-9]+)*)?")
"""A name with at most one bound, which needs no parser: `packaging` takes long to import."""
_SIZE = re.compile(r"[0-9]+(?:\.[0-9]+)?\s*[KMGT]i?B", re.IGNORECASE)


def unsafe(text: str) -> str:
    """Return why `text` cannot stand between double quotes in a Dockerfile; "" where it can."""
    for character in text:
        if character in _UNSAFE:
            return f"{character} is not allowed: {_UNSAFE[character]}"
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            kind = "line break" if character in "\n\r\u2028\u2029\x85" else "control character"
            return f"a {kind} (U+{ord(character):04X}) is not allowed"
    return ""


def _safe(value: str) -> str:
    if problem := unsafe(value):
        raise invalid(problem, "write one line of plain text, without quotes around parts of it")
    return value


def _accelerator(value: str) -> str:
    try:
        return accelerators.find(value).name
    except InputError as error:
        raise invalid(error.message, error.fix) from None


def _base(value: str) -> str:
    if value == OWN:
        return value
    match = _REFERENCE.fullmatch(value)
    if match is None:
        raise invalid(f"{value!r} is not an image", f"write {OWN}, or HOST/PATH@sha256:<digest>")
    if not match["digest"]:
        raise invalid(
            f"{value} has no digest, so it can change under the same name",
            f"write {value}@sha256:<digest>; `docker buildx imagetools inspect {value}` shows it",
        )
    return value


def requirement(value: str) -> str:
    """Return a requirement as pip writes it.

    Raises PydanticCustomError for what cannot be locked.
    """
    if value.lstrip().startswith("-"):
        raise invalid(
            f"{value!r} is an option, not a requirement",
            "write package names only; an index is configured on the machine that locks",
        )
    if _PLAIN_REQUIREMENT.fullmatch(value):
        return value
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        parsed = Requirement(value)
    except InvalidRequirement as error:
        what = f"is not a requirement: {str(error).splitlines()[0]}"
        if "/" in value:
            what = "names a URL or a file, which cannot be locked"
        raise invalid(f"{value!r} {what}", "write name==version") from None
    if parsed.url:
        raise invalid(f"{value!r} names a URL, which cannot be locked", "write name==version")
    return str(parsed)


def module(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value, re.ASCII):
        raise invalid(
            f"{shown(value)} is not a module", "write it as after `python -m`, such as trainer.task"
        )
    return value


def _variable(name: str) -> str:
    if name in _REFUSED_VARIABLES:
        raise invalid(f"{name} cannot be set: {_REFUSED_VARIABLES[name]}", "remove it")
    if name.startswith(("AIP_", "CLOUD_ML_")):
        raise invalid(f"{name} cannot be set: the training service sets it", "remove it")
    return name


def _label(name: str) -> str:
    if name.startswith("training-image-factory."):
        raise invalid(
            f"{name} cannot be set: the factory's labels say what an image was made of and proven "
            "for",
            "remove it, or write another prefix",
        )
    return name


def _compression(value: str) -> str:
    match = re.fullmatch(r"(zstd|gzip)(?::([0-9]{1,2}))?", value)
    most = {"zstd": 19, "gzip": 9}.get(match[1], 0) if match else 0
    if match is None or (match[2] and not 1 <= int(match[2]) <= most):
        raise invalid(
            f"{value!r} is no compression of layers",
            "write zstd (levels to zstd:19), or gzip (levels to gzip:9) for old engines",
        )
    return value


def _size(value: object) -> object:
    if isinstance(value, str) and not _SIZE.fullmatch(value.strip()):
        raise invalid(f"{value!r} is not a size", "write a number and its unit, such as 2.6 GB")
    return value


def folder(value: str, info: ValidationInfo) -> str:
    """Refuse what is not the project's root (`.`) or a folder below it. With a root, the folder has
    to exist."""
    path = Path(value)
    if not re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        raise invalid(f"{value!r} is not a folder's plain name", "use letters, digits, _ - . /")
    if path.is_absolute() or ".." in path.parts:
        raise invalid(
            f"{value!r} lies outside the project",
            "write a folder inside the project, relative to its root",
        )
    root: Path | None = (info.context or {}).get("root")
    if root is not None:
        there = root / path
        if not there.is_dir():
            fix = f"create {value}/, or name the folder that holds the trainer"
            raise invalid(f"there is no folder {value} in the project", fix)
        if not there.resolve().is_relative_to(root.resolve()):
            raise invalid(
                f"{value!r} leads outside the project", "copy the trainer into the project"
            )
    return path.as_posix()


Text = Annotated[str, AfterValidator(_safe)]
Version = Annotated[
    str, matches(r"[0-9]+(\.[0-9]+)+", "a version", "write numbers with dots, such as 9.3.0.75")
]
Variable = Annotated[
    str,
    matches(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name", "use A-Z, 0-9 and _"),
    AfterValidator(_variable),
]
LabelKey = Annotated[
    str,
    matches(
        r"[a-z0-9]+([._/-][a-z0-9]+)*",
        "a label's name",
        "use a-z and 0-9, with single . - _ / between them",
    ),
    AfterValidator(_label),
]
DebianPackageName = Annotated[
    str,
    matches(
        r"[a-z0-9][a-z0-9+.-]+",
        "a Debian package's name",
        "write the name alone; `builder lock` chooses and pins its version",
    ),
]
PythonRequirement = Annotated[str, AfterValidator(requirement)]

AcceleratorName = Annotated[str, AfterValidator(_accelerator)]
PythonVersion = Annotated[str, matches(r"3\.[0-9]+", "a Python version", "write 3.11 or 3.13")]
BaseImage = Annotated[str, AfterValidator(_base)]
LayerCompression = Annotated[str, AfterValidator(_compression)]
UserNumber = Annotated[int, Field(ge=1, le=65533)]
Size = Annotated[ByteSize, BeforeValidator(_size), Field(gt=0)]


# --- advisories that are accepted -----------------------------------------------------------------


def _not_empty(value: str) -> str:
    if not value.strip():
        raise invalid("is empty", "write why it is accepted, in a line")
    return value.strip()


def _day(value: object) -> date:
    try:
        return date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise invalid(f"{value!r} is not a day", "write the last day as 2027-03-31") from None


class AcceptedAdvisory(FileModel):
    """An advisory against a package of the image that image.yaml accepts."""

    id: Annotated[
        str,
        matches(
            r"[A-Z][A-Z0-9]*(-[A-Za-z0-9:]+)+",
            "an advisory's id",
            "write it as `builder check --advisories` shows it, such as CVE-2023-52425",
        ),
    ] = Field(examples=["CVE-2023-52425"])
    """The advisory: of CVE, GitHub, PyPI, Debian or OSV."""

    package: Annotated[
        str,
        matches(
            r"[A-Za-z0-9][A-Za-z0-9+._-]*",
            "a package's name",
            "write the name alone; of Debian's the source package",
        ),
    ] = Field(examples=["expat"])
    """The package that the advisory is about; of Debian's the source package."""

    reason: Annotated[Text, AfterValidator(_not_empty)] = Field(
        examples=["the program reads no XML"]
    )
    """Why it is accepted, in one line."""

    until: Annotated[date, BeforeValidator(_day)] = Field(examples=["2027-03-31"])
    """The last day on which it is accepted, in UTC; afterwards the check fails."""
