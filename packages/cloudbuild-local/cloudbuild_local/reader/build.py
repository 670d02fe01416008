"""A build as frozen values: steps and their order, images, artifacts, options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

DEFAULT_TIMEOUT = 3600.0
"""Seconds that a build may take if it does not say (API reference, Build.timeout)."""

AT_ONCE = "-"
"""In `waitFor`: the step waits for none."""

T = TypeVar("T")


@dataclass(frozen=True)
class Volume:
    """A volume that lasts as long as the build."""

    name: str = ""
    path: str = ""


@dataclass(frozen=True)
class Step:
    """One step of a build."""

    index: int
    """From 0."""
    name: str = ""
    id: str = ""
    args: tuple[str, ...] = ()
    entrypoint: str = ""
    script: str = ""
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    dir: str = ""
    wait_for: tuple[str, ...] | None = None
    """Ids; None waits for every earlier step, ("-",) for none."""
    timeout: float | None = None
    """In seconds."""
    volumes: tuple[Volume, ...] = ()
    allow_failure: bool = False
    allow_exit_codes: tuple[int, ...] = ()
    automap_substitutions: bool | None = None
    """None leaves it to the options of the build."""

    @property
    def label(self) -> str:
        """The step's name in the log of Cloud Build: `Step #0`, `Step #1 - "test"`."""
        return f'Step #{self.index} - "{self.id}"' if self.id else f"Step #{self.index}"


@dataclass(frozen=True)
class Options:
    """The options of a build that decide what runs, and how."""

    substitution_option: str = "MUST_MATCH"
    dynamic_substitutions: bool = False
    automap_substitutions: bool = False
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    machine_type: str = ""
    disk_size_gb: int = 0


@dataclass(frozen=True)
class Build:
    """A build. Times are in seconds."""

    steps: tuple[Step, ...] = ()
    images: tuple[str, ...] = ()
    """`images` and `artifacts.images`, each once."""
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Files of the workspace for Cloud Storage, as {location: gs://BUCKET[/FOLDER], paths:
    [GLOB]}."""
    other_artifacts: tuple[str, ...] = ()
    """The other kinds of packages that the build uploads, such as mavenArtifacts."""
    substitutions: Mapping[str, str] = field(default_factory=dict)
    timeout: float = DEFAULT_TIMEOUT
    options: Options = field(default_factory=Options)


def build_of(value: Mapping[str, Any]) -> Build:
    """Return the build of a file's content, which has the API's names."""
    artifacts, options = value.get("artifacts", {}), value.get("options", {})
    steps = value.get("steps", ())
    return Build(
        steps=tuple(_fill(Step, step, index=n, **_volumes(step)) for n, step in enumerate(steps)),
        images=tuple(dict.fromkeys([*value.get("images", ()), *artifacts.get("images", ())])),
        objects=artifacts.get("objects", {}),
        other_artifacts=tuple(name for name in artifacts if name not in ("images", "objects")),
        substitutions=value.get("substitutions", {}),
        timeout=value.get("timeout", DEFAULT_TIMEOUT),
        options=_fill(Options, options, **_volumes(options)),
    )


def _fill(kind: type[T], value: Mapping[str, Any], **more: Any) -> T:
    """Return a value of `kind` with the fields that the file sets, and those in `more`."""
    known: dict[str, Any] = {}
    for one_field in fields(kind):  # type: ignore[arg-type]  # each kind is a dataclass
        item = value.get(camel(one_field.name))
        if item or item == 0:  # an empty list says nothing: `waitFor: []`
            known[one_field.name] = tuple(item) if isinstance(item, list) else item
    return kind(**{**known, **more})


def _volumes(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"volumes": tuple(_fill(Volume, volume) for volume in value.get("volumes", ()))}


def camel(name: str) -> str:
    """Return the API's JSON name of a field: wait_for -> waitFor."""
    return re.sub(r"_([a-z0-9])", lambda letter: letter[1].upper(), name)


def dependencies(steps: tuple[Step, ...]) -> tuple[frozenset[int], ...]:
    """Return, for each step, the indices of the steps that it waits for, without unknown ids."""
    index_of = {step.id: step.index for step in reversed(steps) if step.id}
    return tuple(
        frozenset(range(step.index))
        if step.wait_for is None
        else frozenset(index_of[name] for name in step.wait_for if name in index_of)
        for step in steps
    )


def cycle(steps: tuple[Step, ...]) -> tuple[int, ...]:
    """Return the indices of steps that wait for each other, the first again at the end, or ()."""
    waits = dependencies(steps)
    finished: set[int] = set()

    def walk(index: int, path: tuple[int, ...]) -> tuple[int, ...]:
        if index in path:
            return (*path[path.index(index) :], index)
        if index not in finished:
            for other in sorted(waits[index]):
                if indices := walk(other, (*path, index)):
                    return indices
            finished.add(index)
        return ()

    return next(filter(None, (walk(step.index, ()) for step in steps)), ())
