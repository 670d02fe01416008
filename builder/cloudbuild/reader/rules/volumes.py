"""Rules for volumes: names and paths of their own, and two steps that share each."""

from __future__ import annotations

import re
from collections import Counter

from builder.cloudbuild.reader.build import Place, Volume
from builder.cloudbuild.reader.rules.report import API, Diagnostics

_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_RESERVED = ("/workspace", "/builder/home", "/builder/outputs", "/var/run/docker.sock")


def volumes(report: Diagnostics) -> None:
    """Check the volumes of the build and of its steps."""
    build, use = report.build, Counter[str]()
    common = {one.name for one in build.options.volumes}
    common_paths = {_normal(one.path) for one in build.options.volumes}
    _volumes_of(report, ("options", "volumes"), build.options.volumes)
    if build.options.volumes and len(build.steps) < 2:
        report.add(("options", "volumes"), "volumes for a single step", "remove them", API)
    for step in build.steps:
        at: Place = ("steps", step.index, "volumes")
        _volumes_of(report, at, step.volumes)
        use.update({one.name for one in step.volumes})
        for n, one in enumerate(step.volumes):
            if one.name in common or _normal(one.path) in common_paths:
                report.add((*at, n), f"{one.name} is in options.volumes, too", "keep one", API)
    for step in build.steps:
        for n, one in enumerate(step.volumes):
            if use[one.name] == 1:
                report.add(
                    ("steps", step.index, "volumes", n),
                    f"{one.name} is used by this step only",
                    "mount it in a second step, or remove it",
                    API,
                )


def _volumes_of(report: Diagnostics, at: Place, volumes: tuple[Volume, ...]) -> None:
    names, paths = Counter(v.name for v in volumes), Counter(_normal(v.path) for v in volumes)
    for n, one in enumerate(volumes):
        path = _normal(one.path)
        if not _VOLUME.fullmatch(one.name) and "$" not in one.name:
            report.add(
                (*at, n), f"{one.name!r} is not a name for a volume", "letters, digits, _ . -", API
            )
        if "$" not in path and not path.startswith("/"):
            report.add((*at, n), f"{one.path!r} is not absolute", f"write /{one.path}", API)
        if path in _RESERVED or path.startswith("/cloudbuild/") or path == "/cloudbuild":
            report.add((*at, n), f"{path} is the service's own", "choose another path", API)
        if names[one.name] > 1 or paths[path] > 1:
            report.add((*at, n), f"{one.name} or {path} appears twice", "keep one", API)


def _normal(path: str) -> str:
    return "/" + path.strip("/") if path.startswith("/") else path
