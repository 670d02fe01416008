"""The substitutions of a build: their names, their values, and the texts that use them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from builder.cloudbuild.reader.build import Build, Objects, Place, Step, Volume
from builder.cloudbuild.reader.expansion import BUILT_IN, Unexpandable, expand, references
from builder.core.errors import InputError

FIXED = ("PROJECT_ID", "BUILD_ID")
"""The built-in names that a call cannot override."""

USER_KEY = re.compile(r"_[A-Z0-9_]+")
MAX_COUNT, MAX_KEY_BYTES, MAX_VALUE_BYTES = 200, 100, 4000


@dataclass(frozen=True)
class Values:
    """The value of every name, and the rules that the build expands its texts by."""

    known: Mapping[str, str]
    dynamic: bool
    strict: bool

    def expand(self, text: str) -> str:
        """A text of the build. Raises Unexpandable."""
        return expand(text, self.known.get, self.dynamic, self.strict)


def resolve(given: Mapping[str, str], dynamic: bool, strict: bool) -> Values:
    """The values with the substitutions in them expanded, under dynamicSubstitutions.

    Raises Unexpandable, also for values that name each other in a circle.
    """
    done: dict[str, str] = {}

    def look(name: str, above: tuple[str, ...]) -> str | None:
        if name in done or name not in given:
            return done.get(name)
        if name in above:
            circle = " -> ".join([*above[above.index(name) :], name])
            raise Unexpandable(
                f"substitutions in a circle: {circle}", "remove one of these references", name
            )
        done[name] = expand(
            given[name], lambda other: look(other, (*above, name)), dynamic=True, strict=strict
        )
        return done[name]

    if not dynamic:
        return Values(dict(given), dynamic, strict)
    for name in given:
        if name.startswith("_"):
            look(name, ())
        else:
            done[name] = given[name]
    return Values(done, dynamic, strict)


def assignments(texts: tuple[str, ...]) -> dict[str, str]:
    """`--substitutions _A=1,_B=2` as gcloud reads it. `^:^_A=1,2:_B=3` chooses another separator.

    Raises InputError.
    """
    result: dict[str, str] = {}
    for text in texts:
        separator = ","
        if custom := re.match(r"\^([^^]+)\^", text):
            separator, text = custom[1], text[custom.end() :]
        for part in text.split(separator):
            key, equals, value = part.partition("=")
            key = key.strip()
            if not part.strip():
                continue
            if not equals:
                raise InputError(
                    f"--substitutions: {part!r} has no value",
                    "write _NAME=VALUE; where a value holds a comma: ^:^_A=1,2:_B=3",
                )
            if problem := bad_key(key):
                raise InputError(f"--substitutions: {problem[0]}", problem[1])
            result[key] = value
    return result


def bad_key(key: str) -> tuple[str, str] | None:
    """What is wrong with a name that a call sets, and the fix. None for a good name."""
    if key in FIXED:
        return f"{key} cannot be overridden", "remove it; --project names the project"
    if key in BUILT_IN or USER_KEY.fullmatch(key):
        return None
    fixed = re.sub(r"[^A-Z0-9_]", "_", key.upper().lstrip("_"))
    return (
        f"{key!r} is not a name for a substitution",
        f"write _{fixed}: an underscore, then A-Z, 0-9 and _",
    )


# --- the whole build ------------------------------------------------------------------------------


def templates(build: Build) -> Iterator[tuple[Place, str]]:
    """Every text of a build that the service expands, with its place in the file."""
    for step in build.steps:
        at: Place = ("steps", step.index)
        for name in ("name", "entrypoint", "dir", "id"):
            if text := getattr(step, name):
                yield (*at, name), text
        lists = {"args": step.args, "env": step.env, "secretEnv": step.secret_env}
        for name, texts in {**lists, "waitFor": step.wait_for or ()}.items():
            yield from (((*at, name, n), text) for n, text in enumerate(texts))
        yield from _in_volumes((*at, "volumes"), step.volumes)
    yield from ((("images", n), text) for n, text in enumerate(build.images))
    yield from ((("tags", n), text) for n, text in enumerate(build.tags))
    if build.objects:
        yield ("artifacts", "objects", "location"), build.objects.location
        for n, text in enumerate(build.objects.paths):
            yield ("artifacts", "objects", "paths", n), text
    options = build.options
    for name, texts in {"env": options.env, "secretEnv": options.secret_env}.items():
        yield from ((("options", name, n), text) for n, text in enumerate(texts))
    yield from _in_volumes(("options", "volumes"), options.volumes)
    yield from ((("availableSecrets", env), version) for env, version in build.secrets.items())
    if build.service_account:
        yield ("serviceAccount",), build.service_account
    if build.logs_bucket:
        yield ("logsBucket",), build.logs_bucket
    yield from build.elsewhere


def maps_all(build: Build) -> bool:
    """Whether a step gets every substitution as a variable. Then each one counts as used."""
    every = build.options.automap_substitutions
    own = (step.automap_substitutions for step in build.steps)
    return any(every if one is None else one for one in own)


def texts(build: Build, dynamic: bool) -> Iterator[tuple[Place, str]]:
    """Every text in which a reference counts: the templates, and values that are expanded."""
    yield from templates(build)
    if dynamic:
        yield from ((("substitutions", name), text) for name, text in build.substitutions.items())


def used(build: Build, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that a build by hand uses. Under MUST_MATCH the service refuses others."""
    if maps_all(build):
        return tuple(names)
    dynamic, found = build.options.dynamic_substitutions, set[str]()
    for _, text in texts(build, dynamic):
        with contextlib.suppress(Unexpandable):  # the rules for substitutions report it
            found.update(references(text, dynamic))
    return tuple(name for name in names if name in found)


def _in_volumes(at: Place, volumes: tuple[Volume, ...]) -> Iterator[tuple[Place, str]]:
    for n, volume in enumerate(volumes):
        yield (*at, n, "name"), volume.name
        yield (*at, n, "path"), volume.path


def apply(build: Build, values: Values) -> Build:
    """The build with every text expanded. Raises Unexpandable."""
    text = values.expand

    def every(many: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text(one) for one in many)

    def volumes(many: tuple[Volume, ...]) -> tuple[Volume, ...]:
        return tuple(Volume(text(one.name), text(one.path)) for one in many)

    def step(one: Step) -> Step:
        return dataclasses.replace(
            one,
            name=text(one.name),
            id=text(one.id),
            args=every(one.args),
            entrypoint=text(one.entrypoint),
            env=every(one.env),
            secret_env=every(one.secret_env),
            dir=text(one.dir),
            wait_for=None if one.wait_for is None else every(one.wait_for),
            volumes=volumes(one.volumes),
        )

    options = dataclasses.replace(
        build.options,
        env=every(build.options.env),
        secret_env=every(build.options.secret_env),
        volumes=volumes(build.options.volumes),
    )
    objects = build.objects
    return dataclasses.replace(
        build,
        steps=tuple(step(one) for one in build.steps),
        images=every(build.images),
        tags=every(build.tags),
        objects=Objects(text(objects.location), every(objects.paths)) if objects else None,
        options=options,
        secrets={env: text(version) for env, version in build.secrets.items()},
        service_account=text(build.service_account),
        logs_bucket=text(build.logs_bucket),
    )
