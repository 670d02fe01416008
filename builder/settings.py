"""Where things go: a command-line flag wins over the environment, and both over builder.toml."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from builder.errors import InputError
from builder.project import MARKER

Engine = Literal["auto", "machine", "private"]
ENGINES: tuple[Engine, ...] = ("auto", "machine", "private")
PREFIX = "BUILDER_"
LOCAL_REPOSITORY = "training"

_HOST = re.compile(r"(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]+)?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")


@dataclass(frozen=True)
class Settings:
    """What does not belong to one image.

    registry: HOST/PATH of the one repository that images go to; None keeps them on the engine.
    engine: "machine" (the one the machine has), "private" (our own) or "auto" (the first there is).
    """

    registry: str | None = None
    engine: Engine = "auto"

    @property
    def repository(self) -> str:
        """The name before the colon of every image reference."""
        return self.registry or LOCAL_REPOSITORY


NAMES = tuple(field.name for field in fields(Settings))


def load(root: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None) -> Settings:
    """The settings of the project at `root`; a flag that is None was not given.

    Raises InputError that names where the bad value came from.
    """
    environ = os.environ if environ is None else environ
    chosen: dict[str, tuple[str, str]] = {}  # name -> value, where it was written
    chosen.update(_from_file(root / MARKER))
    for name in NAMES:
        variable = PREFIX + name.upper()
        if environ.get(variable):
            chosen[name] = (environ[variable], variable)
        flag = flags.get(name)
        if flag is not None:
            chosen[name] = (flag, f"--{name}")
    if unknown := set(flags) - set(NAMES):
        raise TypeError(f"no such setting: {sorted(unknown)}")
    registry = chosen.get("registry")
    return Settings(
        registry=_registry(*registry) if registry else None,
        engine=_engine(*chosen["engine"]) if "engine" in chosen else "auto",
    )


def _from_file(path: Path) -> dict[str, tuple[str, str]]:
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))  # else it is "at end of document"
        where = f"{MARKER}:{found[1] if found else len(text.splitlines()) or 1}"
        raise InputError(
            f"{where}: not TOML: {error}", 'write one setting a line: name = "value"'
        ) from None
    values = {}
    for name, value in content.items():
        where = f"{MARKER}:{_line(text, name)}: {name}"
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise InputError(
                f"{where}: unknown setting",
                f"write {near[0]}" if near else f"known settings: {', '.join(NAMES)}",
            )
        if not isinstance(value, str):
            raise InputError(
                f"{where}: expected text, found {value!r}", f'write {name} = "..." in quotes'
            )
        values[name] = (value, where)
    return values


def _line(text: str, key: str) -> int:
    """The line (from 1) on which a top-level key or table stands."""
    shape = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, 1) if shape.match(line)), 1)


def _engine(value: str, where: str) -> Engine:
    if value not in ENGINES:
        raise InputError(f"{where}: no engine is called {value!r}", f"use {' | '.join(ENGINES)}")
    return value


def _registry(value: str, where: str) -> str:
    """HOST/PATH, as Docker writes a repository; the tag and the digest are the factory's to add."""
    problem = fix = ""
    bare = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", "", value).strip("/ \t")
    host, _, path = bare.partition("/")
    if bare != value:
        problem, fix = "has a scheme, a slash or a space around it", f"write {bare}"
    elif not path:
        problem = "names a host and no repository on it"
        fix = f"add a path, for example {host or 'registry.example.com'}/training"
    elif "@" in path or ":" in path:
        problem = "carries a tag or a digest"
        fix = f"write {host}/{re.split('[@:]', path)[0]}; the push adds the tags"
    elif bare != bare.lower():
        problem, fix = "has upper-case letters", f"write {bare.lower()}"
    elif not _HOST.fullmatch(host) or not all(_PATH.fullmatch(part) for part in path.split("/")):
        problem = "is not a repository name"
        fix = "write HOST[:PORT]/PATH in a-z, 0-9 and single . _ - between them"
    if problem:
        raise InputError(f"{where}: {value!r} {problem}", fix)
    return value
