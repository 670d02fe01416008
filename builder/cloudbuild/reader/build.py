"""A build as a cloudbuild.yaml describes it: steps, images, artifacts, options. Frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DEFAULT_TIMEOUT = 3600.0
"""Seconds that a build may take if it says nothing (API reference, Build.timeout)."""


Place = tuple[str | int, ...]
"""Where something stands in a file: ("steps", 0, "args", 1)."""


@dataclass(frozen=True)
class Volume:
    """A volume that lives as long as the build."""

    name: str
    path: str


@dataclass(frozen=True)
class Step:
    """One step.

    index: from 0. timeout: in seconds. wait_for: ids; None starts the step after every step before
    it, ("-",) at once. automap_substitutions: None leaves it to the build's options.
    """

    index: int
    name: str = ""
    id: str = ""
    args: tuple[str, ...] = ()
    entrypoint: str = ""
    script: str = ""
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    dir: str = ""
    wait_for: tuple[str, ...] | None = None
    timeout: float | None = None
    volumes: tuple[Volume, ...] = ()
    allow_failure: bool = False
    allow_exit_codes: tuple[int, ...] = ()
    automap_substitutions: bool | None = None

    @property
    def label(self) -> str:
        """The step's name in the hosted log: `Step #0`, `Step #1 - "test"`."""
        return f'Step #{self.index} - "{self.id}"' if self.id else f"Step #{self.index}"


@dataclass(frozen=True)
class BuildOptions:
    """The build's options that change what runs. `BuildFile.value` has the others."""

    substitution_option: Literal["MUST_MATCH", "ALLOW_LOOSE"] = "MUST_MATCH"
    dynamic_substitutions: bool = False
    automap_substitutions: bool = False
    env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    logging: str = ""
    machine_type: str = ""
    disk_size_gb: int = 0


@dataclass(frozen=True)
class Objects:
    """Files of the workspace for Cloud Storage. paths: globs. location: gs://BUCKET[/FOLDER]."""

    location: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """A build. Times in seconds.

    images: `images` and `artifacts.images`, each once. other_artifacts: the other kinds of packages
    that it uploads (mavenArtifacts, npmPackages ...). secrets: environment variable -> the Secret
    Manager version or the KMS key that it comes from. elsewhere: the other texts that the service
    expands, and that a run on this machine does not need, each with its place in the file.
    """

    steps: tuple[Step, ...] = ()
    images: tuple[str, ...] = ()
    objects: Objects | None = None
    other_artifacts: tuple[str, ...] = ()
    substitutions: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT
    queue_ttl: float | None = None
    options: BuildOptions = field(default_factory=BuildOptions)
    secrets: Mapping[str, str] = field(default_factory=dict)
    logs_bucket: str = ""
    service_account: str = ""
    elsewhere: tuple[tuple[Place, str], ...] = ()


def seconds(duration: str) -> float:
    """`600s` -> 600.0. The API writes every duration like this."""
    return float(duration.removesuffix("s"))


def build_of(value: Mapping[str, Any]) -> Build:
    """The build of a file's content under the API's names."""
    options, artifacts = value.get("options", {}), value.get("artifacts", {})
    objects = artifacts.get("objects")
    other = tuple(name for name in artifacts if name not in ("images", "objects"))
    return Build(
        steps=tuple(_step(n, step) for n, step in enumerate(value.get("steps", ()))),
        images=tuple(dict.fromkeys([*value.get("images", ()), *artifacts.get("images", ())])),
        objects=Objects(objects.get("location", ""), tuple(objects.get("paths", ())))
        if objects
        else None,
        other_artifacts=other,
        substitutions=dict(value.get("substitutions", {})),
        tags=tuple(value.get("tags", ())),
        timeout=seconds(value["timeout"]) if "timeout" in value else DEFAULT_TIMEOUT,
        queue_ttl=seconds(value["queueTtl"]) if "queueTtl" in value else None,
        options=BuildOptions(
            substitution_option=options.get("substitutionOption", "MUST_MATCH"),
            dynamic_substitutions=options.get("dynamicSubstitutions", False),
            automap_substitutions=options.get("automapSubstitutions", False),
            env=tuple(options.get("env", ())),
            secret_env=tuple(options.get("secretEnv", ())),
            volumes=_volumes(options),
            logging=options.get("logging", ""),
            machine_type=options.get("machineType", ""),
            disk_size_gb=options.get("diskSizeGb", 0),
        ),
        secrets=_secrets(value),
        logs_bucket=value.get("logsBucket", ""),
        service_account=value.get("serviceAccount", ""),
        elsewhere=tuple(_elsewhere(value, other)),
    )


def _elsewhere(value: Mapping[str, Any], artifacts: tuple[str, ...]) -> Iterator[tuple[Place, str]]:
    """The texts of pools, packages and dependencies."""
    places = [("options", "pool", "name"), ("options", "workerPool"), ("dependencies",)]
    for place in [*places, *(("artifacts", name) for name in artifacts)]:
        part: Any = value
        for name in place:
            part = part.get(name, {})
        yield from _texts(part, place)


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list | dict):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in inside:
            yield from _texts(inner, (*place, key))


def _step(index: int, value: Mapping[str, Any]) -> Step:
    return Step(
        index=index,
        name=value.get("name", ""),
        id=value.get("id", ""),
        args=tuple(value.get("args", ())),
        entrypoint=value.get("entrypoint", ""),
        script=value.get("script", ""),
        env=tuple(value.get("env", ())),
        secret_env=tuple(value.get("secretEnv", ())),
        dir=value.get("dir", ""),
        wait_for=tuple(value.get("waitFor", ())) or None,
        timeout=seconds(value["timeout"]) if "timeout" in value else None,
        volumes=_volumes(value),
        allow_failure=value.get("allowFailure", False),
        allow_exit_codes=tuple(value.get("allowExitCodes", ())),
        automap_substitutions=value.get("automapSubstitutions"),
    )


def _volumes(value: Mapping[str, Any]) -> tuple[Volume, ...]:
    return tuple(
        Volume(one.get("name", ""), one.get("path", "")) for one in value.get("volumes", ())
    )


def _secrets(value: Mapping[str, Any]) -> dict[str, str]:
    available = value.get("availableSecrets", {})
    found = {
        one["env"]: one.get("versionName", "")
        for one in available.get("secretManager", ())
        if "env" in one
    }
    for one in available.get("inline", ()):
        found |= dict.fromkeys(one.get("envMap", {}), one.get("kmsKeyName", ""))
    for one in value.get("secrets", ()):
        found |= dict.fromkeys(one.get("secretEnv", {}), one.get("kmsKeyName", ""))
    return found
