"""Where else a job may run: other machines, regions, strategies and places, tried one by one."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from builder.core.findings import matches, refuse
from builder.jobs.description.values import Machine, WrittenModel

Strategy = Literal["standard", "spot", "flex-start"]

_ACCELERATORS = re.compile(
    r"(?:(?P<count>[0-9]+)\s*[x*]\s*)?(?P<type>[A-Za-z][\w.-]*)(?:\s*[x*]\s*(?P<after>[0-9]+))?"
)


def _accelerators(value: object) -> object:
    """`2 x V100` and `V100` mean {type: V100, count: 2 or 1}."""
    if not isinstance(value, str):
        return value
    match = _ACCELERATORS.fullmatch(value.strip())
    if match is None or (match["count"] and match["after"]):
        raise refuse(f"{value!r} is not a number of accelerators", "write 2 x V100")
    return {"type": match["type"], "count": match["count"] or match["after"] or "1"}


class Accelerators(WrittenModel):
    """How many accelerators of which type one machine carries."""

    type: Annotated[str, matches(r"[A-Za-z][\w.-]*", "an accelerator", "write V100")] = Field(
        examples=["V100"]
    )
    """V100, T4, A100, A100-80GB, L4, H100, TPU-v3 ...; the API's own names are understood, too."""

    count: int = Field(1, ge=1, le=4096, examples=[2])
    """How many on each machine; of a TPU v2 or v3 the number of cores."""


AcceleratorsField = Annotated[Accelerators, BeforeValidator(_accelerators)]
ImageName = Annotated[
    str, matches(r"[A-Za-z0-9][\w./:@-]*", "an image", "write a target, or HOST/PATH@sha256:")
]
Region = Annotated[
    str,
    matches(
        r"[a-z]+(-[a-z]+)+[0-9]+",
        "a region",
        "write one such as us-central1; a zone's last letter does not belong to it",
    ),
]
Topology = Annotated[str, matches(r"[0-9]{1,4}(x[0-9]{1,4}){1,2}", "a topology", "write 2x2")]


def _listed(value: object) -> object:
    """One name means a list of it."""
    return (value,) if isinstance(value, str | dict) else value


def _distinct(value: tuple[object, ...]) -> tuple[object, ...]:
    if not value:
        raise refuse("is an empty list", "write one name at least, or remove it")
    for index, one in enumerate(value):
        if one in value[:index]:
            raise refuse(f"{one} stands there twice", "remove one of them")
    return value


class Alternative(WrittenModel):
    """Another way to run the job. What is left out is as the job has it."""

    machine: Machine | None = Field(None, examples=["n1-standard-8"])
    """The machine type."""

    accelerators: AcceleratorsField | None = Field(None, examples=["2 x T4"])
    """What each machine carries."""

    topology: Topology | None = Field(None, examples=["2x2"])
    """Of a TPU v5e."""

    region: Region | None = Field(None, examples=["europe-west4"])
    """The region."""

    strategy: Strategy | None = Field(None, examples=["spot"])
    """standard, spot or flex-start."""

    on: Literal["vertex", "kubernetes"] | None = Field(None, examples=["kubernetes"])
    """The place; by default the one that the command names."""

    image: ImageName | None = Field(None, examples=["t4"])
    """The image; by default the job's, or where that is made for another accelerator, the project's
    target for this one."""

    @model_validator(mode="after")
    def _fits(self) -> Alternative:
        if not self.model_fields_set:
            raise refuse("says nothing that differs", "write region:, machine: or strategy:")
        if self.topology and self.accelerators:
            raise refuse(
                "a topology says how many chips there are, so accelerators must be left out",
                "remove accelerators",
            )
        return self


class Cheapest(WrittenModel):
    """The cheapest of these accelerators in these regions first, then the next."""

    of: Annotated[
        tuple[AcceleratorsField, ...], BeforeValidator(_listed), AfterValidator(_distinct)
    ] = Field(examples=[["V100", "T4", "L4"]])
    """Accelerators: V100, or 2 x V100 on each machine."""

    regions: Annotated[
        tuple[
            Annotated[
                str,
                matches(
                    r"[a-z]+(-[a-z]+[0-9]+)?", "a region", "write europe, us-central1 or anywhere"
                ),
            ],
            ...,
        ],
        BeforeValidator(_listed),
        AfterValidator(_distinct),
    ] = Field((), examples=["europe"])
    """Regions, or parts of the world: europe, us, asia ..., anywhere. By default the job's own."""

    strategies: Annotated[
        tuple[Strategy, ...], BeforeValidator(_listed), AfterValidator(_distinct)
    ] = Field((), examples=[["spot", "standard"]])
    """standard, spot, flex-start. By default the job's own."""
