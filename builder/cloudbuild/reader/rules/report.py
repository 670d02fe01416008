"""What the rules find in a build: diagnostics, each with its line, its fix and its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from builder import registry
from builder.cloudbuild.reader.build import Build, Place
from builder.cloudbuild.reader.buildfile import BuildFile
from builder.cloudbuild.reader.expansion import (
    OF_PULL_REQUESTS,
    OF_TRIGGERS,
    Unexpandable,
    references,
)
from builder.cloudbuild.reader.nodes import dotted
from builder.cloudbuild.reader.substitutions import Values
from builder.core.errors import InputError

Level = Literal["error", "warning"]

SCHEMA = "Build configuration file schema"
VALUES = "Substitute variable values"
API = "API reference, rev. 20261029"
LOCAL = "cloud-build-local's validator; the service may allow more"

MAX_ENVS, MAX_ENV = 100, 1000  # LOCAL


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong in a file.

    line: from 1. field: a dotted path. source: the origin of the rule.
    """

    line: int
    field: str
    what: str
    fix: str
    level: Level = "error"
    source: str = ""


@dataclass
class Diagnostics:
    """The diagnostics of one file, under way.

    given: the values that the call sets. trigger: whether a trigger starts the build. account: the
    service account of that trigger.
    """

    file: BuildFile
    given: Mapping[str, str]
    trigger: bool
    account: str = ""
    found: list[Diagnostic] = field(default_factory=list)

    @property
    def build(self) -> Build:
        return self.file.build

    def add(self, place: Place, what: str, fix: str, source: str, level: Level = "error") -> None:
        """Add a diagnostic at a place of the build."""
        line = self.file.line(*self.place(place))
        self.found.append(Diagnostic(line, dotted(place), what, fix, level, source))

    def place(self, place: Place) -> Place:
        """The file's place of a place in the build: images have two places there, secrets three."""
        value = self.file.value
        if place[:1] == ("images",) and len(place) == 2:
            image = self.build.images[int(place[1])]
            if image in value.get("images", ()):
                return ("images", value["images"].index(image))
            return ("artifacts", "images", value["artifacts"]["images"].index(image))
        if place[:1] == ("availableSecrets",) and len(place) == 2:
            manager = value.get("availableSecrets", {}).get("secretManager", ())
            for n, one in enumerate(manager):
                if one.get("env") == place[1]:
                    return ("availableSecrets", "secretManager", n)
            return place[:1] if "availableSecrets" in value else ("secrets",)
        return place

    def limit(self, place: Place, count: int, limit: int, what: str, source: str, fix: str) -> None:
        """Add a diagnostic if `count` is over `limit`."""
        if count > limit:
            level: Level = "warning" if source == LOCAL else "error"
            self.add(place, f"{count:,} {what}, at most {limit:,}", fix, source, level)

    def environment(self, at: Place, texts: tuple[str, ...]) -> None:
        """Check a list of KEY=VALUE."""
        self.limit(at, len(texts), MAX_ENVS, "variables", LOCAL, "put them into a file")
        for n, text in enumerate(texts):
            name, equals, _ = text.partition("=")
            if not equals or not name:
                self.add((*at, n), f"{text!r} is not KEY=VALUE", "write KEY=VALUE", SCHEMA)
            self.limit((*at, n), len(text), MAX_ENV, "characters", LOCAL, "put it into a file")

    def expanded(self, text: str, values: Values | None) -> str:
        """A text with its substitutions, or the text itself if it cannot be expanded."""
        try:
            return values.expand(text) if values else text
        except Unexpandable:
            return text  # the rules for substitutions report it

    def settled(self, text: str, values: Values | None) -> str:
        """A text with its substitutions, for a rule about what it names.

        Empty if a value is missing (the rules for substitutions report it) or is empty in the file
        (most likely, the call sets it).
        """
        if values is None:
            return ""
        names = references(text, values.dynamic)
        return self.expanded(text, values) if all(map(values.known.get, names)) else ""

    def image(self, place: Place, text: str, values: Values) -> None:
        """Check an image's name as a trigger would fill it in, and as a call by hand would."""
        used = references(text, values.dynamic)
        if any(one not in values.known for one in used):
            return  # the rules for substitutions report it
        name = self.expanded(text, values)
        by_hand = {**values.known, **dict.fromkeys((*OF_TRIGGERS, *OF_PULL_REQUESTS), "")}
        plain = Values({**by_hand, **self.given}, values.dynamic, values.strict)
        try:
            registry.parse(name)
        except InputError as error:
            empty = [one for one in used if one.startswith("_") and not values.known[one]]
            why = f"{empty[0]} is empty" if empty else error.message
            level: Level = "warning" if empty else "error"  # most likely, the call sets it
            self.add(place, f"{name!r} names no image: {why}", error.fix, "docker", level)
            return
        try:
            registry.parse(self.expanded(text, plain))
        except InputError:
            if not self.trigger:
                self.add(
                    place,
                    f"{self.expanded(text, plain)!r} names no image where no trigger "
                    "sets the commit",
                    "call with --substitutions SHORT_SHA=..., or use $BUILD_ID",
                    "the service: invalid image name",
                    "warning",
                )
