"""How a build went: its status, its images, its failed steps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.errors import CheckFailed, FactoryError, OutsideError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build

GOOD = "SUCCESS"
ENDED = (GOOD, "FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED")

_WHY: Mapping[str, tuple[str, str]] = {
    "TIMEOUT": ("took longer than its timeout", "raise timeout: in cloudbuild.yaml"),
    "EXPIRED": (
        "waited in the queue longer than its queueTtl",
        "look at the pool and the quota for concurrent builds, then submit it again",
    ),
    "CANCELLED": ("was cancelled", "submit it again"),
    "INTERNAL_ERROR": (
        "ended with an internal error of Cloud Build",
        "submit it again; status.cloud.google.com",
    ),
}


@dataclass(frozen=True)
class ReportedImage:
    name: str
    digest: str


@dataclass(frozen=True)
class Outcome:
    id: str
    status: str
    detail: str
    log_url: str
    seconds: float
    """From its start to its end; 0 if it never started."""
    images: tuple[ReportedImage, ...] = ()
    note: str = ""
    """What could not be read of it, and why."""
    failed_steps: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        return " in ".join(filter(None, (self.status, ", ".join(self.failed_steps))))


def status(build: Build) -> str:
    return str(build.status.name)


def outcome(build: Build, note: str = "") -> Outcome:
    seconds = 0.0
    if build.start_time and build.finish_time:
        seconds = (build.finish_time - build.start_time).total_seconds()
    detail = build.failure_info.detail or build.status_detail
    failed = tuple(
        step.id or f"#{number}"
        for number, step in enumerate(build.steps)
        if step.status.name in ("FAILURE", "TIMEOUT", "INTERNAL_ERROR")
    )
    images = _images(build)
    return Outcome(build.id, status(build), detail, build.log_url, seconds, images, note, failed)


def _images(build: Build) -> tuple[ReportedImage, ...]:
    digests: dict[str, str] = {image.name: image.digest for image in build.results.images}
    for image in itertools.chain.from_iterable(map(_listed, build.results.build_step_outputs)):
        if isinstance(image, dict) and {"repository", "digest", "tags"} <= image.keys():
            for tag in image["tags"]:
                digests[f"{image['repository']}:{tag}"] = image["digest"]
    return tuple(ReportedImage(name, digest) for name, digest in digests.items())


def _listed(output: bytes) -> Iterator[Any]:
    """Yield the items of the JSON lists in a step's output, which stand one after the other: one
    for each target. What is no JSON ends it."""
    text = output.decode(errors="replace").strip()
    while text:
        try:
            content, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return
        yield from content if isinstance(content, list) else ()
        text = text[end:].strip()


def judged(done: Outcome) -> Outcome:
    """Return the build if it succeeded. Raises CheckFailed for a failed step, else OutsideError."""
    if done.status == GOOD:
        return done
    detail = f": {done.detail}" if done.detail else ""
    if done.status == "FAILURE":
        steps = f" in {', '.join(done.failed_steps)}" if done.failed_steps else ""
        fix = f"builder cloud logs {done.id}"
        raise CheckFailed(f"build {done.id} failed{steps}{detail}", fix)
    why, fix = _WHY.get(done.status, (f"ended as {done.status}", "look at " + done.log_url))
    raise OutsideError(f"build {done.id} {why}{detail}", fix)


def all_judged(done: Mapping[str, Outcome]) -> None:
    """Return if every one of these builds succeeded. done: by what each one builds.

    Raises CheckFailed if a step failed in one of them, else OutsideError; of several, the message
    names each that did not succeed.
    """
    refused: dict[str, FactoryError] = {}
    for name, build in done.items():
        try:
            judged(build)
        except FactoryError as error:
            refused[name] = error
    if not refused:
        return
    errors = sorted(refused.values(), key=lambda error: not isinstance(error, CheckFailed))
    if len(done) == 1:
        raise errors[0]
    each = "; ".join(f"{name}: {error.message}" for name, error in refused.items())
    message = f"{len(refused)} of {len(done)} builds did not succeed: {each}"
    raise type(errors[0])(message, errors[0].fix)
