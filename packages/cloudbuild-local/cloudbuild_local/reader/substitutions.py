"""The substitutions of a build: their names, their values, and the texts that use them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader.build import Build
from cloudbuild_local.reader.expansion import BUILT_IN, ExpansionError, expand
from cloudbuild_local.reader.finding import Place

FIXED = ("PROJECT_ID", "BUILD_ID")
"""The built-in names that a call cannot override."""

USER_NAME = re.compile(r"_[A-Z0-9_]+")


@dataclass(frozen=True)
class Values:
    """The value of every name, and the rules that the build expands its texts by."""

    known: Mapping[str, str]
    dynamic: bool
    """Read bash's expansions."""
    strict: bool
    """A name without a value is an error."""

    def expand(self, text: str) -> str:
        """Return a text of the build with its substitutions. Raises ExpansionError."""
        return expand(text, self.known.get, self.dynamic, self.strict)


def resolve(values: Mapping[str, str], dynamic: bool, strict: bool) -> Values:
    """Return the values; under dynamicSubstitutions, with the substitutions in them expanded.

    Raises ExpansionError, also for values that name each other in a cycle.
    """
    if not dynamic:
        return Values(dict(values), dynamic, strict)
    resolved: dict[str, str] = {}

    def look(name: str, path: tuple[str, ...]) -> str | None:
        if name in resolved or name not in values:
            return resolved.get(name)
        if name in path:
            what = "substitutions in a circle: " + " -> ".join([*path[path.index(name) :], name])
            raise ExpansionError(what, "remove one of these references", name)
        if name.startswith("_"):
            resolved[name] = expand(
                values[name], lambda other: look(other, (*path, name)), dynamic=True, strict=strict
            )
        else:
            resolved[name] = values[name]
        return resolved[name]

    for name in values:
        look(name, ())
    return Values(resolved, dynamic, strict)


def replaced(value: Any, change: Callable[[Place, str], str], place: Place = ()) -> Any:
    """Return a file's content with `change` of every text that Cloud Build expands, and its place.

    Nothing is expanded in a script; the values of substitutions are expanded by `resolve`.
    """
    if isinstance(value, str):
        return change(place, value)
    if isinstance(value, list):
        return [replaced(item, change, (*place, n)) for n, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            name: replaced(item, change, (*place, name)) if _is_expanded((*place, name)) else item
            for name, item in value.items()
        }
    return value


def texts(value: Any) -> tuple[tuple[Place, str], ...]:
    """Return every text of a build file that Cloud Build expands, with its place."""
    known: dict[Place, str] = {}
    replaced(value, known.setdefault)
    return tuple(known.items())


def expanded(value: Any, values: Values) -> Any:
    """Return the content of a file with every text expanded. Raises ExpansionError."""
    return replaced(value, lambda _, text: values.expand(text))


def _is_expanded(place: Place) -> bool:
    return place != ("substitutions",) and not (place[0] == "steps" and place[-1] == "script")


def maps_all(build: Build) -> bool:
    """Return whether a step gets every substitution as a variable: then each one counts as used."""
    default = build.options.automap_substitutions
    own = (step.automap_substitutions for step in build.steps)
    return any(default if automap is None else automap for automap in own)


def assignments(options: tuple[str, ...]) -> dict[str, str]:
    """Return the values of `--substitutions _A=1,_B=2`, read as gcloud does.

    `^:^_A=1,2:_B=3` chooses another separator. Raises InputError.
    """
    values: dict[str, str] = {}
    for text in options:
        separator = ","
        if custom := re.match(r"\^([^^]+)\^", text):
            separator, text = custom[1], text[custom.end() :]
        for part in filter(str.strip, text.split(separator)):
            name, equals, value = part.partition("=")
            name = name.strip()
            if not equals:
                fix = "write _NAME=VALUE; where a value holds a comma: ^:^_A=1,2:_B=3"
                raise InputError(f"--substitutions: {part!r} has no value", fix)
            if problem := bad_name(name):
                raise InputError(f"--substitutions: {problem[0]}", problem[1])
            values[name] = value
    return values


def bad_name(name: str) -> tuple[str, str] | None:
    """Return what is wrong with a name that a call sets, and the fix; None for a good name."""
    if name in FIXED:
        return f"{name} cannot be overridden", "remove it; --project names the project"
    if name in BUILT_IN or USER_NAME.fullmatch(name):
        return None
    fixed = re.sub(r"[^A-Z0-9_]", "_", name.upper().lstrip("_"))
    return (
        f"{name!r} is not a name for a substitution",
        f"write _{fixed}: an underscore, then A-Z, 0-9 and _",
    )
