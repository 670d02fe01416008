"""A job that was written elsewhere as a job's file, and what became of each of its fields.

The ledger is no list of intentions: the new file is rendered again, and each field of what was read
is compared with what would be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from builder.core import findings, yamlfile
from builder.core.errors import InputError
from builder.jobs import description
from builder.jobs.checks import place
from builder.jobs.description import Job
from builder.jobs.machines import Placement
from builder.jobs.pools import Pool

Fate = Literal["kept", "changed", "dropped", "added"]


@dataclass(frozen=True)
class Line:
    """What became of one field. field: its path in the job; why: "" where it was kept."""

    field: str
    fate: Fate
    why: str = ""


@dataclass(frozen=True)
class Imported:
    """The text of a job's file, and what became of each field of the job that was read.

    notes: what belongs to no job's file, but to the command that sends it.
    """

    text: str
    ledger: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def having(self, fate: Fate) -> tuple[Line, ...]:
        """The lines of one fate."""
        return tuple(one for one in self.ledger if one.fate == fate)


def read(path: Path) -> dict[str, Any]:
    """The values of a job in YAML or JSON. Raises InputError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{path}: {why}", "name the file of a CustomJob") from None
    if problems := yamlfile.parse(text, str(path)).problems:
        raise findings.error(str(path), problems)
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        raise InputError(f"{path}: not YAML: {error}", "write YAML or JSON") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is no job", "name the file of a CustomJob")
    return value


def written(told: Mapping[str, Any], source: Path) -> tuple[str, Job]:
    """The text of a job's file, and the job that it describes.

    Raises InputError that names the file that was read, and no line: the text is written nowhere.
    """
    text = yamlfile.dump(told, f"Imported from {source.name}.")
    own = named(source)
    try:
        return text, description.parse(text, own)
    except InputError as error:
        said = re.sub(rf"(?m)^{re.escape(str(own))}:[0-9]+: ", f"{source}: ", error.message)
        raise InputError(said, error.fix) from None


def named(source: Path) -> Path:
    """The name of the job's file that another file becomes: what a job may be called."""
    name = re.sub(r"[^a-z0-9]+", "-", source.stem.lower()).strip("-")[:50]
    return Path(f"{name if name[:1].isalpha() else 'job'}.yaml")


_SECRET: Final = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$", re.I)
_UNFILLED: Final = re.compile(r"\$(?:\w+|\{\w+\})")


def remarks(job: Job) -> Iterator[str]:
    """What a person should know of the variables that were read: secrets, which the new file holds,
    too, and words that a script was to fill in."""
    variables: dict[str, str] = {}
    for pool in job.pools:
        variables |= job.of(pool.role).environment
    for name, value in variables.items():
        if _UNFILLED.fullmatch(value):
            yield f"{name} is {value}: a script filled that in before, and no place does it"
        elif value and _SECRET.search(name):
            yield f"{name} may be a secret, and is in the new file: do not commit it"


def placed(pool: Pool, source: Path) -> Placement:
    """What a role of a job that was read runs on. Raises InputError that names the file."""
    try:
        return place(pool)
    except InputError as error:
        raise InputError(f"{source}: {pool.role}: {error.message}", error.fix) from None


def compared(
    given: Mapping[str, Any], again: Mapping[str, Any], own: Callable[[str], bool]
) -> Iterator[Line]:
    """Each field of the job that was read, and of the one that would be sent. own: whether the
    factory itself writes a field, each time anew."""
    old, new = dict(fields(given)), dict(fields(again))
    for field, value in old.items():
        if field not in new:
            yield Line(field, "dropped", f"{value!r}: a job's file does not have it")
        elif new[field] == value:
            yield Line(field, "kept")
        elif own(field):
            yield Line(field, "changed", "the factory's own, made anew")
        else:
            yield Line(field, "changed", f"{value!r} becomes {new[field]!r}")
    for field, value in new.items():
        if field not in old and not own(field):
            yield Line(field, "added", f"{value!r}")


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a job, and its path: a.b[0].c."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from fields(one, f"{path}.{name}" if path else name)
    elif path.endswith((".env", ".parameters", ".replicatedJobs")):  # their entries have names
        for one in value:
            name = one.get("name") or one.get("parameterId")
            yield from fields(
                {key: inner for key, inner in one.items() if key not in ("name", "parameterId")},
                f"{path}[{name}]",
            )
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, one in enumerate(value):
            yield from fields(one, f"{path}[{number}]")
    else:
        yield path, value
