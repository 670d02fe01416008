"""Triggers: the tables [[cloud.trigger]] of builder.toml, and Cloud Build's own.

    [[cloud.trigger]]
    name = "main"
    repository = "acme/training"          # of the GitHub app; or a repository of a connection:
                                          # projects/P/locations/L/connections/C/repositories/R
    branch = "^main$"                     # or: tag = "^v", or: pull_request = "^main$"
    included = ["images/**", "trainer/**"]
    ignored = ["**/*.md"]
    substitutions = { _GPU = "all" }

The tables are compared with the existing triggers. The difference is shown, and then the triggers
are changed to match. A request names the fields that it changes, so a field that a table cannot
name stays as it is, as does a trigger that builder.toml does not name. The build of a pull request
does not push, unless its substitutions say so.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.cloudbuild.clients import Clients, explaining
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.core.googleapi import account_name
from builder.core.project import MARKER
from builder.core.settings import ACCOUNT, ACCOUNT_EXAMPLE, CloudSettings, load_cloud

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import BuildTrigger

Action = Literal["create", "update", "delete", "unchanged"]

EVENTS = ("branch", "tag", "pull_request")
TEXT = ("name", "description", "repository", *EVENTS, "file", "comment_control", "service_account")
LISTS = ("included", "ignored", "tags")
FLAGS = ("invert", "approval", "disabled")
FIELDS = (*TEXT, *LISTS, *FLAGS, "substitutions")
COMMENTS = (
    "COMMENTS_DISABLED",
    "COMMENTS_ENABLED",
    "COMMENTS_ENABLED_FOR_EXTERNAL_CONTRIBUTORS_ONLY",
)

# API reference: BuildTrigger.name, and a repository of a connection ("2nd generation").
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,62}[a-zA-Z0-9])?")
_GITHUB = re.compile(r"([\w.-]+)/([\w.-]+)")
_CONNECTED = re.compile(r"projects/[^/]+/locations/[^/]+/connections/[^/]+/repositories/[^/]+")
_KEY = re.compile(r"_[A-Z0-9_]+")

# Fields that the service sets itself.
_ITS_OWN = ("id", "createTime", "resourceName")
_ITS_OWN_WITHIN = (("github", "installationId"), ("repositoryEventConfig", "repositoryType"))

# What a table says of a trigger. Of a message that it names, only these fields; a message that it
# does not name is removed.
_FIELDS = ("description", "tags", "filename", "substitutions", "includedFiles", "ignoredFiles")
_MESSAGES = {
    "github": ("owner", "name", "push", "pullRequest"),
    "repositoryEventConfig": ("repository", "push", "pullRequest"),
    "approvalConfig": ("approvalRequired",),
}
# Another event, and another origin of the build: a table names its own instead.
_INSTEAD = (
    "triggerTemplate", "pubsubConfig", "webhookConfig", "autodetect", "build", "gitFileSource"
)  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A trigger and the change to make. content: the wanted trigger, under the API's JSON names.

    mask: the fields that an update changes.
    """

    name: str
    action: Action
    diff: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    existing: Any = None
    mask: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """For machines."""
        return {"name": self.name, "action": self.action, "diff": list(self.diff)}


# --- the tables of builder.toml -------------------------------------------------------------------


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
        self._pattern(event)
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
            **self._source(event),
        }
        if account := self.table.get("service_account") or settings.service_account:
            if not re.fullmatch(ACCOUNT, account):
                raise self.bad(
                    "service_account", f"{account!r} is no address", f"write {ACCOUNT_EXAMPLE}"
                )
            made["serviceAccount"] = account_name(account)
        if self.table.get("approval"):
            made["approvalConfig"] = {"approvalRequired": True}
        return {key: value for key, value in made.items() if value not in ("", [], {}, False)}

    def _pattern(self, event: str) -> None:
        try:
            re.compile(self.table[event])
        except re.error as error:
            raise self.bad(
                event, f"{self.table[event]!r} is not a pattern: {error}", "write RE2, as ^main$"
            ) from None

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
        raise self.bad(
            "repository",
            f"{repository!r} is not a repository" if repository else "no repository is named",
            'write repository = "OWNER/NAME", or the full name of a connected one',
        )

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


