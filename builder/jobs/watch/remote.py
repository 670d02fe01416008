"""A job on Vertex AI as the page that `builder job watch` shows, from its status and its log.

Steps and losses come out of the lines: our trainer's carry them as fields, for the service takes a
line of JSON apart; of any other's, `step 10 of 200` and `loss: 0.1` in the text are understood.
What the service does not tell is left open: CPU, memory, GPU, restarts, a single replica's state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from builder import contract
from builder.core.errors import OutsideError
from builder.jobs.places.vertex.logs import Follower, LogLine
from builder.jobs.places.vertex.status import RemoteJob
from builder.jobs.watch.reader import Points, ReplicaView, View, add_point

_STEP = re.compile(r"\b(?:global )?step[ :=]+(\d+)(?: *(?:of|/) *(\d+))?", re.IGNORECASE)
_LOSS = re.compile(r"\bloss[ :=]+([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)


def told(line: LogLine) -> dict[str, float]:
    """step, steps, loss, examples_per_second and eta_seconds, as far as a line has them.

    Lines of our trainer with another event than "step" (an evaluation's, say) tell nothing.
    """
    if event := contract.event(line.fields):
        names = ("step", "steps", "loss", "examples_per_second", "eta_seconds")
        values = {name: getattr(event, name) for name in names if event.name == contract.STEP}
        return {
            name: float(one)
            for name, one in values.items()
            if one is not None and math.isfinite(one)
        }
    found: dict[str, float] = {}
    if step := _STEP.search(line.text):
        found["step"] = float(step[1])
        if step[2]:
            found["steps"] = float(step[2])
    if loss := _LOSS.search(line.text):
        found["loss"] = float(loss[1])
    return found


@dataclass
class _Known:
    """What the lines of a replica, or of a trial, have told so far."""

    fields: dict[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass
class RemoteReader:
    """Looks at one job again and again, reading only what is new in its log.

    `look` asks the service for the job. Where the log may not be read, the status alone is shown.
    """

    look: Callable[[], RemoteJob]
    follower: Follower
    _known: dict[str, _Known] = field(default_factory=dict)
    _series: dict[str, dict[str, Points]] = field(default_factory=dict)
    _notes: list[tuple[datetime, str]] = field(default_factory=list)
    _state: str = ""
    _unreadable: str = ""

    def view(self) -> View:
        """The job as it is now. Raises OutsideError where the service refuses to tell its state."""
        job = self.look()
        if job.state != self._state:
            self._state = job.state
            self._note(datetime.now(UTC), job.state)
        self._read()
        begin = job.started or job.created
        until = job.ended or datetime.now(UTC)
        return View(
            job=job.display_name,
            state=job.state,
            message=job.error,
            seconds=(until - begin).total_seconds() if begin else 0.0,
            image=job.image,
            replicas=_trials(job, self._known) if job.trials else _replicas(job, self._known),
            series=self._series,
            notes=tuple(f"{when:%H:%M:%S} {text}" for when, text in sorted(self._notes)),
            summary={},
        )

    def _read(self) -> None:
        try:
            lines = self.follower.new()
        except OutsideError as error:
            if error.message != self._unreadable:
                self._unreadable = error.message
                self._note(datetime.now(UTC), f"the log cannot be read: {error.message}")
            return
        for line in lines:
            if line.replica == "service":
                self._note(line.time, line.text)
                continue
            name = f"trial {line.trial}" if line.trial else line.replica
            known = self._known.setdefault(name, _Known())
            known.message = line.text.strip() or known.message
            new = told(line)
            known.fields |= new
            if "step" in new:
                add_point(self._series, "loss", name, new["step"], new.get("loss"))
                speed = new.get("examples_per_second")
                add_point(self._series, "examples per second", name, new["step"], speed)

    def _note(self, when: datetime, text: str) -> None:
        self._notes.append((when.astimezone(UTC), text))


def _replicas(job: RemoteJob, known: Mapping[str, _Known]) -> tuple[ReplicaView, ...]:
    """A row for each machine; its state is the job's, for the service tells no other."""
    return tuple(
        _row(name, job.state, job, known.get(name, _Known()))
        for pool in job.pools
        for name in (f"{pool.role}-{index}" for index in range(pool.count))
    )


def _trials(job: RemoteJob, known: Mapping[str, _Known]) -> tuple[ReplicaView, ...]:
    """A row for each trial of a study, with its parameters and its result."""
    rows = []
    for one in job.trials:
        name = f"trial {one.id}"
        given = ", ".join(f"{parameter}={value}" for parameter, value in one.parameters.items())
        message = given + (f": {one.value:g}" if one.value is not None else "")
        rows.append(_row(name, one.state, job, known.get(name, _Known()), message))
    return tuple(rows)


def _row(name: str, state: str, job: RemoteJob, known: _Known, message: str = "") -> ReplicaView:
    fields: Mapping[str, Any] = known.fields
    return ReplicaView(
        name=name,
        state=state,
        step=int(fields["step"]) if "step" in fields else None,
        steps=int(fields["steps"]) if "steps" in fields else None,
        loss=fields.get("loss"),
        speed=fields.get("examples_per_second"),
        eta=fields.get("eta_seconds") if job.active else None,
        message=message or known.message,
    )
