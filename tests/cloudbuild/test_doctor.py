"""What `cloud doctor` sees in a project; each thing that is missing is taken away once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api

from builder.cloudbuild.clients import Clients
from builder.cloudbuild.doctor import Needs, examine, forecast
from builder.cloudbuild.reader import buildfile
from builder.core.checkup import Finding
from builder.core.settings import CloudSettings
from tests.emulators.cloud_build import PROJECT, LoopbackCloud

Connect = Callable[..., Clients]
ACCOUNT = f"builder@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"europe-west4-docker.pkg.dev/{PROJECT}/training/images"
MEMBER = [f"serviceAccount:{ACCOUNT}"]
ON_PROJECT = f"/v1/projects/{PROJECT}:getIamPolicy"
ON_BUCKET = f"/storage/v1/b/{PROJECT.replace('.', '_')}_cloudbuild/iam"
ON_IMAGES = f"/v1/projects/{PROJECT}/locations/europe-west4/repositories/training:getIamPolicy"
FILE = buildfile.parse(
    "steps: [{name: a}]\ntimeout: 3600s\ntags: [training-images]\n"
    "options: {machineType: E2_HIGHCPU_8, diskSizeGb: 150}",
    Path("cloudbuild.yaml"),
)


@pytest.fixture
def granted(cloud: LoopbackCloud) -> LoopbackCloud:
    """A project in which the build's account has what it needs, and no more."""
    cloud.access.bindings = {
        ON_PROJECT: {"roles/logging.logWriter": MEMBER},
        ON_BUCKET: {"roles/storage.objectViewer": MEMBER},
        ON_IMAGES: {"roles/artifactregistry.writer": MEMBER},
    }
    return cloud


def seen(connected: Connect, **settings: str) -> dict[str, Finding]:
    clients = connected(service_account=ACCOUNT, **settings)
    return {one.name: one for one in examine(clients, FILE, REPOSITORY)}


def test_a_project_that_has_everything(granted: LoopbackCloud, connected: Connect) -> None:
    found = seen(connected)
    assert {name: one.state for name, one in found.items()} == {
        "apis": "ok", "you": "ok", "account": "ok", "logs": "ok", "source": "ok", "images": "ok",
        "staging": "ok", "memory": "note", "cost": "ok", "quota": "note",
    }  # fmt: skip
    assert found["cost"].seen == (
        "E2_HIGHCPU_8, 150 GB of disk, 60 minutes at most: $0.96 at most, at $0.016 a minute"
    )
    assert granted.build.calls, "it asked"
    assert not granted.build.builds


@pytest.mark.parametrize(
    ("permission", "name", "remedy"),
    [
        ("cloudbuild.builds.create", "you", "grant roles/cloudbuild.builds.editor"),
        ("logging.logEntries.list", "you", "grant roles/logging.viewer"),
        ("iam.serviceAccounts.actAs", "account", "grant roles/iam.serviceAccountUser"),
        ("storage.objects.create", "staging", "grant roles/storage.objectAdmin"),
        ("cloudbuild.workerpools.use", "pool", "grant roles/cloudbuild.workerPoolUser"),
    ],
)
def test_what_the_caller_may_not(
    granted: LoopbackCloud, connected: Connect, permission: str, name: str, remedy: str
) -> None:
    granted.access.missing = {permission}
    found = seen(connected, worker_pool="projects/other/locations/global/workerPools/w")
    bad = [one for one in found.values() if one.state == "bad"]
    assert [(one.name, one.remedy) for one in bad] == [(name, remedy)]
    assert permission in bad[0].seen


@pytest.mark.parametrize(
    ("path", "name", "role"),
    [
        (ON_PROJECT, "logs", "roles/logging.logWriter"),
        (ON_BUCKET, "source", "roles/storage.objectViewer"),
        (ON_IMAGES, "images", "roles/artifactregistry.writer"),
    ],
)
def test_what_the_account_may_not(
    granted: LoopbackCloud, connected: Connect, path: str, name: str, role: str
) -> None:
    granted.access.bindings[path] = {role: ["user:somebody@example.com"]}
    found = seen(connected)
    assert (found[name].state, found[name].remedy.partition(";")[0]) == ("bad", f"grant {role}")
    del granted.access.bindings[path]
    assert seen(connected)[name].state == "note", "what may not be read is not known"
    granted.access.bindings[ON_PROJECT] = {"roles/editor": MEMBER}
    assert seen(connected)[name].state == "ok"


@pytest.mark.parametrize(
    ("machine", "memory", "state", "told"),
    [
        ("E2_HIGHCPU_8", None, "note", "E2_HIGHCPU_8 has 8 GB; what the steps use is not known"),
        ("E2_HIGHCPU_8", 5, "ok", "5 GB at most, of 8 GB of E2_HIGHCPU_8"),
        ("E2_MEDIUM", 5, "bad", "the build may use 5 GB, and E2_MEDIUM has 4"),
    ],
)
def test_whether_a_build_fits_into_memory(
    machine: str, memory: float | None, state: str, told: str
) -> None:
    needs = Needs(memory, disk=0) if memory else None
    found = next(iter(forecast(CloudSettings(machine_type=machine), FILE, needs)))
    assert (found.name, found.state, found.seen) == ("memory", state, told)
    if state == "bad":
        assert found.remedy.startswith('write machine_type = "E2_STANDARD_2"')


@pytest.mark.parametrize(
    ("asked", "state", "told"),
    [
        ("", "ok", "99 GB at most, of 100 GB"),
        ("200", "ok", "99 GB at most, of 200 GB"),
        ("", "bad", "the build may use 101 GB of disk, and asks for 100"),
    ],
)
def test_whether_a_build_fits_on_its_disk(asked: str, state: str, told: str) -> None:
    options = f"options: {{diskSizeGb: {asked}}}\n" if asked else ""
    file = buildfile.parse(f"steps: [{{name: a}}]\n{options}", Path("c.yaml"))
    needs = Needs(memory=5, disk=99 if state == "ok" else 100.6)
    found = {one.name: one for one in forecast(CloudSettings(), file, needs)}["disk"]
    assert (found.state, found.seen) == (state, told)


def test_an_api_that_is_off(granted: LoopbackCloud, connected: Connect) -> None:
    granted.access.disabled = {"artifactregistry.googleapis.com"}
    found = seen(connected)["apis"]
    assert found.state == "bad"
    assert found.remedy == (
        f"gcloud services enable artifactregistry.googleapis.com --project {PROJECT}"
    )


def test_a_pool_of_another_region(granted: LoopbackCloud, connected: Connect) -> None:
    pool = "projects/p/locations/us-east1/workerPools/w"
    found = seen(connected, worker_pool=pool, region="europe-west4")
    assert found["region"].seen == "the pool is in us-east1, and builds run in europe-west4"
    assert found["cost"].state == "note"


def test_without_an_account_and_a_registry(granted: LoopbackCloud, connected: Connect) -> None:
    found = {one.name: one for one in examine(connected(), FILE, None)}
    assert found["account"].state == "note"
    assert "images" not in found


def test_what_the_last_build_took(granted: LoopbackCloud, connected: Connect) -> None:
    end = datetime.now(UTC)
    granted.build.builds["b"] = api.Build(
        id="b",
        tags=["training-images"],
        status=api.Build.Status.SUCCESS,
        create_time=end,
        start_time=end - timedelta(minutes=30),
        finish_time=end,
    )
    assert seen(connected)["last"].seen == "the last build took 30.0 minutes: $0.48"