# --- what exists ----------------------------------------------------------------------------------


def existing(clients: Clients) -> dict[str, BuildTrigger]:
    """The project's triggers in its region, by name. Raises OutsideError."""
    from google.cloud.devtools import cloudbuild_v1 as api

    with explaining(f"the triggers of {clients.parent}"):
        request = api.ListBuildTriggersRequest(**clients.within)
        return {one.name: one for one in clients.build.list_build_triggers(request, timeout=60.0)}


def _named(clients: Clients, one: Any) -> dict[str, str]:
    name = one.resource_name or f"{clients.parent}/triggers/{one.id}"
    return {"name": name, **clients.older_names(trigger_id=one.id)}


def content(one: Any) -> dict[str, Any]:
    """A trigger of the service under JSON names, without the fields that the service sets."""
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format  # type: ignore[import-untyped]

    found: dict[str, Any] = json_format.MessageToDict(api.BuildTrigger.pb(one))
    for key in _ITS_OWN:
        found.pop(key, None)
    for outer, inner in _ITS_OWN_WITHIN:
        if outer in found:
            found[outer].pop(inner, None)
    if not found.get("approvalConfig", {}).get("approvalRequired"):
        found.pop("approvalConfig", None)
    return found


# --- the difference -------------------------------------------------------------------------------


def plan(root: Path, clients: Clients) -> tuple[Planned, ...]:
    """The changes that make the triggers as builder.toml says.

    Raises InputError if builder.toml names none, OutsideError if the service refuses.
    """
    ours = wanted(root, clients.settings)
    if not ours:
        raise InputError(
            f"{MARKER} names no trigger", "write a table [[cloud.trigger]], as docs/cloud-build.md"
        )
    theirs = existing(clients)
    return tuple(_planned(name, want, theirs.get(name)) for name, want in ours.items())


def _planned(name: str, want: dict[str, Any], have: Any) -> Planned:
    if have is None:
        return Planned(name, "create", tuple(f"+ {line}" for line in _lines(want)), want)
    now, after = content(have), content(have)
    want = content(_message(want))  # as the service would answer it, without default values
    mask = tuple(path for path in _said(want) if _at(now, path) != _at(want, path))
    for path in mask:
        _set(after, path, _at(want, path))
    action: Action = "update" if mask else "unchanged"
    return Planned(name, action, tuple(_diff(now, after)), want, have, mask)


def _said(want: Mapping[str, Any]) -> Iterator[str]:
    """The fields that a table decides, also those that it leaves empty."""
    yield from (*_FIELDS, "disabled", *_INSTEAD)
    for message, inner in _MESSAGES.items():
        yield from (f"{message}.{name}" for name in inner) if message in want else (message,)
    if "serviceAccount" in want:  # else the trigger keeps its own, or the service's default
        yield "serviceAccount"


def _at(value: Mapping[str, Any], path: str) -> Any:
    for name in path.split("."):
        value = value.get(name, {})
    return value or None


