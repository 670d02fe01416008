"""What is shown of a job at one moment: a row for each replica, and lines over steps or time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.jobs.backends.protocol import ACTIVE

Points = list[tuple[float, float]]

TAGS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "learning_rate": "learning rate",
    "step_ms/input": "input wait, ms a step",
    "step_ms/compute": "compute, ms a step",
    "utilisation/gpu_busy": "GPU, busy",
    "gradient_norm": "gradient norm",
}
"""The trainer's tags in TensorBoard, and the chart where each is drawn."""

BY_STEP = frozenset({*TAGS.values(), "examples per second"})
"""The charts over steps; all others are over seconds."""


@dataclass(frozen=True)
class ReplicaView:
    """A replica now. cpu in cores, memory in bytes, gpu and input_wait as shares."""

    name: str
    state: str
    restarts: int = 0
    exit_code: int | None = None
    seconds: float = 0.0
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    speed: float | None = None
    eta: float | None = None
    input_wait: float | None = None
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    message: str = ""


@dataclass(frozen=True)
class View:
    """A job now. series: chart -> line -> points; by step, or by seconds since the job's start."""

    job: str
    state: str
    message: str
    seconds: float
    image: str
    replicas: tuple[ReplicaView, ...]
    series: Mapping[str, Mapping[str, Points]]
    notes: tuple[str, ...]
    summary: Mapping[str, Any]

    @property
    def over(self) -> bool:
        return self.state not in ACTIVE


def add_point(
    series: dict[str, dict[str, Points]], chart: str, line: str, x: float, y: object
) -> None:
    """Add a point to a line; a value that is no finite number is left out."""
    if isinstance(y, int | float) and math.isfinite(y):
        points = series.setdefault(chart, {}).setdefault(line, [])
        # after a restart, the steps since the checkpoint are made again
        while points and chart in BY_STEP and points[-1][0] >= x:
            points.pop()
        points.append((x, float(y)))
