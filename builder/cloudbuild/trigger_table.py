"""A table [[cloud.trigger]] of builder.toml as a trigger, under the API's JSON names.

    [[cloud.trigger]]
    name = "main"
    repository = "acme/training"          # of the GitHub app; or a repository of a connection:
                                          # projects/P/locations/L/connections/C/repositories/R
    branch = "^main$"                     # or another event of EVENTS
    included = ["images/**", "trainer/**"]
    ignored = ["**/*.md"]
    substitutions = { _GPU = "all" }

A push, a tag and a pull request bring their own commit. A message of Pub/Sub, a call of a webhook
and a person do not, so their tables name one with `ref`. The build of a pull request does not push,
unless its substitutions say so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.cloudbuild import patterns
from builder.core.errors import InputError
from builder.core.googleapi import account_name
from builder.core.project import MARKER
from builder.core.settings import ACCOUNT, ACCOUNT_EXAMPLE, CloudSettings

PATTERNS = ("branch", "tag", "pull_request")
"""Events of a repository: their value is a pattern."""
OTHERS = ("topic", "webhook", "manual")
"""Events without a commit."""
EVENTS = (*PATTERNS, *OTHERS)
TEXT = (
    "name", "description", "repository", *PATTERNS, "topic", "webhook", "ref", "filter", "file",
    "comment_control", "service_account",
)  # fmt: skip
LISTS = ("included", "ignored", "tags")
FLAGS = ("manual", "invert", "approval", "disabled")
FIELDS = (*TEXT, *LISTS, *FLAGS, "substitutions")
COMMENTS = (
    "COMMENTS_DISABLED",
    "COMMENTS_ENABLED",
    "COMMENTS_ENABLED_FOR_EXTERNAL_CONTRIBUTORS_ONLY",
)
NAMES = {
    "topic": (r"projects/[^/]+/topics/[^/]+", "projects/PROJECT/topics/TOPIC"),
    "webhook": (
        r"projects/[^/]+/secrets/[^/]+/versions/[^/]+",
        "projects/PROJECT/secrets/SECRET/versions/VERSION, the webhook's key",
    ),
}
"""What the value of an event has to look like (API reference: PubsubConfig, WebhookConfig)."""

# API reference: BuildTrigger.name, and a repository of a connection ("2nd generation").
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,62}[a-zA-Z0-9])?")
_GITHUB = re.compile(r"([\w.-]+)/([\w.-]+)")
_CONNECTED = re.compile(r"projects/[^/]+/locations/[^/]+/connections/[^/]+/repositories/[^/]+")
_KEY = re.compile(r"_[A-Z0-9_]+")
_REF = re.compile(r"refs/(heads|tags)/\S+")


def wanted(root: Path, settings: CloudSettings) -> dict[str, dict[str, Any]]:
    """The triggers of builder.toml: name -> trigger under the API's JSON names.

    Raises InputError with file, line and field.
    """
    file = root / MARKER
    text = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found: dict[str, dict[str, Any]] = {}
    for begin, table in settings.triggers:
        reader = _Table(root, text, begin, table)
        name = reader.name()
        if name in found:
            raise reader.bad("name", f"a second trigger is called {name}", "give it another name")
        found[name] = reader.trigger(settings)
    return found


def last_of(root: Path, text: str, table: Mapping[str, Any], settings: CloudSettings) -> Any:
    """The trigger of the last table of this builder.toml. Raises InputError as `wanted`."""
    lines = text.splitlines()
    begin = max(n for n, line in enumerate(lines, 1) if line == "[[cloud.trigger]]")
    reader = _Table(root, lines, begin, table)
    reader.name()
    return reader.trigger(settings)


@dataclass(frozen=True)
class _Table:
    """One [[cloud.trigger]]. text: the lines of builder.toml. begin: the table's line, from 1."""

    root: Path
    text: Sequence[str]
    begin: int
    table: Mapping[str, Any]

    def bad(self, key: str, what: str, fix: str) -> InputError:
        shape = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        lines = list(enumerate(self.text, 1))[self.begin :]
        own = []
        for number, line in lines:
            if re.match(r"\s*\[", line):
                break
            own.append((number, line))
        at = next((number for number, text in own if shape.match(text)), self.begin)
        return InputError(f"{MARKER}:{at}: cloud.trigger.{key}: {what}", fix)

    def name(self) -> str:
        for key, value in self.table.items():
            if key not in FIELDS:
                near = difflib.get_close_matches(key, FIELDS, n=1)
                fix = f"write {near[0]}" if near else f"known: {', '.join(FIELDS)}"
                raise self.bad(key, "unknown setting", fix)
            if key in TEXT and not isinstance(value, str):
                raise self.bad(key, f"expected text, found {value!r}", f'write {key} = "..."')
            if key in FLAGS and not isinstance(value, bool):
                raise self.bad(key, f"expected true or false, found {value!r}", f"{key} = true")
            if key in LISTS and not (
                isinstance(value, list) and all(isinstance(one, str) for one in value)
            ):
                raise self.bad(key, f"expected a list of texts, found {value!r}", f'{key} = ["a"]')
        name = self.table.get("name", "")
        if not _NAME.fullmatch(name):
            raise self.bad(
                "name",
                f"{name!r} is not a name for a trigger",
                "write 1 to 64 letters, digits and -",
            )
        return str(name)

    def trigger(self, settings: CloudSettings) -> dict[str, Any]:
        events = [key for key in EVENTS if key in self.table]
        if len(events) != 1:
            raise self.bad(
                "name",
                f"{' and '.join(events) or 'nothing'} starts it: exactly one of {', '.join(EVENTS)}"
                " can",
                'write for example branch = "^main$"',
            )
        (event,) = events
        self._event(event)
        file = self.table.get("file", "cloudbuild.yaml")
        if not (self.root / file).is_file():
            raise self.bad("file", f"there is no {file}", "builder render, or name another file")
        made: dict[str, Any] = {
            "name": self.table["name"],
            "description": self.table.get("description", ""),
            "tags": self.table.get("tags", []),
            "filename": file,
            "substitutions": self._substitutions(event),
            "includedFiles": self.table.get("included", []),
            "ignoredFiles": self.table.get("ignored", []),
            "disabled": self.table.get("disabled", False),
            "filter": self.table.get("filter", ""),
            **(self._source(event) if event in PATTERNS else self._at_a_ref(event, file)),
        }
        own = self.table.get("service_account")
        if event == "pull_request" and "file" not in self.table:
            self._cannot_write(own, settings.service_account)
        if account := own or settings.service_account:
            if not re.fullmatch(ACCOUNT, account):
                raise self.bad(
                    "service_account", f"{account!r} is no address", f"write {ACCOUNT_EXAMPLE}"
                )
            made["serviceAccount"] = account_name(account)
        if self.table.get("approval"):
            made["approvalConfig"] = {"approvalRequired": True}
        return {key: value for key, value in made.items() if value not in ("", [], {}, False)}

    def _cannot_write(self, own: str | None, writer: str | None) -> None:
        """A pull request may change the file that is run: its account must not be the one that
        pushes."""
        if not own or own == writer:
            raise self.bad(
                "service_account",
                "a pull request would be built with the account that pushes"
                if own
                else "a pull request needs an account of its own",
                "name an account that can read the repository and write logs, and nothing else",
            )

    def _event(self, event: str) -> None:
        value = self.table[event]
        if event in PATTERNS and (why := patterns.problem(value)):
            raise self.bad(event, f"{value!r} is not a pattern: {why}", "write RE2, as ^main$")
        if event in NAMES and not re.fullmatch(NAMES[event][0], value):
            raise self.bad(event, f"{value!r} is no name", f"write {NAMES[event][1]}")
        if event in PATTERNS and "ref" in self.table:
            raise self.bad(
                "ref", f"a trigger for {event} has none", f"it is for {', '.join(OTHERS)}"
            )

    def _at_a_ref(self, event: str, file: str) -> dict[str, Any]:
        """An event without a commit, with the source that its build takes."""
        ref = self.table.get("ref", "")
        if not _REF.fullmatch(ref):
            raise self.bad(
                "ref", f"{ref!r} is no branch and no tag", 'write ref = "refs/heads/main"'
            )
        repository = self.table.get("repository", "")
        if _CONNECTED.fullmatch(repository):
            where = {"repository": repository}
        elif match := _GITHUB.fullmatch(repository):
            where = {"uri": f"https://github.com/{match[1]}/{match[2]}", "repoType": "GITHUB"}
        else:
            raise self._no_repository()
        started = {
            "topic": {"pubsubConfig": {"topic": self.table.get("topic")}},
            "webhook": {"webhookConfig": {"secret": self.table.get("webhook")}},
            "manual": {},
        }
        return {
            **started[event],
            "filename": "",  # it lies in gitFileSource
            "sourceToBuild": {**where, "ref": ref},
            "gitFileSource": {"path": file, **where, "revision": ref},
        }

    def _no_repository(self) -> InputError:
        repository = self.table.get("repository", "")
        return self.bad(
            "repository",
            f"{repository!r} is not a repository" if repository else "no repository is named",
            'write repository = "OWNER/NAME", or the full name of a connected one',
        )

    def _source(self, event: str) -> dict[str, Any]:
        repository = self.table.get("repository", "")
        invert = {"invertRegex": True} if self.table.get("invert") else {}
        if event == "pull_request":
            control = self.table.get("comment_control", COMMENTS[2])
            if control not in COMMENTS:
                raise self.bad("comment_control", f"{control!r}", f"one of {', '.join(COMMENTS)}")
            inner = {
                "pullRequest": {
                    "branch": self.table[event],
                    "commentControl": control,
                    **invert,
                }
            }
        else:
            inner = {"push": {event: self.table[event], **invert}}
        if _CONNECTED.fullmatch(repository):
            return {"repositoryEventConfig": {"repository": repository, **inner}}
        if match := _GITHUB.fullmatch(repository):
            return {"github": {"owner": match[1], "name": match[2], **inner}}
        raise self._no_repository()

    def _substitutions(self, event: str) -> dict[str, str]:
        given = self.table.get("substitutions", {})
        if not isinstance(given, dict):
            raise self.bad("substitutions", "expected a table", '{ _GPU = "all" }')
        for key, value in given.items():
            if not _KEY.fullmatch(key) or not isinstance(value, str):
                raise self.bad(
                    "substitutions", f"{key} = {value!r} is none", 'write _NAME = "VALUE" in quotes'
                )
        default = {"_PUSH": "false"} if event == "pull_request" and "file" not in self.table else {}
        return {**default, **given}