def _set(value: dict[str, Any], path: str, to: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        value = value.setdefault(name, {})
    if to is None:
        value.pop(last, None)
    else:
        value[last] = to


def _message(want: Mapping[str, Any]) -> BuildTrigger:
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    message = api.BuildTrigger.pb(api.BuildTrigger())
    json_format.ParseDict(dict(want), message)
    trigger: BuildTrigger = api.BuildTrigger.wrap(message)
    return trigger


def deletion(clients: Clients, names: Sequence[str]) -> tuple[Planned, ...]:
    """The deletions of these triggers. Raises OutsideError for one that does not exist."""
    theirs = existing(clients)
    for name in names:
        if name not in theirs:
            raise OutsideError(
                f"{clients.parent} has no trigger {name!r}",
                f"it has {', '.join(sorted(theirs)) or 'none'}; --region names another region",
            )
    return tuple(
        Planned(
            name, "delete", tuple(f"- {line}" for line in _lines(content(theirs[name]))),
            existing=theirs[name],
        )
        for name in dict.fromkeys(names)
    )  # fmt: skip


def _lines(value: Mapping[str, Any]) -> list[str]:
    return as_yaml(value).splitlines()


def _diff(now: Mapping[str, Any], want: Mapping[str, Any]) -> Iterator[str]:
    for line in difflib.ndiff(_lines(now), _lines(want)):
        if line[0] in "+-":
            yield line


def as_yaml(value: Mapping[str, Any]) -> str:
    """YAML sorted by name: the same content gives the same text."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = False, 1000
    out = io.StringIO()
    yaml.dump(dict(sorted(value.items())), out)
    return out.getvalue()


def carry_out(clients: Clients, planned: Sequence[Planned], on_done: Callable[[str], None]) -> None:
    """Create, change and delete. on_done: gets a line for each.

    Raises OutsideError at the first change that is refused. Those before it are done.
    """
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import field_mask_pb2

    for one in planned:
        with explaining(f"trigger {one.name}"):
            if one.action == "create":
                request = api.CreateBuildTriggerRequest(
                    **clients.within, trigger=_message(one.content)
                )
                clients.build.create_build_trigger(request, timeout=60.0)
                on_done(f"{one.name}: created")
            elif one.action == "update":
                ids, trigger = _named(clients, one.existing), _message(one.content)
                trigger.resource_name, trigger.id = ids.pop("name"), one.existing.id
                mask = field_mask_pb2.FieldMask()
                mask.FromJsonString(",".join(one.mask))
                clients.build.update_build_trigger(
                    api.UpdateBuildTriggerRequest(ids, trigger=trigger, update_mask=mask),
                    timeout=60.0,
                )
                on_done(f"{one.name}: changed")
            elif one.action == "delete":
                clients.build.delete_build_trigger(
                    api.DeleteBuildTriggerRequest(_named(clients, one.existing)), timeout=60.0
                )
                on_done(f"{one.name}: deleted")


def overview(root: Path, clients: Clients) -> list[dict[str, Any]]:
    """A row for each trigger of the project or of builder.toml: name, state, event."""
    ours, theirs = wanted(root, clients.settings), existing(clients)
    rows = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours:
            state = "not ours"
        else:
            action = _planned(name, ours[name], theirs.get(name)).action
            state = {"create": "missing", "update": "differs"}.get(action, "as written")
        shown = ours.get(name) or content(theirs[name])
        rows.append({"name": name, "state": state, "event": _event(shown)})
    return rows


def _event(shown: Mapping[str, Any]) -> str:
    source = shown.get("github") or shown.get("repositoryEventConfig") or {}
    where = source.get("repository") or "/".join(
        part for part in (source.get("owner"), source.get("name")) if part
    )
    push, pull = source.get("push", {}), source.get("pullRequest", {})
    what = (
        f"pull request to {pull['branch']}"
        if pull
        else f"branch {push['branch']}"
        if "branch" in push
        else f"tag {push['tag']}"
        if "tag" in push
        else "another event"
    )
    return f"{what} of {where}" if where else what


# --- files ----------------------------------------------------------------------------------------


def write(root: Path, folder: Path, dry_run: bool = False) -> tuple[Path, ...]:
    """Write a file for each trigger, for `gcloud builds triggers import --source=FILE`.

    dry_run: only name the files.
    """
    ours = wanted(root, load_cloud(root))
    if not ours:
        raise InputError(f"{MARKER} names no trigger", "write a table [[cloud.trigger]]")
    paths = []
    for name, trigger in ours.items():
        path = folder / f"{name}.yaml"
        if not dry_run:
            files.write(path, as_yaml(trigger))
        paths.append(path)
    return tuple(paths)
