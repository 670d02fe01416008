"""How a build went, by the API's own message: status, images, failed steps."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import registry
from builder.cloudbuild.submission.builds import TAG

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

GOOD = "SUCCESS"
ENDED = (GOOD, "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")


@dataclass(frozen=True)
class ReportedImage:
    """An image that a build reports. registry: its digest there; None if that was not asked."""

    name: str
    digest: str
    registry: str | None = None

    @property
    def reference(self) -> str:
        """Repository and digest."""
        where = registry.parse(self.name)
        return str(where.at(self.digest))


@dataclass(frozen=True)
class Finished:
    """A build that has ended.

    seconds: from its start to its end; 0 if it never started. note: what could not be read of it,
    and why.
    """

    id: str
    status: str
    detail: str
    log_url: str
    seconds: float
    images: tuple[ReportedImage, ...] = ()
    note: str = ""
    failed_steps: tuple[str, ...] = ()


def status(build: Build) -> str:
    """The name of a build's status."""
    return str(build.status.name)


def finished(build: Build, note: str = "") -> Finished:
    """The outcome in the message of a build that has ended."""
    seconds = 0.0
    if build.start_time and build.finish_time:
        seconds = (build.finish_time - build.start_time).total_seconds()
    detail = build.failure_info.detail or build.status_detail
    failed = tuple(
        step.id or f"#{number}"
        for number, step in enumerate(build.steps)
        if step.status.name in ("FAILURE", "TIMEOUT", "INTERNAL_ERROR")
    )
    return Finished(
        build.id, status(build), detail, build.log_url, seconds, _images(build), note, failed
    )


def _images(build: Build) -> tuple[ReportedImage, ...]:
    """The images of `images:`, and those that steps pushed and wrote to their output."""
    found = {image.name: image.digest for image in build.results.images}
    for output in build.results.build_step_outputs:
        try:
            content = json.loads(output or b"[]")
        except ValueError:
            continue
        for one in content if isinstance(content, list) else []:
            if isinstance(one, dict) and {"repository", "digest", "tags"} <= one.keys():
                found |= {f"{one['repository']}:{tag}": one["digest"] for tag in one["tags"]}
    return tuple(ReportedImage(name, digest) for name, digest in found.items())


def row(build: Build) -> dict[str, Any]:
    """A build as `builder cloud status` and `list` show it."""
    done = finished(build)
    return {
        "id": build.id,
        "status": done.status,
        "created": build.create_time.isoformat() if build.create_time else None,
        "seconds": done.seconds,
        "substitutions": {k: v for k, v in build.substitutions.items() if k.startswith("_")},
        "tags": [tag for tag in build.tags if not re.match(f"{TAG}[0-9a-f]{{32}}$", tag)],
        "images": [{"name": image.name, "digest": image.digest} for image in done.images],
        "steps": [
            {"id": step.id or f"#{number}", "status": step.status.name}
            for number, step in enumerate(build.steps)
        ],
        "detail": done.detail,
        "log_url": build.log_url,
    }
