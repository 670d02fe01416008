"""A trigger that was made elsewhere, as a table [[cloud.trigger]] of builder.toml."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.cloudbuild import triggers
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.trigger_table import last_of
from builder.core import files
from builder.core.errors import InputError
from builder.core.project import MARKER

_FOREIGN = {
    "triggerTemplate": "its repository is one of Cloud Source Repositories",
    "build": "its steps are written in the trigger itself; put them into a file",
    "autodetect": "it looks for the file by itself; name the file",
    "bitbucketServerTriggerConfig": "its repository is one of Bitbucket",
    "gitlabEnterpriseEventsConfig": "its repository is one of GitLab",
}
"""What a table cannot say."""


def adopt(root: Path, clients: Clients, name: str, dry_run: bool = False) -> str:
    """Add the table of a trigger to builder.toml. Returns the table.

    name: of a live trigger; or of a file that `gcloud builds triggers export` or `builder cloud
    triggers export` wrote. Raises InputError for a trigger that a table cannot say whole: applying
    the table must change nothing.
    """
    live = from_file(Path(name)) if is_file(name) else triggers.named(clients, name)
    found = triggers.content(live)
    if any(table.get("name") == live.name for _, table in clients.settings.triggers):
        raise InputError(f"{MARKER} has the trigger {live.name} already", "triggers apply shows it")
    for field, why in _FOREIGN.items():
        if field in found:
            raise InputError(f"trigger {live.name}: {field}: {why}", f"leave it out of {MARKER}")
    text = _toml(_table(found))
    marker = root / MARKER
    before = marker.read_text(encoding="utf-8") if marker.is_file() else ""
    after = before.rstrip("\n") + "\n\n" * bool(before.strip()) + text
    _changes_nothing(root, clients, after, live)
    if not dry_run:
        files.write(marker, after)
    return text


def is_file(name: str) -> bool:
    """Whether this names a file, and no trigger."""
    return name.endswith((".yaml", ".yml", ".json"))


def from_file(path: Path) -> Any:
    """The trigger of a file. Raises InputError."""
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        return triggers.message(value)
    except (OSError, YAMLError, json_format.ParseError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise InputError(
            f"{path}: not a trigger: {said}", "name a file of `gcloud builds triggers export`"
        ) from None


def _table(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that say this trigger; those at their default are left out."""
    source = found.get("github") or found.get("repositoryEventConfig") or {}
    to_build = found.get("sourceToBuild", {})
    push, pull = source.get("push", {}), source.get("pullRequest")
    event: dict[str, Any]
    if pull is not None:
        control = pull.get("commentControl", "COMMENTS_DISABLED")
        event = {"pull_request": pull.get("branch", ""), "comment_control": control}
    elif push:
        event = {key: push[key] for key in ("branch", "tag") if key in push}
    elif "pubsubConfig" in found:
        event = {"topic": found["pubsubConfig"].get("topic", "")}
    elif "webhookConfig" in found:
        event = {"webhook": found["webhookConfig"].get("secret", "")}
    else:
        event = {"manual": True}
    github = "/".join(source[key] for key in ("owner", "name") if key in source)
    uri = re.sub(r"^https://(www\.)?github\.com/|\.git$", "", to_build.get("uri", ""))
    table = {
        "name": found.get("name", ""),
        "description": found.get("description", ""),
        "repository": github or source.get("repository") or to_build.get("repository") or uri,
        **event,
        "ref": "" if push or pull is not None else to_build.get("ref", ""),
        "filter": found.get("filter", ""),
        "invert": (pull or push).get("invertRegex", False),
        "file": found.get("filename") or found.get("gitFileSource", {}).get("path", ""),
        "included": found.get("includedFiles", []),
        "ignored": found.get("ignoredFiles", []),
        "tags": found.get("tags", []),
        "approval": found.get("approvalConfig", {}).get("approvalRequired", False),
        "disabled": found.get("disabled", False),
        "service_account": found.get("serviceAccount", "").rpartition("/")[2],
        "substitutions": found.get("substitutions", {}),
    }
    return {key: value for key, value in table.items() if value not in ("", [], {}, False)}


def _toml(table: Mapping[str, Any]) -> str:
    """One table as text. A JSON text, list or truth value is one of TOML, too."""

    def shown(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {shown(one)}" for key, one in value.items()) + " }"
        return json.dumps(value, ensure_ascii=False)

    lines = [f"{key} = {shown(value)}" for key, value in table.items()]
    return "\n".join(["[[cloud.trigger]]", *lines, ""])


def _changes_nothing(root: Path, clients: Clients, toml: str, live: Any) -> None:
    """Raises InputError if applying the last table of this text would change the trigger."""
    tables = tomllib.loads(toml)["cloud"]["trigger"]
    want = last_of(root, toml, tables[-1], clients.settings)
    plan = triggers.planned(live.name, want, live)
    if plan.action != "unchanged":
        raise InputError(
            f"trigger {live.name}: a table cannot say it whole: applying it would change "
            f"{', '.join(plan.mask)}",
            f"leave it out of {MARKER}, or write its table by hand and look at `triggers apply "
            "--dry-run`",
        )
