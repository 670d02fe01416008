"""The findings of one file, and what several rules ask."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudbuild_local.reader.build import Build
from cloudbuild_local.reader.document import BuildFile
from cloudbuild_local.reader.expansion import (
    OF_PULL_REQUESTS,
    OF_TRIGGERS,
    ExpansionError,
    expand,
    references,
)
from cloudbuild_local.reader.finding import API, SCHEMA, Finding, Level, Place, dotted
from cloudbuild_local.reader.substitutions import Values

_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_SHORT = r"(?![a-z0-9-]+-docker\.pkg\.dev/[^/]+(?:/[^/]+)?$)(?!(?:(?:us|eu|asia)\.)?gcr\.io/[^/]+$)"
_IMAGE = re.compile(
    rf"{_SHORT}(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
"""The name of an image: docker's grammar. In Google's registries it has two or three parts."""


@dataclass
class Report:
    """Collects the findings of a file."""

    file: BuildFile
    overrides: Mapping[str, str]
    """The substitutions that the call sets."""
    values: Values | None = None
    """Of all substitutions, as a trigger would set them; None where they name each other in a
    cycle."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def build(self) -> Build:
        """The build of the file."""
        return self.file.build

    def get(self, *place: str) -> Any:
        """Return the value at a place of the file, {} where there is none."""
        value: Any = self.file.value
        for name in place:
            value = value.get(name, {})
        return value

    def error(
        self, place: Place, what: str, fix: str, source: str = API, level: Level = "error"
    ) -> None:
        """Add an error at a place of the file."""
        line = self.file.line(place)
        self.findings.append(Finding(line, dotted(place), what, fix, level, source))

    def warning(self, place: Place, what: str, fix: str, source: str = API) -> None:
        """Add a warning at a place of the file."""
        self.error(place, what, fix, source, "warning")

    def limit(self, place: Place, count: int, most: int, what: str, fix: str) -> None:
        """Add an error if `count` is more than `most`."""
        if count > most:
            self.error(place, f"{count:,} {what}, at most {most:,}", fix, SCHEMA)

    def environment(self, place: Place, texts: Sequence[str]) -> None:
        """Check a list of KEY=VALUE."""
        for n, text in enumerate(texts):
            if "=" not in text[1:]:
                self.error((*place, n), f"{text!r} is not KEY=VALUE", "write KEY=VALUE", SCHEMA)

    def expanded(self, text: str) -> str:
        """Return a text with its substitutions, or the text itself if it cannot be expanded."""
        try:
            return self.values.expand(text) if self.values else text
        except ExpansionError:
            return text  # the rules for substitutions report it

    def settled(self, text: str) -> str:
        """Return a text with its substitutions, for a rule about what it names.

        The result is "" if a value is missing or the text cannot be expanded (the rules for
        substitutions report that), or if a value is empty in the file (most likely, the call sets
        it).
        """
        if self.values is None:
            return ""
        try:
            names = references(text, self.values.dynamic)
        except ExpansionError:
            return ""
        return self.expanded(text) if all(map(self.values.known.get, names)) else ""

    def shape(self, place: Place, text: str, shape: str, what: str, fix: str) -> None:
        """Add an error if a text, with its substitutions, is not of this shape (a pattern)."""
        name = self.settled(text)
        if (name or not text) and not re.fullmatch(shape, name):
            self.error(place, f"{name!r} is not {what}", fix)

    def image(self, place: Place, text: str) -> None:
        """Check an image's name as a trigger would fill it in, and as a call by hand would."""
        values = self.values
        try:
            names = references(text, values.dynamic) if values else ()
            if values is None or any(name not in values.known for name in names):
                return  # the rules for substitutions report it
            name, fix = values.expand(text), "write HOST/PATH[:TAG] as docker takes it"
        except ExpansionError:
            return  # they report it, too
        empty = [name for name in names if name.startswith("_") and not values.known[name]]
        unset = dict.fromkeys((*OF_TRIGGERS, *OF_PULL_REQUESTS), "")
        by_hand = {**values.known, **unset, **self.overrides}
        plain = expand(text, by_hand.get, values.dynamic, strict=False)
        if not _IMAGE.fullmatch(name):
            what = f"{name!r} names no image"
            if empty:  # most likely, the call sets it
                self.warning(place, f"{what}: {empty[0]} is empty", fix, "docker")
            else:
                self.error(place, what, fix, "docker")
        elif not self.file.trigger and not _IMAGE.fullmatch(plain):
            what = f"{plain!r} names no image where no trigger sets the commit"
            fix = "call with --substitutions SHORT_SHA=..., or use $BUILD_ID"
            self.warning(place, what, fix, "the service: invalid image name")
