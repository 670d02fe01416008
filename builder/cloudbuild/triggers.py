"""Triggers: the tables [[cloud.trigger]] of builder.toml beside Cloud Build's own.

They are compared, the difference is shown, and then Cloud Build's are changed to match. An update
names the fields that a table decides and that differ. So every other field of an existing trigger
stays as it is, and so does a trigger that builder.toml does not name. gcloud runs and deletes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.cloudbuild import trigger_table
from builder.cloudbuild.clients import Clients, explaining
from builder.cloudbuild.submit import GPU
from builder.cloudbuild.trigger_table import Table
from builder.core.errors import InputError
from builder.core.project import MARKER

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import BuildTrigger

NAME_LIMIT = 64
"""The longest name of a trigger, by the API's reference."""
_ITS_OWN = ("id", "createTime", "resourceName")
"""Fields that the service sets."""

_FIELDS = (
    "description", "tags", "filename", "substitutions", "includedFiles", "ignoredFiles", "disabled",
    "triggerTemplate", "webhookConfig", "pubsubConfig", "sourceToBuild", "gitFileSource",
    "autodetect", "build",
)  # fmt: skip
"""The fields that a table decides, also those that it leaves empty: the last seven are other
events, and another origin of the build."""
_MESSAGES = {
    "github": ("owner", "name", "push", "pullRequest"),
    "repositoryEventConfig": ("repository", "push", "pullRequest"),
    "approvalConfig": ("approvalRequired",),
}
"""Of a message that a table names, only these fields; one that it does not name is removed."""


@dataclass(frozen=True)
class Planned:
    name: str
    action: Literal["create", "update", "unchanged"]
    diff: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    """The new trigger, under the API's JSON names."""
    existing: Any = None
    mask: tuple[str, ...] = ()
    """The fields that an update changes."""

    @property
    def summary(self) -> dict[str, Any]:
        return {"name": self.name, "action": self.action, "diff": list(self.diff)}


# --- what exists ----------------------------------------------------------------------------------


def existing(clients: Clients) -> dict[str, BuildTrigger]:
    """Return the project's triggers in its region, by name. Raises OutsideError."""
    with explaining(f"the triggers of {clients.parent}"):
        pages = clients.build.list_build_triggers({"parent": clients.parent}, timeout=60.0)
        return {trigger.name: trigger for trigger in pages}


def content(trigger: BuildTrigger) -> dict[str, Any]:
    """Return a trigger of the service under JSON names, without what the service sets."""
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    value: dict[str, Any] = json_format.MessageToDict(api.BuildTrigger.pb(trigger))
    return {name: item for name, item in value.items() if name not in _ITS_OWN}


def message(trigger: Mapping[str, Any]) -> BuildTrigger:
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    value = api.BuildTrigger.pb(api.BuildTrigger())
    json_format.ParseDict(dict(trigger), value)
    wrapped: BuildTrigger = api.BuildTrigger.wrap(value)
    return wrapped


# --- the difference -------------------------------------------------------------------------------


def plan(
    root: Path, clients: Clients, touching: Mapping[str, Sequence[str]]
) -> tuple[Planned, ...]:
    """Return the changes that make the triggers as builder.toml says.

    touching: the project's targets, each with globs of the files that can change it. Raises
    InputError if builder.toml names no trigger, OutsideError if the service refuses.
    """
    tables = trigger_table.tables(root, clients.settings)
    if not tables:
        fix = "write a table [[cloud.trigger]], as docs/cloud-build.md"
        raise InputError(f"{MARKER} names no trigger", fix)
    theirs = existing(clients)
    ours = declared(root, clients, tables, touching, theirs)
    changes = [planned(name, trigger, theirs.get(name)) for name, trigger in ours.items()]
    return (*changes, *replaced(tables, ours, theirs))


