"""The table `kubernetes` of a job's file: what only a cluster has.

Source of each shape: the API of Kubernetes (PodSpec, Toleration, object names and labels), of
JobSet (ttlSecondsAfterFinished) and of Kueue (topology-aware scheduling).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.core.filemodel import matches, refuse
from builder.jobs.description.values import Duration, WrittenModel

_NAME = r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_VALUE = r"(?=.{0,63}$)([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
_PROJECT = r"(projects/[a-z][a-z0-9-]{4,28}[a-z0-9]/reservations/)?"

LabelName = Annotated[
    str, matches(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "a label", "write pool")
]
LabelText = Annotated[str, matches(_VALUE, "a label's value", "use letters, digits, - _ and .")]


class Toleration(WrittenModel):
    """A taint of nodes that the job's pods may run on all the same."""

    key: LabelName = Field(examples=["dedicated"])
    """The taint's key."""

    value: LabelText | None = Field(None, examples=["training"])
    """The taint's value; by default any."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, examples=["NoSchedule"]
    )
    """The taint's effect; by default any."""


class Topology(WrittenModel):
    """How near each other Kueue places the pods of a role; needs a queue."""

    required: LabelName | None = Field(None, examples=["cloud.google.com/gce-topology-block"])
    """All within one domain of this level; the job waits until there is one."""

    preferred: LabelName | None = Field(None, examples=["cloud.google.com/gce-topology-block"])
    """All within one domain of this level where there is one."""

    @model_validator(mode="after")
    def _fits(self) -> Topology:
        if (self.required is None) == (self.preferred is None):
            raise refuse(
                "a topology is either required or preferred",
                "write topology: {preferred: cloud.google.com/gce-topology-block}",
            )
        return self


class Kubernetes(WrittenModel):
    """What only a cluster has. Other backends say what they leave out."""

    priority: Annotated[str, matches(_NAME, "a name", "write high")] | None = Field(
        None, examples=["high"]
    )
    """A PriorityClass of the cluster."""

    ttl: Duration | None = Field(None, examples=["7d"])
    """How long the ended job stays there, with its logs; by default until it is deleted."""

    grace: Duration | None = Field(None, examples=["5m"])
    """How long a pod may take to end after SIGTERM: as long as a checkpoint takes; by default 30s.
    GKE grants a spot machine 25s."""

    node_selector: dict[LabelName, LabelText] = Field(
        {}, max_length=20, examples=[{"pool": "gpus"}]
    )
    """Labels that a node has to have, besides those that the machine asks for."""

    tolerations: tuple[Toleration, ...] = Field(
        (), max_length=20, examples=[[{"key": "dedicated", "value": "training"}]]
    )
    """Taints that the pods tolerate, besides those of the accelerator."""

    reservation: (
        Annotated[
            str,
            matches(
                _PROJECT + r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
                "a reservation",
                "write its name, or projects/PROJECT/reservations/NAME",
            ),
        ]
        | None
    ) = Field(None, examples=["projects/my-project/reservations/mine"])
    """A reservation of Compute Engine, whose machines the job runs on. GKE alone."""

    topology: Topology | None = Field(
        None, examples=[{"preferred": "cloud.google.com/gce-topology-block"}]
    )
    """How near each other Kueue places the pods."""
