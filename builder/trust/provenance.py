"""How an image or a base was made, as SLSA provenance v1: inputs, commit, builder, where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

KIND: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:training-image-factory:build:v1"


@dataclass(frozen=True)
class GitSource:
    """The project's files in git. remote: "" for none. clean: whether they are as in the commit."""

    remote: str
    commit: str
    clean: bool


@dataclass(frozen=True)
class HowMade:
    """How an image was made.

    target: its name; base: the tag of the base, "" for a published one; inputs: hash over all that
    decided its content. files: the project's file -> its sha256 in hex. engine: what built it.
    """

    target: str
    base: str
    inputs: str
    files: Mapping[str, str]
    source: GitSource | None
    engine: str
    version: str


def predicate(made: HowMade, environ: Mapping[str, str]) -> dict[str, Any]:
    """The predicate of a SLSA provenance statement. environ: tells where the factory ran."""
    builder, invocation = _ran(environ)
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"target": made.target, "base": made.base},
            "internalParameters": {"inputs": made.inputs, "engine": made.engine},
            "resolvedDependencies": [
                *([_source(made.source)] if made.source else []),
                *(
                    {"name": name, "digest": {"sha256": value}}
                    for name, value in sorted(made.files.items())
                ),
            ],
        },
        "runDetails": {
            "builder": {"id": builder, "version": {"training-image-factory": made.version}},
            "metadata": {"invocationId": invocation} if invocation else {},
        },
    }


def base_of(predicate: Mapping[str, Any]) -> str:
    """The tag of the base that a provenance is about; "" where it is not about a base alone."""
    try:
        asked = predicate["buildDefinition"]["externalParameters"]
        return str(asked["base"]) if asked["target"] == "" else ""
    except (KeyError, TypeError):
        return ""


def _source(source: GitSource) -> dict[str, Any]:
    """The commit; what a remote's address holds besides its place (a login) is left out."""
    parts = urlsplit(source.remote)
    place = parts.hostname or ""
    if parts.port:
        place += f":{parts.port}"
    where = f"git+{parts.scheme}://{place}{parts.path}" if parts.scheme and place else "git+local"
    return {
        "uri": where,
        "digest": {"gitCommit": source.commit},
        "annotations": {"clean": source.clean},
    }


def _ran(environ: Mapping[str, str]) -> tuple[str, str]:
    """Who built, and in which run: both are URIs, the second "" where there is none."""
    if environ.get("GITHUB_ACTIONS") == "true":
        server = environ.get("GITHUB_SERVER_URL", "https://github.com")
        run = f"{server}/{environ.get('GITHUB_REPOSITORY', '')}/actions/runs"
        return (
            f"{server}/{environ.get('GITHUB_WORKFLOW_REF', '')}",
            f"{run}/{environ.get('GITHUB_RUN_ID', '')}",
        )
    if build := environ.get("BUILDER_CLOUD_BUILD"):
        return (
            "https://cloudbuild.googleapis.com/GoogleHostedWorker",
            f"https://cloudbuild.googleapis.com/v1/{build}",
        )
    return "urn:training-image-factory:builder:machine", ""