def declared(
    root: Path,
    clients: Clients,
    tables: Sequence[Table],
    touching: Mapping[str, Sequence[str]],
    theirs: Mapping[str, BuildTrigger],
) -> dict[str, dict[str, Any]]:
    """Return the triggers of these tables: name -> trigger under the API's JSON names.

    What a table cannot name, a new trigger of a target takes from the table's one trigger. Raises
    InputError for a name that the service would not take.
    """
    triggers: dict[str, dict[str, Any]] = {}
    account = clients.settings.service_account
    for table in tables:
        for trigger in trigger_table.triggers_of(root, table, account, touching):
            name = trigger["name"]
            if name in triggers or len(name) > NAME_LIMIT:
                what = "the name of two" if name in triggers else "longer than 64 characters"
                raise InputError(
                    f"{MARKER}: cloud.trigger.name: {name}, of {table.name}, is {what}",
                    "give the table another, shorter name",
                )
            before = theirs.get(table.name) if name not in theirs else None
            kept = content(before) if before else {}
            decided = {*_FIELDS, *_MESSAGES}
            triggers[name] = {k: v for k, v in kept.items() if k not in decided} | trigger
    return triggers


def replaced(
    tables: Sequence[Table], ours: Mapping[str, Any], theirs: Mapping[str, BuildTrigger]
) -> list[Planned]:
    """Return the changes that switch triggers off whose work others of the same table do now.

    These are: the one trigger of a table that now has one for each target, one of a target that
    the table no longer builds by itself, or that is gone. So nothing is built twice. They are not
    deleted: what was set by hand stays, and they can still be run by hand and by schedules.
    """
    changes = []
    for name, trigger in theirs.items():
        target = trigger.substitutions.get(GPU, "")
        made = {table.name for table in tables} | {
            trigger_table.name_of(table.name, target) for table in tables if target
        }
        if name in made - ours.keys() and not trigger.disabled:
            off = {"name": name, "disabled": True}
            changes.append(
                Planned(name, "update", ("+ disabled: true",), off, trigger, ("disabled",))
            )
    return changes


def planned(name: str, ours: Mapping[str, Any], theirs: BuildTrigger | None) -> Planned:
    """Return the change that makes an existing trigger, or none, like that of a table."""
    if theirs is None:
        return Planned(name, "create", _lines("+", ours), ours)
    new, old = content(message(ours)), content(theirs)  # both without default values
    mask = tuple(path for path in _decided(new) if _at(old, path) != _at(new, path))
    sides = (("-", old), ("+", new))
    diff = [
        line
        for path in mask
        for sign, side in sides
        if (value := _at(side, path)) is not None
        for line in _lines(sign, {path: value})
    ]
    return Planned(name, "update" if mask else "unchanged", tuple(diff), new, theirs, mask)


def _lines(sign: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{sign} {name}: {json.dumps(value)}" for name, value in sorted(fields.items()))


def _decided(ours: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that a table decides; an account or a filter that it lacks stays."""
    yield from _FIELDS
    for name, inner in _MESSAGES.items():
        yield from (f"{name}.{part}" for part in inner) if name in ours else (name,)
    yield from (name for name in ("serviceAccount", "filter") if name in ours)


def _at(value: Mapping[str, Any], path: str) -> Any:
    for name in path.split("."):
        value = value.get(name, {})
    if path == "approvalConfig" and not value.get("approvalRequired"):
        return None  # the service answers with an empty one
    return value or None


# --- changes --------------------------------------------------------------------------------------


def carry_out(clients: Clients, changes: Sequence[Planned], on_done: Callable[[str], None]) -> None:
    """Create and change. on_done: gets a line for each.

    Raises OutsideError at the first change that is refused. Those before it are done.
    """
    for change in changes:
        if change.action != "unchanged":
            with explaining(f"trigger {change.name}"):
                _carry_out(clients, change)
            on_done(f"{change.name}: {change.action}d")


def _carry_out(clients: Clients, change: Planned) -> None:
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import field_mask_pb2

    if change.action == "create":
        request = api.CreateBuildTriggerRequest(
            parent=clients.parent, trigger=message(change.content)
        )
        clients.build.create_build_trigger(request, timeout=60.0)
    else:
        trigger = message(change.content)
        known = change.existing
        trigger.resource_name = known.resource_name or f"{clients.parent}/triggers/{known.id}"
        mask = field_mask_pb2.FieldMask()
        mask.FromJsonString(",".join(change.mask))
        clients.build.update_build_trigger(
            api.UpdateBuildTriggerRequest(trigger=trigger, update_mask=mask), timeout=60.0
        )
