"""How a build went: its status, its steps, its images and its artifacts."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from builder.core.errors import FactoryError

Status = Literal[
    "QUEUED", "WORKING", "SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED"
]


class Failed(Exception):  # noqa: N818 - an end, with the status that it gives the build
    """The end of a build that does not succeed. error: its cause, if that has a fix."""

    def __init__(self, status: Status, detail: str, error: FactoryError | None = None) -> None:
        super().__init__(detail)
        self.status: Status = status
        self.detail = detail
        self.error = error


@dataclass(frozen=True)
class StepResult:
    """How a step went.

    image: the id or digest of its image. started, ended: seconds since the epoch; None if it did
    not happen. pulled: seconds. output: the content of its `$BUILDER_OUTPUT/output`.
    """

    index: int
    id: str
    name: str
    status: Status
    image: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    pulled: float = 0.0
    output: bytes = b""
    detail: str = ""


@dataclass(frozen=True)
class Pushed:
    """An image that the build pushed. seconds: of the push."""

    name: str
    digest: str
    seconds: float


@dataclass(frozen=True)
class Copied:
    """An artifact that was copied. location: its name in Cloud Storage. path: the file here."""

    location: str
    path: Path
    bytes: int


@dataclass(frozen=True)
class Result:
    """How a build went. started, ended: seconds since the epoch."""

    build_id: str
    status: Status
    detail: str
    started: float
    ended: float
    steps: tuple[StepResult, ...]
    images: tuple[Pushed, ...] = ()
    artifacts: tuple[Copied, ...] = ()
    not_done: tuple[str, ...] = ()
    """What the service would have done and this run did not, a line for each."""
    error: FactoryError | None = None

    def json(self) -> dict[str, Any]:
        """The result for machines, under the API's names."""
        return {
            "id": self.build_id,
            "status": self.status,
            **({"statusDetail": self.detail} if self.detail else {}),
            "startTime": _timestamp(self.started),
            "finishTime": _timestamp(self.ended),
            "steps": [_step_json(one) for one in self.steps],
            "results": {
                "images": [{"name": one.name, "digest": one.digest} for one in self.images],
                "buildStepImages": [one.image for one in self.steps],
                "buildStepOutputs": [b64encode(one.output).decode() for one in self.steps],
                "artifacts": [
                    {"location": one.location, "path": str(one.path), "bytes": one.bytes}
                    for one in self.artifacts
                ],
            },
            "notDone": list(self.not_done),
        }


def _step_json(one: StepResult) -> dict[str, Any]:
    value: dict[str, Any] = {"name": one.name, "id": one.id, "status": one.status}
    if one.started is not None:
        value["timing"] = {"startTime": _timestamp(one.started)}
        if one.ended is not None:
            value["timing"]["endTime"] = _timestamp(one.ended)
    if one.exit_code is not None:
        value["exitCode"] = one.exit_code
    if one.detail:
        value["detail"] = one.detail
    return value


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def timeline(result: Result, width: int = 40) -> list[str]:
    """A line for each step, with a bar for the time that it ran. width: of the bar."""
    total = max(result.ended - result.started, 0.001)
    names = [one.id or f"#{one.index} {one.name.rpartition('/')[2]}" for one in result.steps]
    longest = max((len(name) for name in names), default=0)
    lines = []
    for name, one in zip(names, result.steps, strict=True):
        if one.started is None:
            lines.append(f"  {name:<{longest}}  {one.status:<9}  {'not run':>9}")
            continue
        ended = one.ended or result.ended
        left = int((one.started - result.started) / total * width)
        long = max(1, round((ended - one.started) / total * width))
        bar = (" " * left + "=" * long)[:width].ljust(width)
        took = f"{ended - one.started:.1f} s"
        code = f"  exit code {one.exit_code}" if one.exit_code else ""
        lines.append(f"  {name:<{longest}}  {one.status:<9}  {took:>9}  |{bar}|{code}")
    return lines
