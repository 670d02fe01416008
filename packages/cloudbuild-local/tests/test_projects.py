"""Small equivalents of well-known projects' build files (projects/README.md), carried out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import Build, left_of
from test_run import digest_of

from cloudbuild_local import rules
from cloudbuild_local.reader import document
from cloudbuild_local.runner import plan
from cloudbuild_local.runner.engine import Engine
from cloudbuild_local.runner.run import run

Builds = dict[str, Future[Build]]
FOLDER = Path(__file__).parent / "projects"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BUILT_IN = {
    "PROJECT_ID": "acme",
    "COMMIT_SHA": COMMIT,
    "SHORT_SHA": COMMIT[:7],
    "BRANCH_NAME": "main",
}


@dataclass(frozen=True)
class Project:
    """What a build is called with, and what it has to come to: lines by the step's id or number."""

    name: str
    lines: tuple[tuple[str, str], ...]
    overrides: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    trigger: bool = False
    statuses: dict[str, str] = field(default_factory=dict)
    pushes: bool = False


PROJECTS = (
    Project(
        "trillian",
        (
            ("lint", "made by the build"),
            ("lint", "checked: --fix --empty-diff (of-the-build)"),
            ("unit", "checked: unit (of-the-step)"),
            ("integration", "cached in /go"),
        ),
    ),
    Project(
        "google-cloud-cpp",
        (
            ("restore", "/h"),
            ("build", "built --build DEBIAN from main (), restored Debian, token 4, "
             "acme_logs/main/0123456/Debian-log.txt"),
        ),
        overrides={"_DISTRO": "Debian"},
        secrets={"COVERAGE_TOKEN": "hush"},
        statuses={"attempt-1": "FAILURE", "fetch-1": "FAILURE", "clean": "FAILURE"},
    ),
    Project(
        "go-containerregistry",
        (("0", "version 1"), ("digest", "crane digest REGISTRY/acme/crane")),
        overrides={"_REGISTRY": "REGISTRY"},
        pushes=True,
    ),
    Project("emblem", (("mapped", "region us-central1 tag 0123456 of acme"),), trigger=True),
)  # fmt: skip


@pytest.fixture(scope="module")
def builds(engine: Engine, steps_image: str, registry: str) -> Iterator[Builds]:
    """Every project's build, three at a time."""
    patterns = ("gcr.io/cloud-*", "gcr.io/google.com/*", "ghcr.io/*", "debian", "golang", "ubuntu")
    engine.api.tag(steps_image, "cloudbuild-steps", "base")  # the Dockerfiles start from it

    def carry(project: Project) -> Build:
        file = FOLDER / project.name / "cloudbuild.yaml"
        planned = plan.prepare(
            document.read(file, project.trigger),
            source=file.parent,
            overrides=overrides(project, registry),
            built_in=BUILT_IN,
            secrets=project.secrets,
            images=dict.fromkeys(patterns, steps_image),
        )
        log: list[str] = []
        return Build(run(planned, engine, log.append, push=project.pushes), log)

    with ThreadPoolExecutor(3) as pool:
        yield {project.name: pool.submit(carry, project) for project in PROJECTS}
    ours = ("gcr.io/acme/", f"{registry}/", "us-central1-docker.pkg.dev/acme/")
    for image in engine.api.images():
        for tag in image["RepoTags"] or ():
            if tag.startswith(ours):
                engine.api.remove_image(tag, force=True)


def overrides(project: Project, registry: str) -> dict[str, str]:
    return {name: text.replace("REGISTRY", registry) for name, text in project.overrides.items()}


@pytest.mark.engine
@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_projects_build(project: Project, builds: Builds, engine: Engine, registry: str) -> None:
    build = builds[project.name].result()
    assert build.result.status == "SUCCESS", "\n".join(build.log)
    for step, line in project.lines:
        assert build.printed(step, line.replace("REGISTRY", registry)), "\n".join(build.log)
    for step, status in project.statuses.items():
        assert build.step(step).status == status
    for name, digest in build.result.images:
        repository, _, tag = name.removeprefix(f"{registry}/").rpartition(":")
        assert digest_of(registry, repository, tag) == digest
    assert left_of(engine, build.result.build_id) == []


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_projects_file_is_valid(project: Project) -> None:
    file = document.read(FOLDER / project.name / "cloudbuild.yaml", project.trigger)
    findings = rules.check(file, overrides(project, "127.0.0.1:5000"))
    assert [finding for finding in findings if finding.level == "error"] == []
