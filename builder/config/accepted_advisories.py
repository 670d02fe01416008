"""The advisories that an image.yaml accepts: which, why, and until when.

advisories:
  - id: CVE-2023-52425
    package: expat
    reason: the program reads no XML
    until: 2027-03-31
    justification: vulnerable_code_not_in_execute_path
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from builder.config import fields
from builder.core.filemodel import FileModel, matches, refuse

Justification = Literal[
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
]
"""Why a product is not affected, in OpenVEX's words (OpenVEX v0.2.0, Status Justifications)."""


def _not_empty(value: str) -> str:
    if not value.strip():
        raise refuse("is empty", "write why it is accepted, in a line")
    return value.strip()


def _day(value: object) -> date:
    try:
        return date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise refuse(f"{value!r} is not a day", "write the last day as 2027-03-31") from None


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

    reason: Annotated[fields.Text, AfterValidator(_not_empty)] = Field(
        examples=["the program reads no XML"]
    )
    """Why it is accepted, in one line."""

    until: Annotated[date, BeforeValidator(_day)] = Field(examples=["2027-03-31"])
    """The last day on which it is accepted, in UTC; afterwards the check fails."""

    justification: Justification | None = Field(
        None, examples=["vulnerable_code_not_in_execute_path"]
    )
    """Why the image is not affected, as OpenVEX names it. Scanners then hide the advisory. Without
    it, the image counts as affected."""


def _each_once(values: tuple[AcceptedAdvisory, ...]) -> tuple[AcceptedAdvisory, ...]:
    names = Counter((entry.id, entry.package) for entry in values)
    for (id_, package), count in names.items():
        if count > 1:
            raise refuse(f"{id_} of {package} stands twice", "keep one")
    return values


AcceptedAdvisories = Annotated[tuple[AcceptedAdvisory, ...], AfterValidator(_each_once)]
