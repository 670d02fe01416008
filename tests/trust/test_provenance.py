"""Provenance names the commit, every input and where it ran, and no login."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.trust import provenance
from builder.trust.provenance import Build, GitSource

BUILD = Build(
    target="v100",
    base="base-0123456789abcdef",
    inputs="f" * 64,
    files={"images/v100/cuda.lock": "a" * 64, "base-0123456789abcdef": "b" * 64},
    source=GitSource("https://someone:secret@git.example.com:8443/team/x.git", "c" * 40, True),
    engine="machine Docker 28",
    version="0.1.0",
)


def test_it_names_all_that_the_image_was_made_of_and_no_login() -> None:
    predicate = provenance.predicate(BUILD, {})
    definition = predicate["buildDefinition"]
    assert definition["externalParameters"] == {"target": "v100", "base": "base-0123456789abcdef"}
    assert definition["internalParameters"]["inputs"] == "f" * 64
    assert definition["resolvedDependencies"] == [
        {
            "uri": "git+https://git.example.com:8443/team/x.git",
            "digest": {"gitCommit": "c" * 40},
            "annotations": {"clean": True},
        },
        {"name": "base-0123456789abcdef", "digest": {"sha256": "b" * 64}},
        {"name": "images/v100/cuda.lock", "digest": {"sha256": "a" * 64}},
    ]
    assert "secret" not in str(predicate) and "someone" not in str(predicate)
    ssh = replace(BUILD, source=GitSource("git@git.example.com:team/x.git", "c" * 40, False))
    (source, *_) = provenance.predicate(ssh, {})["buildDefinition"]["resolvedDependencies"]
    assert (source["uri"], source["annotations"]) == ("git+local", {"clean": False})
    without_git = provenance.predicate(replace(BUILD, source=None), {})["buildDefinition"]
    assert all("name" in each for each in without_git["resolvedDependencies"])


@pytest.mark.parametrize(
    ("environ", "builder", "run"),
    [
        ({}, "urn:training-image-factory:builder:machine", None),
        (
            {
                "GITHUB_ACTIONS": "true",
                "GITHUB_REPOSITORY": "team/x",
                "GITHUB_RUN_ID": "7",
                "GITHUB_WORKFLOW_REF": "team/x/.github/workflows/images.yml@refs/heads/main",
            },
            "https://github.com/team/x/.github/workflows/images.yml@refs/heads/main",
            "https://github.com/team/x/actions/runs/7",
        ),
        (
            {"BUILDER_CLOUD_BUILD": "projects/p/builds/1-2"},
            "https://cloudbuild.googleapis.com/GoogleHostedWorker",
            "https://cloudbuild.googleapis.com/v1/projects/p/builds/1-2",
        ),
    ],
)
def test_where_it_ran(environ: dict[str, str], builder: str, run: str | None) -> None:
    details = provenance.predicate(BUILD, environ)["runDetails"]
    assert details["builder"]["id"] == builder
    assert details["metadata"].get("invocationId") == run
