"""What `builder doctor --on vertex` finds, and the command that it gives for each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.oauth2 import credentials as login

from builder.core.errors import InputError
from builder.doctor import Finding, Unknown, examine, vertex
from builder.doctor.vertex import Vertex
from builder.jobs.backends.vertex.service import Service
from builder.jobs.ready import Image
from tests.doctor.conftest import Run, by_name, severities
from tests.emulators import answers
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles

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


def job_in(whole: emulator.Loopback, text: str = JOB, image: Image | None = None) -> Vertex:
    service = Service(emulator.PROJECT, "us-central1", whole.grpc, whole.rest)
    ready = jobfiles.ready(text, project=emulator.PROJECT)
    return Vertex(service, replace(ready, image=image or ready.image))


def test_nothing_is_missing(whole: emulator.Loopback) -> None:
    findings = by_name(examine(job_in(whole)))
    names = (
        *("credentials", "APIs", "right to run jobs", "right to read logs"),
        f"right to act as {ACCOUNT}",
        "the service reads my-project/training",
        "the job writes to gs://my-bucket",
        f"quota {V100S}",
    )
    assert severities(findings) == dict.fromkeys(names, "ok")
    assert findings[f"quota {V100S}"].message == "8 in us-central1, the job asks for 8"
    assert not whole.service.jobs  # it only asked


@pytest.mark.parametrize(
    ("check", "permission", "name", "fix"),
    [
        ("rights", "aiplatform.customJobs.create", "right to run jobs", "roles/aiplatform.user"),
        ("rights", "logging.logEntries.list", "right to read logs", "roles/logging.viewer"),
        (
            "acts_as",
            "iam.serviceAccounts.actAs",
            f"right to act as {ACCOUNT}",
            f"gcloud iam service-accounts add-iam-policy-binding {ACCOUNT} --member=user:YOU "
            "--role=roles/iam.serviceAccountUser",
        ),
    ],
)
def test_a_right_that_is_missing(
    whole: emulator.Loopback, check: str, permission: str, name: str, fix: str
) -> None:
    whole.service.access.missing = {permission}
    findings = getattr(vertex, check)(job_in(whole))
    errors = [finding for finding in findings if finding.severity == "error"]
    assert [error.name for error in errors] == [name]
    assert permission in errors[0].message and fix in errors[0].remedy


def test_the_services_own_agent_pulls_the_image_and_not_the_jobs_account(
    whole: emulator.Loopback,
) -> None:
    access, subject = whole.service.access, job_in(whole)
    access.bindings[ON_IMAGES] = {"roles/artifactregistry.reader": [f"serviceAccount:{ACCOUNT}"]}
    (finding,) = vertex.pulls(subject)
    assert (finding.name, finding.severity) == ("the service reads my-project/training", "error")
    assert finding.remedy == (
        "gcloud artifacts repositories add-iam-policy-binding training --project=my-project "
        f"--location=us-central1 --member={AGENT} --role=roles/artifactregistry.reader"
    )
    del access.bindings[ON_IMAGES]  # it may not be read
    assert [finding.severity for finding in vertex.pulls(subject)] == ["warning"]
    access.number = None
    with pytest.raises(Unknown):
        list(vertex.pulls(subject))


def test_the_agent_reads_images_of_its_own_project_by_its_own_role(
    whole: emulator.Loopback,
) -> None:
    own = f"/v1/projects/{emulator.PROJECT}/locations/us-central1/repositories/t:getIamPolicy"
    bindings = whole.service.access.bindings
    bindings[own] = {}
    bindings[ON_PROJECT] = {"roles/aiplatform.serviceAgent": [AGENT]}
    image = f"us-central1-docker.pkg.dev/{emulator.PROJECT}/t/i@{jobfiles.DIGEST}"
    (finding,) = vertex.pulls(job_in(whole, JOB, Image(image, jobfiles.DIGEST)))
    assert (finding.name, finding.severity) == (f"the service reads {emulator.PROJECT}/t", "ok")


def test_the_bucket(whole: emulator.Loopback) -> None:
    whole.service.access.bindings[ON_BUCKET] = {"roles/storage.objectViewer": [ACCOUNT]}
    (finding,) = vertex.job_folder(job_in(whole))
    assert (finding.name, finding.severity) == ("the job writes to gs://my-bucket", "error")
    assert f"--member=serviceAccount:{ACCOUNT}" in finding.remedy
    (finding,) = vertex.job_folder(job_in(whole, JOB.replace(f"service_account: {ACCOUNT}\n", "")))
    assert "gcp-sa-aiplatform-cc" in finding.remedy
    whole.service.buckets["my-bucket"] = ("europe-west4", "region")
    with pytest.raises(InputError) as elsewhere:
        list(vertex.job_folder(job_in(whole)))
    assert "region: europe-west4" in elsewhere.value.fix


@pytest.mark.parametrize(
    ("limits", "change", "severity", "message"),
    [
        ({V100S: {"": 4}}, "", "error", "4 in us-central1, the job asks for 8"),
        ({V100S: {"": 9, "us-central1": 1}}, "", "error", "1 in us-central1"),
        ({V100S: {"": 0, "us-east1": 64}}, "", "error", "0 in us-central1"),
        ({V100S: {"": -1}}, "", "ok", "no limit"),
        ({}, "", "warning", "no limit of this name is published; the job asks for 8"),
        ({V100S: {"": 64}}, "scheduling: {strategy: spot}\n", "warning", "preemptible"),
    ],
)
def test_quota_is_compared_with_what_the_job_asks(
    whole: emulator.Loopback, limits: Any, change: str, severity: str, message: str
) -> None:
    whole.service.access.limits = limits
    (finding,) = vertex.quota(job_in(whole, JOB + change))
    assert finding.severity == severity and message in f"{finding.name} {finding.message}"


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


def checked(login: Any) -> dict[str, Finding]:
    """Return what is said of a login, with nothing else asked."""
    subject = Vertex(Service("my-project", "us-central1"))
    subject.__dict__["credentials"] = login
    return by_name(vertex.credentials(subject))


def test_a_persons_login_needs_a_quota_project_and_says_until_when_it_holds() -> None:
    token = json.dumps({"access_token": "t", "expires_in": 3600}).encode()
    with answers.serving({"/token": (200, {"Content-Type": "application/json"}, token)}) as server:
        findings = checked(person(f"{server.address}/token"))
        assert "is accepted; this token holds until" in findings["credentials"].message
        payer = findings["quota project"]
        assert (payer.severity, payer.remedy) == (
            "error",
            "run: gcloud auth application-default set-quota-project my-project",
        )
        assert list(checked(person(f"{server.address}/token", "payer"))) == ["credentials"]


def test_credentials_that_do_not_hold_are_the_only_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    subject = Vertex(Service("my-project", "us-central1"))
    (only,) = examine(subject)
    assert (only.name, only.severity) == ("credentials", "error") and "none.json" in only.message
    gone = b'{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}'
    with answers.serving({"/token": (400, {"Content-Type": "application/json"}, gone)}) as server:
        subject.__dict__["credentials"] = person(f"{server.address}/token")
        (only,) = examine(subject)
    assert only.remedy == "run: gcloud auth application-default login"
    assert "is not accepted: invalid_grant" in only.message


# --- the command ----------------------------------------------------------------------------------


def test_the_command(run: Run, whole: emulator.Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "LOGGING_ENDPOINT"):
        monkeypatch.setenv(f"BUILDER_JOB_{name}", whole.rest)
    place = ("--on", "vertex", "--project", emulator.PROJECT, "--region", "us-central1")
    code, out, _ = run("doctor", *place, "--json")
    assert code == 0 and {finding["severity"] for finding in json.loads(out)} == {"ok"}
    whole.service.access.missing = {"logging.logEntries.list"}
    whole.service.access.disabled = {"logging.googleapis.com"}
    code, out, err = run("doctor", *place)
    assert code == 4 and "error    right to read logs" in out
    enable = f"gcloud services enable logging.googleapis.com --project={emulator.PROJECT}"
    assert enable in out and "error: 2 errors prevent the work" in err
    code, _, err = run("doctor", "--on", "vertex", "--queue", "gpus")
    assert code == 2 and "--queue is an option of --on kubernetes" in err
