"""The advisories that an image.yaml accepts: which, why, and until when.

advisories:
  - id: CVE-2023-52425
    package: expat
    reason: the program reads no XML
    until: 2027-03-31
"""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from builder.config import fields
from builder.core.filemodel import FileModel, matches, refuse


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


AcceptedAdvisories = tuple[AcceptedAdvisory, ...]
