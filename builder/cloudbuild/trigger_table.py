"""A table [[cloud.trigger]] of builder.toml as a trigger, under the API's JSON names.

    [[cloud.trigger]]
    name = "main"
    repository = "acme/training"          # of the GitHub app; or a repository of a connection:
                                          # projects/P/locations/L/connections/C/repositories/R
    branch = "^main$"                     # or tag, or pull_request
    ignored = ["**/*.md"]

A table whose file declares _GPU, and that does not set it, becomes a trigger for each target, named
<table>-<target>: so a push builds the targets that it touches side by side. `substitutions = {
_GPU = "v100,a100" }` makes it one trigger, whose build does these one after the other.

The build of a pull request does not push, unless its substitutions say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError, model_validator

from builder.cloudbuild.buildfile import load
from builder.cloudbuild.submit import GPU
from builder.core import filemodel
from builder.core.errors import InputError
from builder.core.filemodel import FileModel, invalid, matches
from builder.core.project import MARKER
from builder.core.settings import Account, BuilderToml, CloudSettings
from builder.core.yamlfile import Mistake
from builder.googleapi import account_name

EVENTS: Final = ("branch", "tag", "pull_request")
"""What starts a build: each value is a pattern of names."""

_COMMENTS: Final = "COMMENTS_ENABLED_FOR_EXTERNAL_CONTRIBUTORS_ONLY"
"""A stranger's pull request is built after a comment of somebody who may write."""
_GITHUB = re.compile(r"([\w.-]+)/([\w.-]+)")
_CONNECTED = r"projects/[^/]+/locations/[^/]+/connections/[^/]+/repositories/[^/]+"

Repository = Annotated[
    str,
    matches(
        rf"{_GITHUB.pattern}|{_CONNECTED}",
        "a repository",
        'write repository = "OWNER/NAME", or the full name of a connected one',
    ),
    Field(examples=["acme/training"]),
]


class Table(FileModel):
    """A table [[cloud.trigger]] as a person wrote it."""

    name: str
    repository: Repository
    description: str = ""
    branch: str | None = Field(None, examples=["^main$"])
    tag: str | None = Field(None, examples=["^v"])
    pull_request: str | None = Field(None, examples=["^main$"])
    file: str = "cloudbuild.yaml"
    included: tuple[str, ...] = Field((), examples=[["images/**"]])
    ignored: tuple[str, ...] = Field((), examples=[["**/*.md"]])
    tags: tuple[str, ...] = ()
    approval: bool = False
    disabled: bool = False
    service_account: Account | None = None
    substitutions: dict[str, str] = Field({}, examples=[{"_GPU": "all"}])

    @property
    def event(self) -> str:
        return next(event for event in EVENTS if getattr(self, event))

    @property
    def is_own_pull_request(self) -> bool:
        """Whether pull requests run the file that the factory renders: no other was named."""
        return self.event == "pull_request" and "file" not in self.model_fields_set

    def is_for_each_target(self, root: Path) -> bool:
        return GPU not in self.substitutions and GPU in load(root / self.file).substitutions

    @model_validator(mode="after")
    def _check(self) -> Table:
        events = [event for event in EVENTS if getattr(self, event)]
        if len(events) != 1:
            raise invalid(
                f"{' and '.join(events) or 'nothing'} starts it: exactly one of {', '.join(EVENTS)}"
                " can",
                'write for example branch = "^main$"',
            )
        return self


def tables(root: Path, settings: CloudSettings) -> tuple[Table, ...]:
    """Return the tables of builder.toml. Raises InputError with file, line and field."""
    file, read = BuilderToml.read(root), list[Table]()
    for index, values in enumerate(settings.triggers):
        lines = file.table("cloud", "trigger", index)
        table = _table(lines, values)
        if table.name in {known.name for known in read}:
            what = f"a second trigger is called {table.name}"
            raise _mistake(lines, "name", what, "give it another name")
        if not (root / table.file).is_file():
            fix = "builder render, or name another file"
            raise _mistake(lines, "file", f"there is no {table.file}", fix)
        own, writer = table.service_account, settings.service_account
        if table.is_own_pull_request and own in (None, writer):
            # a pull request may change the file that is run
            raise _mistake(
                lines,
                "service_account",
                "a pull request needs an account of its own, not the one that pushes",
                "name an account that can read the repository and write logs, and nothing else",
            )
        read.append(table)
    return tuple(read)


def triggers_of(
    root: Path, table: Table, account: str | None, touching: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the triggers of a table, under the API's JSON names.

    account: of the project's builds. touching: the project's targets, each with globs of the files
    that can change it. A tag is built whole, whatever its commit touches.
    """
    if not table.is_for_each_target(root):
        return [_trigger(table, account)]
    tables = [
        table.model_copy(
            update={
                "name": name_of(table.name, target),
                "included": table.included or (() if table.tag else tuple(files)),
                "substitutions": {**table.substitutions, GPU: target},
            }
        )
        for target, files in touching.items()
    ]
    return [_trigger(table, account) for table in tables]


def name_of(table: str, target: str) -> str:
    """Return the name of the trigger of a table for one target: letters, digits and dashes."""
    return re.sub(r"[._]", "-", f"{table}-{target}")


def _table(lines: BuilderToml, values: Mapping[str, Any]) -> Table:
    try:
        return Table.model_validate(values)
    except ValidationError as error:
        mistakes = filemodel.mistakes(lines, error.errors(), Table)
        named = [
            replace(mistake, field=f"cloud.trigger.{mistake.field}".rstrip("."))
            for mistake in mistakes
        ]
        raise filemodel.error(MARKER, named) from None


def _mistake(lines: BuilderToml, key: str, what: str, fix: str) -> InputError:
    return filemodel.error(MARKER, [Mistake(lines.line(key), f"cloud.trigger.{key}", what, fix)])


def _trigger(table: Table, account: str | None) -> dict[str, Any]:
    """Return the trigger, without what is at its default."""
    account = table.service_account or account
    no_push = {"_PUSH": "false"} if table.is_own_pull_request else {}
    trigger = {
        "name": table.name,
        "description": table.description,
        "tags": list(table.tags),
        "substitutions": {**no_push, **table.substitutions},
        "includedFiles": list(table.included),
        "ignoredFiles": list(table.ignored),
        "disabled": table.disabled,
        "serviceAccount": account_name(account) if account else "",
        "approvalConfig": {"approvalRequired": True} if table.approval else {},
        "filename": table.file,
        **_repository(table),
    }
    return {key: value for key, value in trigger.items() if value not in ("", [], {}, False)}


def _repository(table: Table) -> dict[str, Any]:
    event: dict[str, Any] = {"push": {table.event: getattr(table, table.event)}}
    if table.event == "pull_request":
        pull = {"branch": table.pull_request, "commentControl": _COMMENTS}
        event = {"pullRequest": pull}
    if match := _GITHUB.fullmatch(table.repository):
        return {"github": {"owner": match[1], "name": match[2], **event}}
    return {"repositoryEventConfig": {"repository": table.repository, **event}}
