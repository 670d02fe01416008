"""Judging a build that has ended: by its status, and by the digests in the registry."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from builder import registry
from builder.cloudbuild.submission.outcome import GOOD, Finished, ReportedImage
from builder.core.errors import CheckFailed, FactoryError, OutsideError

_WHY: Mapping[str, tuple[str, str]] = {
    "TIMEOUT": ("took longer than its timeout", "raise timeout: in cloudbuild.yaml"),
    "EXPIRED": (
        "waited in the queue longer than its queueTtl",
        "look at the pool and the quota for concurrent builds, then builder cloud retry",
    ),
    "CANCELLED": ("was cancelled", "builder cloud retry ID"),
    "INTERNAL_ERROR": (
        "ended with an internal error of Cloud Build",
        "builder cloud retry ID; status.cloud.google.com",
    ),
}


def judged(one: Finished) -> Finished:
    """The build, if it succeeded. Raises CheckFailed for a failed step, else OutsideError."""
    if one.status == GOOD:
        return one
    detail = f": {one.detail}" if one.detail else ""
    if one.status == "FAILURE":
        where = f" in {', '.join(one.failed_steps)}" if one.failed_steps else ""
        raise CheckFailed(f"build {one.id} failed{where}{detail}", f"builder cloud logs {one.id}")
    why, fix = _WHY.get(one.status, (f"ended as {one.status}", "look at " + one.log_url))
    raise OutsideError(f"build {one.id} {why}{detail}", fix.replace("ID", one.id))


def compared(one: Finished) -> Finished:
    """The build, with the registry's digest of each image that it reports.

    A registry that does not answer gives a note. Raises CheckFailed for a digest that differs.
    """
    seen: list[ReportedImage] = []
    notes = [one.note] if one.note else []
    silent: set[str] = set()
    with contextlib.ExitStack() as stack:
        clients: dict[str, registry.Registry] = {}
        for image in one.images:
            where = registry.parse(image.name)
            if where.host not in clients:
                clients[where.host] = stack.enter_context(registry.Registry(where.host))
            there: str | None = None
            if where.host not in silent:
                try:
                    there = clients[where.host].head(where.repository, where.target)
                except FactoryError as error:
                    silent.add(where.host)
                    notes.append(f"digests not compared: {error.message}")
                else:
                    _refuse_other(image, there)
            seen.append(replace(image, registry=there))
    return replace(one, images=tuple(seen), note="; ".join(notes))


def _refuse_other(image: ReportedImage, there: str | None) -> None:
    if there != image.digest:
        says = there or "that it has no such image"
        raise CheckFailed(
            f"{image.name}: the build says {image.digest}, the registry {says}",
            "do not use it; look who else pushes there, and build it again",
        )
