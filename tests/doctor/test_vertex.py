"""What `builder doctor --on vertex` finds, and the command that it gives for each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.oauth2 import credentials as login
from inline_snapshot import snapshot

from builder.core.errors import OutsideError
from builder.core.findings import examine
from builder.jobs.backends.vertex import doctor as vertex
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.doctor import Vertex
from builder.jobs.backends.vertex.settings import JobSettings
from builder.jobs.ready import JobImage
from tests.conftest import Run
from tests.doctor.conftest import by_name, severities
from tests.emulators import answers
from tests.emulators import vertex as emulator
from tests.jobs import jobfiles
from tests.shown import shown

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


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Loopback]:
    """A project in which nothing is missing."""
    with emulator.running() as loopback:
        service = loopback.service
        service.buckets["my-bucket"] = ("us-central1", "region")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", loopback.url)
        yield loopback


def job_in(whole: emulator.Loopback, text: str = JOB, image: JobImage | None = None) -> Vertex:
    service = whole.where
    ready = jobfiles.ready(text, project=emulator.PROJECT)
    return Vertex(service, replace(ready, image=image or ready.image))


def test_each_thing_that_is_missing_has_its_remedy(whole: emulator.Loopback) -> None:
    names = ("credentials", "right to run jobs", "right to read logs")
    acting = f"right to act as {ACCOUNT}"
    findings = by_name(examine(job_in(whole)))
    assert severities(findings) == dict.fromkeys((*names, acting, "bucket"), "ok")
    act_as = f"gcloud iam service-accounts add-iam-policy-binding {ACCOUNT} --member=user:YOU "
    for permission, name, fix in (
        ("aiplatform.customJobs.create", "right to run jobs", "roles/aiplatform.user"),
        ("logging.logEntries.list", "right to read logs", "roles/logging.viewer"),
        ("iam.serviceAccounts.actAs", acting, f"{act_as}--role=roles/iam.serviceAccountUser"),
    ):
        whole.service.missing = {permission}
        findings = examine(job_in(whole))
        (error,) = [finding for finding in findings if finding.severity == "error"]
        assert error.name == name and permission in error.message and fix in error.remedy
    assert not whole.service.jobs  # it only asked
    whole.service.buckets["my-bucket"] = ("us", "multi-region")
    (finding,) = vertex.job_folder(job_in(whole))
    assert finding.severity == "error" and "is in us, and the job in us-central1" in finding.message
    del whole.service.buckets["my-bucket"]
    (finding,) = vertex.job_folder(job_in(whole))
    assert finding.severity == "error" and "there is no bucket gs://my-bucket" in finding.message
    assert "buckets create gs://my-bucket" in finding.remedy


def test_a_job_without_its_bucket_is_not_sent(whole: emulator.Loopback) -> None:
    """It would wait for its machines, and find no folder then."""
    ready = job_in(whole).ready
    assert ready is not None
    backend = VertexAI(whole.where)
    del whole.service.buckets["my-bucket"]
    with pytest.raises(OutsideError, match="job_dir: there is no bucket gs://my-bucket") as told:
        backend.submit(ready)
    assert not whole.service.jobs
    assert "buckets create gs://my-bucket --location=us-central1" in told.value.fix


# --- credentials ----------------------------------------------------------------------------------


def person(token_uri: str) -> Any:
    words = {"refresh_token": "r", "client_id": "i", "client_secret": "s", "token_uri": token_uri}
    return login.Credentials(None, **words)  # type: ignore[no-untyped-call]


def test_a_login_says_until_when_it_holds_and_one_that_does_not_is_the_only_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    subject, kind = (
        Vertex(JobSettings(project="my-project", region="us-central1")),
        {"Content-Type": "application/json"},
    )
    token = json.dumps({"access_token": "t", "expires_in": 3600}).encode()
    gone = b'{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}'
    with answers.serving({"/token": (200, kind, token), "/gone": (400, kind, gone)}) as server:
        subject.__dict__["credentials"] = person(f"{server.address}/token")
        (finding,) = vertex.credentials(subject)
        assert "is accepted; this token holds until" in finding.message
        subject.__dict__["credentials"] = person(f"{server.address}/gone")
        (only,) = examine(subject)
    assert only.remedy.endswith("run: gcloud auth application-default login")
    assert "the credentials are not accepted: invalid_grant" in only.message
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    (only,) = examine(Vertex(JobSettings(project="my-project", region="us-central1")))
    assert (only.name, only.severity) == ("credentials", "error") and "none.json" in only.message


# --- the command ----------------------------------------------------------------------------------


def test_the_command(run: Run, whole: emulator.Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "LOGGING_ENDPOINT"):
        monkeypatch.setenv(f"BUILDER_JOB_{name}", whole.url)
    place = ("--on", "vertex", "--project", emulator.PROJECT, "--region", "us-central1")
    code, out, _ = run("doctor", *place, "--json")
    assert code == 0 and {finding["severity"] for finding in json.loads(out)} == {"ok"}
    whole.service.missing = {"logging.logEntries.list"}
    assert shown(run("doctor", *place)) == snapshot("""\
ok       credentials: a login is accepted
ok       right to run jobs: granted: aiplatform.customJobs.create,
.. aiplatform.customJobs.get, aiplatform.customJobs.list,
.. aiplatform.customJobs.cancel, aiplatform.hyperparameterTuningJobs.create
error    right to read logs: missing: logging.logEntries.list
         gcloud projects add-iam-policy-binding loopback-project --member=user:YOU
.. --role=roles/logging.viewer
| error: 1 errors prevent the work
| fix:   gcloud projects add-iam-policy-binding loopback-project --member=user:YOU
| .. --role=roles/logging.viewer
exit code 4
""")
    assert shown(run("doctor", "--on", "vertex", "--queue", "gpus")) == snapshot("""\
| error: --queue is an option of --on kubernetes
| fix:   remove --queue, or give --on kubernetes
exit code 2
""")
