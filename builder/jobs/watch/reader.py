"""A job at any place, read again and again: its status, its log, what it uses, its scalars.

Only new lines are read each time. A line of our trainer carries step, loss and speed as fields; in
the lines of other programs, `step 10 of 200` and `loss: 0.1` are understood. What a place does not
tell is left open.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder import contract
from builder.core.errors import OutsideError
from builder.jobs.backends.protocol import (
    SERVICE,
    Backend,
    JobStatus,
    LogLine,
    ReplicaStatus,
)
from builder.jobs.pools import replica_names
from builder.jobs.watch.scalars import Scalars
from builder.jobs.watch.view import Points, ReplicaView, View, add_point

_STEP = re.compile(r"\b(?:global )?step[ :=]+(\d+)(?: *(?:of|/) *(\d+))?", re.IGNORECASE)
_LOSS = re.compile(r"\bloss[ :=]+([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_OVER = ("succeeded", "failed", "stopped", "infeasible")
"""The states of a replica or a trial that has ended."""


def told(line: LogLine) -> dict[str, float]:
    """step, steps, loss, examples_per_second and eta_seconds, as far as a line has them.

    A line of our trainer about another event than a step, such as an evaluation, has none.
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
    """What is known of a replica, or of a trial, so far."""

    fields: dict[str, float] = field(default_factory=dict)
    message: str = ""


class Reader:
    """Follows one job. Where its log may not be read, its status alone is shown."""

    def __init__(self, place: Backend, job: JobStatus) -> None:
        self._place, self._name = place, job.name
        self._log = place.logs(job)
        self._folder = None if "://" in job.output else Path(job.output)
        self._scalars = Scalars(self._folder) if self._folder else None
        self._known: dict[str, _Known] = {}
        self._series: dict[str, dict[str, Points]] = {}
        self._notes: list[tuple[datetime, str]] = []
        self._state = ""
        self._unreadable = ""
        self._began: datetime | None = None

    def view(self) -> View:
        """The job as it is now. Raises OutsideError where the place does not tell its status."""
        now = datetime.now(UTC)
        job = self._place.get(self._name)
        if job.state != self._state:
            self._state = job.state
            if not job.replicas:  # a place that tells more has lines about each change
                self._notes.append((now, job.state))
        self._began = self._began or job.started or job.created
        self._read_log(now)
        for one in self._scalars.new() if self._scalars else ():
            add_point(self._series, one.chart, one.run, one.step, one.value)
        begin = job.started or job.created
        return View(
            job=job.display_name,
            state=job.state,
            message=job.error,
            seconds=((job.ended or now) - begin).total_seconds() if begin else 0.0,
            image=job.image,
            replicas=self._rows(job),
            series={chart: self._drawn(lines) for chart, lines in self._series.items()},
            notes=tuple(f"{when:%H:%M:%S} {text}" for when, text in sorted(self._notes)),
            summary=self._summary(),
        )

    # --- reading ---

    def _read_log(self, now: datetime) -> None:
        try:
            lines = self._log.read()
        except OutsideError as error:
            if error.message != self._unreadable:
                self._unreadable = error.message
                self._notes.append((now, f"the log cannot be read: {error.message}"))
            return
        for line in lines:
            if line.replica == SERVICE:
                self._notes.append((line.time.astimezone(UTC), line.text))
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

    def _summary(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            if self._folder:
                text = (self._folder / "summary.json").read_text(encoding="utf-8")
                value = json.loads(text)
                return value if isinstance(value, dict) else {}
        return {}

    # --- showing ---

    def _rows(self, job: JobStatus) -> tuple[ReplicaView, ...]:
        """A row a replica; of a study, a row a trial with its parameters and its result."""
        rows = []
        for one in job.trials:
            given = ", ".join(f"{parameter}={value}" for parameter, value in one.parameters.items())
            message = given + (f": {one.value:g}" if one.value is not None else "")
            rows.append(self._row(ReplicaStatus(f"trial {one.id}", one.state), job, message))
        if job.trials:
            return tuple(rows)
        # where the place tells nothing about a single replica, its state is the job's
        alike = (ReplicaStatus(name, job.state) for name in replica_names(job.pools))
        return tuple(self._row(one, job) for one in (job.replicas or alike))

    def _row(self, one: ReplicaStatus, job: JobStatus, message: str = "") -> ReplicaView:
        known = self._known.get(one.name, _Known())
        fields = known.fields
        chief = one.name.startswith("chief")
        return ReplicaView(
            name=one.name,
            state=one.state,
            restarts=one.restarts,
            exit_code=one.exit_code,
            seconds=one.seconds,
            step=int(fields["step"]) if "step" in fields else None,
            steps=int(fields["steps"]) if "steps" in fields else None,
            loss=fields.get("loss"),
            speed=fields.get("examples_per_second"),
            eta=fields.get("eta_seconds") if job.active and one.state not in _OVER else None,
            input_wait=self._input_wait() if chief else None,
            gpu=self._last("GPU, busy") if chief else None,
            message=message or known.message,
        )

    def _drawn(self, lines: Mapping[str, Points]) -> dict[str, Points]:
        """The lines of a chart, without those from a log where TensorBoard's are finer."""
        if "train" in lines:
            return {name: points for name, points in lines.items() if name not in self._known}
        return dict(lines)

    def _last(self, chart: str) -> float | None:
        lines = self._series.get(chart, {})
        return next((points[-1][1] for points in lines.values() if points), None)

    def _input_wait(self) -> float | None:
        """The share of a step spent waiting for data: lately, or of the whole run after its end."""
        shares = (self._summary().get("time") or {}).get("shares") or {}
        parts = {name: _float(shares.get(name)) or 0.0 for name in ("input", "compute")}
        if sum(parts.values()):
            return parts["input"] / sum(parts.values())
        waited, compute = self._last("input wait, ms a step"), self._last("compute, ms a step")
        if waited is None or compute is None or not waited + compute:
            return None
        return waited / (waited + compute)


def _float(value: object) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        number = float(value)  # type: ignore[arg-type]
        return number if math.isfinite(number) else None
    return None
