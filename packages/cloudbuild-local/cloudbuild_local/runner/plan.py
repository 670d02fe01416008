"""What would run: a build with every text expanded, its images mapped, its secrets known."""

import fnmatch
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cloudbuild_local import rules
from cloudbuild_local.errors import InputError
from cloudbuild_local.reader import substitutions
from cloudbuild_local.reader.build import Build, Step, Volume, build_of, dependencies
from cloudbuild_local.reader.document import BuildFile
from cloudbuild_local.reader.expansion import ExpansionError

WORKSPACE, HOME, OUTPUTS = "/workspace", "/builder/home", "/builder/outputs"


@dataclass(frozen=True)
class PlannedStep:
    """A step as it will run."""

    step: Step
    image: str
    """The engine's; it stands in for `step.name` if they differ."""
    environment: tuple[str, ...]
    """NAME=VALUE."""
    secrets: tuple[str, ...]
    """Names of variables."""
    waits_for: frozenset[int]
    """Indices of steps."""
    workdir: str
    volumes: tuple[Volume, ...]


@dataclass(frozen=True)
class BuildPlan:
    """A build, ready to run."""

    build_id: str
    file: BuildFile
    build: Build
    steps: tuple[PlannedStep, ...]
    source: Path | None
    values: Mapping[str, str]
    """Of all substitutions."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variable -> value, never shown."""
    partial: bool = False
    """Whether only some steps run; then nothing is pushed or copied."""


def prepare(
    file: BuildFile,
    *,
    source: Path | None,
    overrides: Mapping[str, str] | None = None,
    built_in: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    images: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
) -> BuildPlan:
    """Return the plan of a build.

    source: the folder that becomes the workspace; None for an empty one. overrides: substitutions
    of the call. built_in: values of built-in names (the project, the commit ...). secrets: variable
    -> value. images: name or pattern of a builder -> an image of the engine. only: ids or numbers
    of the steps to run; () runs all.

    Raises InputError for what Cloud Build would refuse, and for a secret without a value.
    """
    overrides, secrets = dict(overrides or {}), dict(secrets or {})
    rules.refuse(file, rules.check(file, overrides))
    build_id = str(uuid.uuid4())
    known = {"BUILD_ID": build_id, "LOCATION": "global", **(built_in or {})}
    known |= {**file.build.substitutions, **overrides}
    build, values = _expanded(file, known)
    chosen = _chosen(file, build, only)
    waits = dependencies(build.steps)
    steps = tuple(
        PlannedStep(
            step=step,
            image=mapped(step.name, images or {}),
            environment=_environment(build, step, values),
            secrets=tuple(dict.fromkeys((*build.options.secret_env, *step.secret_env))),
            waits_for=waits[step.index] & chosen,
            workdir=str(PurePosixPath(WORKSPACE) / step.dir),
            volumes=(*build.options.volumes, *step.volumes),
        )
        for step in build.steps
        if step.index in chosen
    )
    _require(file, steps, secrets)
    partial = len(chosen) < len(build.steps)
    return BuildPlan(build_id, file, build, steps, source, values, secrets, partial)


def _expanded(file: BuildFile, known: Mapping[str, str]) -> tuple[Build, Mapping[str, str]]:
    options = file.build.options
    dynamic = options.dynamic_substitutions or file.trigger
    strict = options.substitution_option == "MUST_MATCH" and not file.trigger
    try:
        values = substitutions.resolve(known, dynamic, strict)
        return build_of(substitutions.expanded(file.value, values)), values.known
    except ExpansionError as error:
        raise InputError(f"{file.path}: {error}", error.fix) from None


def _require(file: BuildFile, steps: tuple[PlannedStep, ...], secrets: Mapping[str, str]) -> None:
    """Raise InputError for the first secret that has no value."""
    for planned in steps:
        for name in planned.secrets:
            if name not in secrets:
                line = file.line(("steps", planned.step.index, "secretEnv"))
                fix = f"--secret {name}=FILE, or --secret {name} for the variable of this shell"
                raise InputError(f"{file.path}:{line}: the secret {name} has no value here", fix)


def mapped(name: str, images: Mapping[str, str]) -> str:
    """Return the image that stands in for a builder, or the builder's own name.

    images: its full name, its name without a tag, or a pattern -> the image.
    """
    bare = re.sub(r"(@sha256:.*|:[^/]*)$", "", name)
    patterns = [pattern for pattern in (name, bare) if pattern in images] or images
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(bare, pattern):
            return images[pattern]
    return name


def _chosen(file: BuildFile, build: Build, only: tuple[str, ...]) -> set[int]:
    """Return the indices of the steps to run."""
    if not only:
        return set(range(len(build.steps)))
    chosen = set()
    for name in only:
        matches = [s.index for s in build.steps if name in (s.id, str(s.index), f"#{s.index}")]
        if not matches:
            ids = ", ".join(step.id or str(step.index) for step in build.steps)
            raise InputError(f"{file.path}: no step {name!r}", f"name one of {ids}")
        chosen.add(matches[0])
    return chosen


def _environment(build: Build, step: Step, values: Mapping[str, str]) -> tuple[str, ...]:
    automap = step.automap_substitutions
    if automap is None:
        automap = build.options.automap_substitutions
    variables = dict(values) if automap else {}
    for text in (*build.options.env, *step.env):
        name, _, value = text.partition("=")
        variables[name] = value
    variables = {"HOME": HOME, **variables, "BUILDER_OUTPUT": OUTPUTS}
    return tuple(f"{name}={value}" for name, value in sorted(variables.items()))


def described(plan: BuildPlan) -> dict[str, Any]:
    """Return what would run, for `--dry-run`, without the values of secrets."""
    steps = [asdict(planned) for planned in plan.steps]
    return {"steps": steps, "images": plan.build.images, "timeout": plan.build.timeout}
