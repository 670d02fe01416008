"""What `builder job doctor` finds on Vertex AI, and the command that it gives for each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.oauth2 import credentials as login

from builder.jobs.places.vertex import checkup
from builder.jobs.places.vertex.service import Service
from tests.emulators import answers
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.jobs.test_job_command import Run, here, run  # noqa: F401

ACCOUNT = "trainer@my-project.iam.gserviceaccount.com"
JOB = f"""\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
replicas: {{workers: 3}}
job_dir: gs://my-bucket/jobs
service_account: {ACCOUNT}
"""
AGENT = f"serviceAccount:service-{emulator.NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
ON_IMAGES = "/v1/projects/my-project/locations/us-central1/repositories/training:getIamPolicy"
ON_PROJECT = f"/v1/projects/{emulator.PROJECT}:getIamPolicy"
ON_BUCKET = "/storage/v1/b/my-bucket/iam"
V100S = "custom_model_training_nvidia_v100_gpus"
Found = dict[str, tuple[str, str, str]]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Loopback]:
    """A project in which nothing is missing."""
    with emulator.running() as loopback:
        service = loopback.service
        service.buckets["my-bucket"] = ("us-central1", "region")
        service.access.bindings = {
            ON_PROJECT: {"roles/viewer": ["user:someone@example.com"]},
            ON_IMAGES: {"roles/artifactregistry.reader": [AGENT]},
            ON_BUCKET: {"roles/storage.objectAdmin": [f"serviceAccount:{ACCOUNT}"]},
        }
        service.access.limits = {
            "custom_model_training_cpus": {"": 500},
            V100S: {"": 0, "us-central1": 8},
        }
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", loopback.rest)
        yield loopback


def found(whole: emulator.Loopback, text: str = JOB) -> Found:
    where = Service(emulator.PROJECT, "us-central1", whole.rest, whole.rest, "rest")
    told = checkup.examine(where, jobfiles.ready(text, project=emulator.PROJECT))
    assert len({one.name for one in told}) == len(told)
    return {one.name: (one.state, one.seen, one.remedy) for one in told}


def test_nothing_is_missing(whole: emulator.Loopback) -> None:
    told = found(whole)
    assert {name: state for name, (state, _, _) in told.items()} == dict.fromkeys(
        (
            *("credentials", "APIs", "right to run jobs", "right to read logs"),
            f"right to act as {ACCOUNT}",
            "the service reads my-project/training",
            "the job writes to gs://my-bucket",
            f"quota {V100S}",
        ),
        "ok",
    )
    assert told[f"quota {V100S}"][1] == "8 in us-central1, the job asks for 8"
    assert not whole.service.jobs  # it only asked


@pytest.mark.parametrize(
    ("permission", "name", "fix"),
    [
        ("aiplatform.customJobs.create", "right to run jobs", "--role=roles/aiplatform.user"),
        ("logging.logEntries.list", "right to read logs", "--role=roles/logging.viewer"),
        (
            "iam.serviceAccounts.actAs",
            f"right to act as {ACCOUNT}",
            f"gcloud iam service-accounts add-iam-policy-binding {ACCOUNT} --member=user:YOU "
            "--role=roles/iam.serviceAccountUser",
        ),
    ],
)
def test_each_right_that_is_missing_has_the_command_that_grants_it(
    whole: emulator.Loopback, permission: str, name: str, fix: str
) -> None:
    whole.service.access.missing = {permission}
    told = found(whole)
    assert [one for one, (state, _, _) in told.items() if state == "bad"] == [name]
    assert permission in told[name][1] and fix in told[name][2]


def test_the_services_own_agent_pulls_the_image_and_not_the_jobs_account(
    whole: emulator.Loopback,
) -> None:
    name, bindings = "the service reads my-project/training", whole.service.access.bindings
    bindings[ON_IMAGES] = {"roles/artifactregistry.reader": [f"serviceAccount:{ACCOUNT}"]}
    state, _, fix = found(whole)[name]
    assert state == "bad"
    assert fix == (
        "gcloud artifacts repositories add-iam-policy-binding training --project=my-project "
        f"--location=us-central1 --member={AGENT} --role=roles/artifactregistry.reader"
    )
    del bindings[ON_IMAGES]
    assert found(whole)[name][0] == "note"  # it may not be read
    whole.service.access.number = None
    assert "number cannot be read" in found(whole)[name][1]


def test_the_agent_reads_images_of_its_own_project_by_its_own_role(
    whole: emulator.Loopback,
) -> None:
    own = f"/v1/projects/{emulator.PROJECT}/locations/us-central1/repositories/t:getIamPolicy"
    bindings = whole.service.access.bindings
    bindings[own] = {}
    bindings[ON_PROJECT] = {"roles/aiplatform.serviceAgent": [AGENT]}
    image = f"us-central1-docker.pkg.dev/{emulator.PROJECT}/t/i"
    workers = f"{{count: 3, accelerators: none, image: '{image}@{jobfiles.DIGEST}'}}"
    told = found(whole, JOB.replace("workers: 3", f"workers: {workers}"))
    assert told[f"the service reads {emulator.PROJECT}/t"][0] == "ok"


def test_the_bucket(whole: emulator.Loopback) -> None:
    name = "the job writes to gs://my-bucket"
    whole.service.access.bindings[ON_BUCKET] = {"roles/storage.objectViewer": [ACCOUNT]}
    state, _, fix = found(whole)[name]
    assert state == "bad" and f"--member=serviceAccount:{ACCOUNT}" in fix
    without = JOB.replace(f"service_account: {ACCOUNT}\n", "")
    assert "gcp-sa-aiplatform-cc" in found(whole, without)[name][2]
    whole.service.buckets["my-bucket"] = ("europe-west4", "region")
    assert "region: europe-west4" in found(whole)["bucket"][2]
    whole.service.buckets.clear()
    assert "gcloud storage buckets create gs://my-bucket" in found(whole)["bucket"][2]


@pytest.mark.parametrize(
    ("limits", "change", "state", "seen"),
    [
        ({V100S: {"": 4}}, "", "bad", "4 in us-central1, the job asks for 8"),
        ({V100S: {"": 9, "us-central1": 1}}, "", "bad", "1 in us-central1"),
        ({V100S: {"": 0, "us-east1": 64}}, "", "bad", "0 in us-central1"),
        ({V100S: {"": -1}}, "", "ok", "no limit"),
        ({}, "", "note", "no limit of this name is told; the job asks for 8"),
        ({V100S: {"": 64}}, "scheduling: {strategy: spot}\n", "note", "preemptible"),
    ],
)
def test_quota_is_compared_with_what_the_job_asks(
    whole: emulator.Loopback, limits: Any, change: str, state: str, seen: str
) -> None:
    whole.service.access.limits = limits
    ((name, told),) = [item for item in found(whole, JOB + change).items() if "quota" in item[0]]
    assert told[0] == state and seen in f"{name} {told[1]}"


def test_an_api_that_is_off_has_the_command_that_enables_it(whole: emulator.Loopback) -> None:
    whole.service.access.disabled = {"logging.googleapis.com"}
    state, _, fix = found(whole)["API logging.googleapis.com"]
    assert state == "bad"
    assert fix == f"gcloud services enable logging.googleapis.com --project={emulator.PROJECT}"


# --- credentials ----------------------------------------------------------------------------------


def person(token_uri: str, quota: str | None = None) -> Any:
    return login.Credentials(  # type: ignore[no-untyped-call]
        None,
        refresh_token="r",
        client_id="i",
        client_secret="s",
        token_uri=token_uri,
        quota_project_id=quota,
    )


def kinds(credentials: Any) -> Found:
    told = checkup.credential_findings(credentials, "my-project")
    return {one.name: (one.state, one.seen, one.remedy) for one in told}


def test_a_persons_login_needs_a_quota_project_and_says_until_when_it_holds() -> None:
    token = json.dumps({"access_token": "t", "expires_in": 3600}).encode()
    with answers.serving({"/token": (200, {"Content-Type": "application/json"}, token)}) as server:
        told = kinds(person(f"{server.address}/token"))
        assert told["credentials"][0] == "ok"
        assert "a person's login, accepted; this token holds until" in told["credentials"][1]
        assert told["quota project"] == (
            "bad",
            "a person's login names none: some services refuse it",
            "run: gcloud auth application-default set-quota-project my-project",
        )
        assert kinds(person(f"{server.address}/token", "payer"))["quota project"][1] == "payer"


def test_credentials_that_have_expired_are_the_only_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    gone = b'{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}'
    with answers.serving({"/token": (400, {"Content-Type": "application/json"}, gone)}) as server:
        told = kinds(person(f"{server.address}/token"))
    assert list(told) == ["credentials"]
    state, seen, fix = told["credentials"]
    assert (state, fix) == ("bad", "run: gcloud auth application-default login")
    assert seen.startswith("a person's login: the credentials are not accepted: invalid_grant")


def test_an_emulator_gets_no_credentials() -> None:
    assert kinds(AnonymousCredentials())["credentials"][0] == "ok"


def test_a_key_file_that_is_not_there_is_the_only_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    (only,) = checkup.examine(Service("my-project", "us-central1"))
    assert (only.name, only.state) == ("credentials", "bad")
    assert "none.json" in only.seen


# --- the command ----------------------------------------------------------------------------------


def test_the_command(
    run: Run,  # noqa: F811
    here: Path,  # noqa: F811
    whole: emulator.Loopback,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ENDPOINT", "LOGGING_ENDPOINT"):
        monkeypatch.setenv(f"BUILDER_JOB_{name}", whole.rest)
    where = ("--project", emulator.PROJECT, "--region", "us-central1")
    code, out, _ = run("job", "doctor", *where, "--json")
    assert code == 0 and {one["state"] for one in json.loads(out)} == {"ok"}
    whole.service.access.missing = {"logging.logEntries.list"}
    code, out, err = run("job", "doctor", *where)
    assert code == 4 and "bad   right to read logs" in out
    assert "error: 1 findings prevent a job there" in err
    code, _, err = run("job", "doctor", "--queue", "gpus")
    assert code == 2 and "--queue is an option of --on kubernetes" in err
