"""What an image or a base was built from, as SLSA provenance v1: inputs, commit, builder, run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from builder.core import git
from builder.trust import pushed

BUILD_TYPE: Final = "urn:training-image-factory:build:v1"


@dataclass(frozen=True)
class GitSource:
    remote: str
    """"" for none."""
    commit: str
    clean: bool
    """Whether they are as in the commit."""

    def json(self) -> dict[str, Any]:
        """Return the commit as a resolved dependency, without a login in the remote's address."""
        url = urlsplit(self.remote)
        host = f"{url.hostname}:{url.port}" if url.port else url.hostname
        known = url.scheme and host
        return {
            "uri": f"git+{url.scheme}://{host}{url.path}" if known else "git+local",
            "digest": {"gitCommit": self.commit},
            "annotations": {"clean": self.clean},
        }


@dataclass(frozen=True)
class Build:
    target: str
    """Its name, "" for a base."""
    base: str
    """The base's tag, "" for a published one."""
    inputs: str
    """Hash over all that decided the content."""
    files: Mapping[str, str]
    """What it was built from -> sha256 in hex."""
    source: GitSource | None
    engine: str
    """What built it."""
    version: str
    """Of the factory."""


def predicate(build: Build, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the predicate of a SLSA provenance. environ: tells where the factory ran."""
    builder, invocation = _run(environ)
    files = [
        {"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(build.files.items())
    ]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"target": build.target, "base": build.base},
            "internalParameters": {"inputs": build.inputs, "engine": build.engine},
            "resolvedDependencies": [*([build.source.json()] if build.source else []), *files],
        },
        "runDetails": {
            "builder": {"id": builder, "version": {"training-image-factory": build.version}},
            "metadata": {"invocationId": invocation} if invocation else {},
        },
    }


def source_of(root: Path) -> GitSource | None:
    """Return the commit that the project's files are of; None outside of git."""
    commit = git.ask(root, "rev-parse", "HEAD")
    if not commit:
        return None
    origin = git.ask(root, "config", "remote.origin.url") or ""
    return GitSource(origin.strip(), commit.strip(), is_clean(root))


def is_clean(root: Path) -> bool:
    others = f":(exclude){pushed.FILE}"  # a push writes it
    return git.ask(root, "status", "--porcelain", "--", ".", others) == ""


def _run(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the URIs of the builder and of the run; the second is "" where there is none."""
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
