"""How a build went: its status, its steps, its images and its artifacts."""

from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from cloudbuild_local.errors import BuildError

Status = Literal[
    "QUEUED", "WORKING", "SUCCESS", "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED"
]


class BuildEnd(Exception):
    """The end of a build that does not succeed. error: its cause, if that has a fix."""

    def __init__(self, status: Status, detail: str, error: BuildError | None = None) -> None:
        super().__init__(detail)
        self.status: Status = status
        self.detail = detail
        self.error = error


@dataclass(frozen=True)
class StepResult:
    """How a step went."""

    index: int
    id: str
    name: str
    status: Status
    image: str = ""
    """The digest or id of its image."""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    """`started` and `ended`: seconds since the epoch; None for what did not happen."""
    output: bytes = b""
    """The content of its `$BUILDER_OUTPUT/output`."""
    detail: str = ""

    def json(self) -> dict[str, Any]:
        """Return the step under the API's names."""
        return {
            "name": self.name,
            "id": self.id,
            "status": self.status,
            "timing": {"startTime": _timestamp(self.started), "endTime": _timestamp(self.ended)},
            "exitCode": self.exit_code,
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Result:
    """How a build went."""

    build_id: str
    status: Status
    detail: str
    started: float
    ended: float
    """`started` and `ended`: seconds since the epoch."""
    steps: tuple[StepResult, ...]
    images: tuple[tuple[str, str], ...] = ()
    """Name and digest of each pushed image."""
    artifacts: tuple[dict[str, Any], ...] = ()
    """Location, path and bytes of each copied object."""
    not_done: tuple[str, ...] = ()
    """A line for each thing that Cloud Build would have done and this run did not."""
    error: BuildError | None = None

    def json(self) -> dict[str, Any]:
        """Return the result for machines, under the API's names."""
        return {
            "id": self.build_id,
            "status": self.status,
            "statusDetail": self.detail,
            "startTime": _timestamp(self.started),
            "finishTime": _timestamp(self.ended),
            "steps": [step.json() for step in self.steps],
            "results": {
                "images": [{"name": name, "digest": digest} for name, digest in self.images],
                "buildStepImages": [step.image for step in self.steps],
                "buildStepOutputs": [b64encode(step.output).decode() for step in self.steps],
                "artifacts": list(self.artifacts),
            },
            "notDone": list(self.not_done),
        }

    def summary(self) -> list[str]:
        """Return lines for people: the steps with their times, and what came out."""
        names = [step.id or f"#{step.index} {step.name.rpartition('/')[2]}" for step in self.steps]
        longest = max(map(len, names), default=0)
        lines = [f"{self.status} in {self.ended - self.started:.1f} s"]
        for name, step in zip(names, self.steps, strict=True):
            seconds = (step.ended or self.ended) - (step.started or self.ended)
            code = f"  exit code {step.exit_code}" if step.exit_code else ""
            lines.append(f"  {name:<{longest}}  {step.status:<9}  {seconds:7.1f} s{code}")
        lines += [f"  {name}@{digest}" for name, digest in self.images]
        return lines + [f"  {line}" for line in self.not_done]


def _timestamp(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
