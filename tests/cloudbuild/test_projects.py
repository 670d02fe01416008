"""Small equivalents of well-known projects' build files (projects/README.md), carried out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.cloudbuild import runner
from builder.cloudbuild.reader import buildfile, validation
from builder.engine import Engine
from tests.cloudbuild.conftest import Ran, left_of
from tests.engine.tags import tags
from tests.registry.server import RegistryServer, registry

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
    status: str = "SUCCESS"
    given: dict[str, str] = field(default_factory=dict)
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
        given={"_DISTRO": "Debian"},
        secrets={"COVERAGE_TOKEN": "hush"},
        statuses={"attempt-1": "FAILURE", "fetch-1": "FAILURE", "clean": "FAILURE"},
    ),
    Project("connectedhomeip", (("Light", "platform linux"), ("Lock", "archived lock"))),
    Project(
        "kubeflow-pipelines",
        (
            ("useFrontend", f"frontend of {COMMIT}, 4"),
            ("prepareVersionedSamples", f'image = "gcr.io/acme/trainer:{COMMIT}"'),
        ),
    ),
    Project(
        "kubekins",
        (
            ("use", "kubetest 12345, CGO 0"),
            ("use", "gcr.io/acme/kubekins-e2e:12345-master:1.13.5"),
        ),
    ),
    Project(
        "kustomize",
        (("release", "released with a token of 4 letters"),),
        secrets={"GITHUB_TOKEN": "hush"},
    ),
    Project("distroless", (("1", f"+ docker tag bazel/base:static gcr.io/acme/static:{COMMIT}"),)),
    Project("cloud-builders", (("inspect", '["/bin/docker"]'), ("run", "Hello, world!"))),
    Project(
        "cloud-builders-community",
        (("", "Building good/ ... "), ("", "Some builds failed:"), ("", "other/ failed")),
        status="FAILURE",
        trigger=True,
    ),
    Project(
        "go-containerregistry",
        (("0", "version 1"), ("digest", "crane digest REGISTRY/acme/crane")),
        given={"_REGISTRY": "REGISTRY"},
        pushes=True,
    ),
    Project(
        "terraform-google-network",
        (
            ("prepare", "org 1 folder 2"),
            ("create all", "create ^TestSimpleProject$"),
            ("destroy simple", "teardown simple"),
        ),
        given={"_ORG_ID": "1", "_FOLDER_ID": "2"},
    ),
    Project("skaffold", (("2", "tools"),), given={"_REGISTRY": "REGISTRY"}, pushes=True),
    Project(
        "emblem",
        (("mapped", "region us-central1 tag 0123456 of acme"),),
        trigger=True,
    ),
    Project(
        "ingress-nginx",
        (("", "gcr.io/k8s-staging-ingress-nginx at 67890 by root in /root, build BUILD"),),
    ),
)  # fmt: skip


def called(project: Project, host: str) -> dict[str, str]:
    return {key: value.replace("REGISTRY", host) for key, value in project.given.items()}


@dataclass
class Carried:
    server: RegistryServer
    artifacts: Path
    builds: dict[str, Future[Ran]]


@pytest.fixture(scope="module")
def carried(
    engine: Engine, steps_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Carried]:
    """Every project's build, three at a time."""
    artifacts = tmp_path_factory.mktemp("artifacts")

    def carry(project: Project, server: RegistryServer) -> Ran:
        read = buildfile.load(FOLDER / project.name / "cloudbuild.yaml")
        stand_ins = dict.fromkeys(
            (
                "gcr.io/cloud-*",
                "gcr.io/google.com/*",
                "gcr.io/k8s-*",
                "gcr.io/kubebuilder/*",
                "gcr.io/cicd/*",
                "ghcr.io/*",
                "debian",
                "golang",
                "ubuntu",
            ),
            steps_image,
        )
        plan = runner.prepare(
            read,
            source=read.path.parent,
            given=called(project, server.host),
            builds_in=BUILT_IN,
            secrets=project.secrets,
            images=stand_ins,
            trigger=project.trigger,
        )
        log: list[str] = []
        result = runner.run(plan, engine, log.append, push=project.pushes, artifacts=artifacts)
        return Ran(result, log)

    with (
        registry(tmp_path_factory.mktemp("registry")) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        builds = {one.name: pool.submit(carry, one, server) for one in PROJECTS}
        yield Carried(server, artifacts, builds)
        ours = ("gcr.io/acme/", f"{server.host}/", "us-central1-docker.pkg.dev/acme/")
        for tag in tags(engine):
            if tag.startswith(ours):
                engine.client.images.remove(tag, force=True)


@pytest.mark.engine
@pytest.mark.parametrize("project", PROJECTS, ids=lambda one: one.name)
def test_a_projects_build(project: Project, carried: Carried, engine: Engine) -> None:
    ran = carried.builds[project.name].result()
    assert ran.result.status == project.status, "\n".join(ran.log)
    for step, line in project.lines:
        line = line.replace("REGISTRY", carried.server.host)
        line = line.replace("BUILD", ran.result.build_id) if line.endswith("BUILD") else line
        assert ran.said(step, line) if step else line in ran.log, "\n".join(ran.log)
    for step, status in project.statuses.items():
        assert ran.step(step).status == status
    pushed = {image.name: image.digest for image in ran.result.images}
    for name, digest in pushed.items():
        repository, _, tag = name.removeprefix(f"{carried.server.host}/").rpartition(":")
        assert carried.server.tags(repository)[tag] == digest
    assert left_of(engine, ran.result.build_id) == []


@pytest.mark.engine
def test_what_the_projects_put_out(carried: Carried) -> None:
    chip = carried.builds["connectedhomeip"].result().result
    assert sorted(one.location for one in chip.artifacts) == [
        f"gs://matter-artifacts/acme/{COMMIT}/{name}.tar.gz" for name in ("light", "lock")
    ]
    skaffold = carried.builds["skaffold"].result().result
    assert len(skaffold.images) == 3
    trillian = carried.builds["trillian"].result().result
    begun = {one.id: one.started or 0 for one in trillian.steps}
    ended = {one.id: one.ended or 0 for one in trillian.steps}
    assert begun["unit"] < ended["coverage"]
    assert begun["coverage"] < ended["unit"]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda one: one.name)
def test_a_projects_file_is_valid(project: Project) -> None:
    read = buildfile.load(FOLDER / project.name / "cloudbuild.yaml")
    findings = validation.check(read, called(project, "127.0.0.1:5000"), project.trigger)
    assert [one for one in findings if one.level == "error"] == []


def test_every_project_is_carried_out_and_listed() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/cloudbuild.yaml")}
    assert folders == {one.name for one in PROJECTS}
    listed = (FOLDER / "README.md").read_text()
    assert [name for name in folders if f"({name}/)" not in listed] == []
