"""What would run: a build with every text expanded, its images mapped, its secrets at hand."""

from __future__ import annotations

import fnmatch
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from builder.cloudbuild.reader import substitutions, validation
from builder.cloudbuild.reader.build import Build, Step
from builder.cloudbuild.reader.buildfile import BuildFile
from builder.cloudbuild.reader.expansion import Unexpandable
from builder.cloudbuild.reader.order import dependencies, needed_for
from builder.cloudbuild.reader.substitutions import Values
from builder.cloudbuild.runner.sandbox import HOME, OUTPUTS, WORKSPACE
from builder.core.errors import InputError


@dataclass(frozen=True)
class PlannedStep:
    """A step as it will run.

    image: the engine's; it stands in for `step.name` if they differ. environment: NAME=VALUE.
    secrets: names of variables. waits_for: indices of steps.
    """

    step: Step
    image: str
    environment: tuple[str, ...]
    secrets: tuple[str, ...]
    waits_for: frozenset[int]
    workdir: str


@dataclass(frozen=True)
class BuildPlan:
    """A build, ready to run. secrets: variable -> value, never shown."""

    build_id: str
    file: BuildFile
    build: Build
    steps: tuple[PlannedStep, ...]
    source: Path | None
    values: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    partial: bool = False
    """Whether only some steps run. Then nothing is pushed or copied."""


def prepare(
    file: BuildFile,
    *,
    source: Path | None,
    given: Mapping[str, str] | None = None,
    builds_in: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    images: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    with_needed: bool = False,
    trigger: bool = False,
) -> BuildPlan:
    """The plan of a build.

    source: the folder that becomes the workspace; None for an empty one. given: substitutions of
    the call. builds_in: built-in names and their values (the project, the commit ...). secrets:
    variable -> value. images: name or pattern of a builder -> an image of the engine. only: ids or
    numbers of the steps to run, with_needed: and those that they wait for; () runs all. trigger:
    expand as a trigger does.

    Raises InputError for what the service would refuse, and for a secret without a value.
    """
    given, secrets = dict(given or {}), dict(secrets or {})
    validation.refuse(file, validation.check(file, given, trigger))
    build_id = str(uuid.uuid4())
    known = {"BUILD_ID": build_id, "LOCATION": "global", **(builds_in or {})}
    build, values = _expanded(file, {**known, **file.build.substitutions, **given}, trigger)
    chosen = _chosen(file, build, only, with_needed)
    waits = dependencies(build.steps)
    steps = tuple(
        PlannedStep(
            step=step,
            image=mapped(step.name, images or {}),
            environment=_environment(build, step, values.known),
            secrets=tuple(dict.fromkeys((*build.options.secret_env, *step.secret_env))),
            waits_for=waits[step.index] & chosen,
            workdir=_workdir(step.dir),
        )
        for step in build.steps
        if step.index in chosen
    )
    _require(file, steps, secrets)
    return BuildPlan(
        build_id=build_id,
        file=file,
        build=build,
        steps=steps,
        source=source,
        values=values.known,
        secrets=secrets,
        partial=len(chosen) < len(build.steps),
    )


def _expanded(file: BuildFile, known: Mapping[str, str], trigger: bool) -> tuple[Build, Values]:
    options = file.build.options
    dynamic = options.dynamic_substitutions or trigger
    strict = options.substitution_option == "MUST_MATCH" and not trigger
    try:
        values = substitutions.resolve(known, dynamic, strict)
        return substitutions.apply(file.build, values), values
    except Unexpandable as error:
        raise InputError(f"{file.path}: {error.what}", error.fix) from None


def _require(file: BuildFile, steps: tuple[PlannedStep, ...], secrets: Mapping[str, str]) -> None:
    """Raises InputError for the first secret that has no value."""
    for one in steps:
        for n, name in enumerate(one.secrets):
            if name not in secrets:
                where = file.where("steps", one.step.index, "secretEnv", n)
                raise InputError(
                    f"{where}: the secret {name} has no value here",
                    f"--secret {name}=FILE, or --secret {name} for the variable of this shell",
                )


def mapped(name: str, images: Mapping[str, str]) -> str:
    """The image that stands in for a builder.

    images: its full name, its name without a tag, or a pattern -> the image.
    """
    bare = re.sub(r"(@sha256:.*|:[^/]*)$", "", name)
    for wanted in (name, bare):
        if wanted in images:
            return images[wanted]
    for pattern, local in images.items():
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(bare, pattern):
            return local
    return name


def _chosen(
    file: BuildFile, build: Build, only: tuple[str, ...], with_needed: bool
) -> frozenset[int]:
    if not only:
        return frozenset(range(len(build.steps)))
    found: set[int] = set()
    for wanted in only:
        match = [s.index for s in build.steps if wanted in (s.id, str(s.index), f"#{s.index}")]
        if not match:
            ids = ", ".join(s.id or str(s.index) for s in build.steps)
            raise InputError(f"{file.path}: no step {wanted!r}", f"one of {ids}")
        found.update(needed_for(build.steps, match[0]) if with_needed else match[:1])
    return frozenset(found)


def _environment(build: Build, step: Step, values: Mapping[str, str]) -> tuple[str, ...]:
    automap = step.automap_substitutions
    if automap is None:
        automap = build.options.automap_substitutions
    everything = dict(values) if automap else {}
    for text in (*build.options.env, *step.env):
        name, _, value = text.partition("=")
        everything[name] = value
    everything |= {"HOME": everything.get("HOME", HOME), "BUILDER_OUTPUT": OUTPUTS}
    return tuple(f"{name}={value}" for name, value in sorted(everything.items()))


def _workdir(folder: str) -> str:
    return str(PurePosixPath(WORKSPACE) / folder) if folder else WORKSPACE


def described(plan: BuildPlan) -> list[dict[str, Any]]:
    """The steps of a plan for `--dry-run`, without the values of secrets."""
    return [
        {
            "step": one.step.index,
            "id": one.step.id,
            "image": one.image,
            **({"standsInFor": one.step.name} if one.image != one.step.name else {}),
            "entrypoint": one.step.entrypoint,
            "args": list(one.step.args),
            **({"script": one.step.script} if one.step.script else {}),
            "dir": one.workdir,
            "env": list(one.environment),
            "secretEnv": list(one.secrets),
            "waitsFor": sorted(one.waits_for),
            "timeout": one.step.timeout,
        }
        for one in plan.steps
    ]
