"""Triggers: the tables [[cloud.trigger]] of builder.toml (trigger_table.py), and Cloud Build's own.

They are compared. The difference is shown, and then the triggers are changed to match. A request
names the fields that it changes, so a field that a table cannot name stays as it is, as does a
trigger that builder.toml does not name.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.cloudbuild.clients import Clients, explaining
from builder.cloudbuild.trigger_table import wanted
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.core.project import MARKER
from builder.core.settings import load_cloud

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import BuildTrigger

Action = Literal["create", "update", "delete", "unchanged"]

# Fields that the service sets itself.
_ITS_OWN = ("id", "createTime", "resourceName")
_ITS_OWN_WITHIN = (
    ("github", "installationId"),
    ("repositoryEventConfig", "repositoryType"),
    ("pubsubConfig", "subscription"),
    ("pubsubConfig", "state"),
    ("webhookConfig", "state"),
)

# What a table says of a trigger. Of a message that it names, only these fields; a message that it
# does not name is removed.
_FIELDS = ("description", "tags", "filename", "substitutions", "includedFiles", "ignoredFiles")
_MESSAGES = {
    "github": ("owner", "name", "push", "pullRequest"),
    "repositoryEventConfig": ("repository", "push", "pullRequest"),
    "approvalConfig": ("approvalRequired",),
    "pubsubConfig": ("topic",),
    "webhookConfig": ("secret",),
    "sourceToBuild": ("uri", "repository", "ref", "repoType"),
    "gitFileSource": ("path", "uri", "repository", "revision", "repoType"),
}
# Another event, and another origin of the build: a table names its own instead.
_INSTEAD = ("triggerTemplate", "autodetect", "build")


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
    return tuple(planned(name, want, theirs.get(name)) for name, want in ours.items())


def planned(name: str, want: dict[str, Any], have: Any) -> Planned:
    if have is None:
        return Planned(name, "create", tuple(f"+ {line}" for line in _lines(want)), want)
    now, after = content(have), content(have)
    want = content(message(want))  # as the service would answer it, without default values
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
    for name in ("serviceAccount", "filter"):  # else the trigger keeps its own
        if name in want:
            yield name


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


def message(want: Mapping[str, Any]) -> BuildTrigger:
    """A trigger of its JSON names. Fields that the installed client does not know are left out.

    Raises json_format.ParseError for a value of another type.
    """
    from google.cloud.devtools import cloudbuild_v1 as api
    from google.protobuf import json_format

    message = api.BuildTrigger.pb(api.BuildTrigger())
    json_format.ParseDict(dict(want), message, ignore_unknown_fields=True)
    trigger: BuildTrigger = api.BuildTrigger.wrap(message)
    return trigger


def named(clients: Clients, name: str) -> BuildTrigger:
    """The trigger of this name. Raises OutsideError if there is none."""
    found = existing(clients)
    if name not in found:
        raise OutsideError(
            f"{clients.parent} has no trigger {name!r}",
            f"it has {', '.join(sorted(found)) or 'none'}; --region names another region",
        )
    return found[name]


def judged_with(trigger: Mapping[str, Any]) -> tuple[str, dict[str, str], str]:
    """What a trigger gives its build: the file, the substitutions, the account ("" for none)."""
    file = trigger.get("filename") or trigger.get("gitFileSource", {}).get("path")
    values = trigger.get("substitutions", {})
    return file or "cloudbuild.yaml", dict(values), trigger.get("serviceAccount", "")


def start(
    clients: Clients, name: str, at: Mapping[str, str], substitutions: Mapping[str, str]
) -> Any:
    """Run a trigger now. Returns the build.

    at: the commit, as one of branch_name, tag_name, commit_sha; empty for the trigger's own.
    Raises OutsideError.
    """
    from google.cloud.devtools import cloudbuild_v1 as api

    request = api.RunBuildTriggerRequest(
        _named(clients, named(clients, name)),
        source=api.RepoSource(**at, substitutions=dict(substitutions)),
    )
    with explaining(f"trigger {name}"):
        return clients.build.run_build_trigger(request, timeout=60.0).metadata.build


def deletion(clients: Clients, names: Sequence[str]) -> tuple[Planned, ...]:
    """The deletions of these triggers. Raises OutsideError for one that does not exist."""
    theirs = {name: named(clients, name) for name in names}
    return tuple(
        Planned(
            name, "delete", tuple(f"- {line}" for line in _lines(content(theirs[name]))),
            existing=theirs[name],
        )
        for name in theirs
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
                    **clients.within, trigger=message(one.content)
                )
                clients.build.create_build_trigger(request, timeout=60.0)
                on_done(f"{one.name}: created")
            elif one.action == "update":
                ids, trigger = _named(clients, one.existing), message(one.content)
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
            action = planned(name, ours[name], theirs.get(name)).action
            state = {"create": "missing", "update": "differs"}.get(action, "as written")
        shown = ours.get(name) or content(theirs[name])
        rows.append({"name": name, "state": state, "event": _event(shown)})
    return rows


def _event(shown: Mapping[str, Any]) -> str:
    source = (
        shown.get("github")
        or shown.get("repositoryEventConfig")
        or shown.get("sourceToBuild")
        or {}
    )
    where = source.get("repository") or source.get("uri") or "/".join(
        part for part in (source.get("owner"), source.get("name")) if part
    )  # fmt: skip
    push, pull = source.get("push", {}), source.get("pullRequest", {})
    found = (
        (f"pull request to {pull.get('branch')}", pull),
        (f"branch {push.get('branch')}", push.get("branch")),
        (f"tag {push.get('tag')}", push.get("tag")),
        (f"topic {shown.get('pubsubConfig', {}).get('topic')}", "pubsubConfig" in shown),
        ("webhook", "webhookConfig" in shown),
        ("by hand", "sourceToBuild" in shown),
    )
    what = next((text for text, there in found if there), "another event")
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
