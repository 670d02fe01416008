"""What `builder doctor --cloud` sees in a project; each thing missing is taken away once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.settings import CloudSettings
from builder.doctor import cloudbuild, examine
from builder.doctor.cloudbuild import BuildOptions, CloudBuild
from tests.doctor.conftest import Run, by_name, severities
from tests.emulators.cloud_build import PROJECT, LoopbackCloud

ACCOUNT = f"builder@{PROJECT}.iam.gserviceaccount.com"
REPOSITORY = f"europe-west4-docker.pkg.dev/{PROJECT}/training/images"
MEMBER = [f"serviceAccount:{ACCOUNT}"]
ON_PROJECT = f"/v1/projects/{PROJECT}:getIamPolicy"
ON_BUCKET = f"/storage/v1/b/{PROJECT.replace('.', '_')}_cloudbuild/iam"
ON_IMAGES = f"/v1/projects/{PROJECT}/locations/europe-west4/repositories/training:getIamPolicy"
BUILD = "timeout: 3600s\noptions: {machineType: E2_HIGHCPU_8, diskSizeGb: '150'}\n"


@pytest.fixture
def granted(cloud: LoopbackCloud) -> LoopbackCloud:
    """A project in which the build's account has what it needs, and no more."""
    cloud.access.bindings = {
        ON_PROJECT: {"roles/logging.logWriter": MEMBER},
        ON_BUCKET: {"roles/storage.objectViewer": MEMBER},
        ON_IMAGES: {"roles/artifactregistry.writer": MEMBER},
    }
    return cloud


def build_in(cloud: LoopbackCloud, **settings: str) -> CloudBuild:
    values = {"project": PROJECT, "service_account": ACCOUNT, "endpoint": cloud.url, **settings}
    chosen, project = cloudbuild.connect(CloudSettings.model_validate(values))
    return CloudBuild(chosen, project, BuildOptions("E2_HIGHCPU_8", 150, 60), REPOSITORY)


def test_a_project_that_has_everything(granted: LoopbackCloud) -> None:
    findings = by_name(examine(build_in(granted)))
    assert severities(findings) == {
        **dict.fromkeys(("APIs", "right to build", "right to read logs", "staging"), "ok"),
        **dict.fromkeys(("account", "logs", "source", "images", "cost"), "ok"),
        "quota": "warning",
    }
    assert findings["cost"].message == (
        "E2_HIGHCPU_8, 8 GB, 150 GB of disk, 60 minutes at most: $0.96 at most, at $0.016 a minute"
    )
    assert not granted.build.builds


@pytest.mark.parametrize(
    ("check", "permission", "name", "role"),
    [
        ("caller", "cloudbuild.builds.create", "right to build", "cloudbuild.builds.editor"),
        ("caller", "logging.logEntries.list", "right to read logs", "logging.viewer"),
        ("caller", "cloudbuild.workerpools.use", "right to use the pool", "cloudbuild.workerPoolU"),
        ("account", "iam.serviceAccounts.actAs", "account", "iam.serviceAccountUser"),
        ("staging", "storage.objects.create", "staging", "storage.objectAdmin"),
    ],
)
def test_a_right_that_the_caller_lacks(
    granted: LoopbackCloud, check: str, permission: str, name: str, role: str
) -> None:
    granted.access.missing = {permission}
    subject = build_in(granted, worker_pool="projects/other/locations/global/workerPools/w")
    findings = list(getattr(cloudbuild, check)(subject))
    (error,) = [finding for finding in findings if finding.severity == "error"]
    assert error.name == name and permission in error.message
    assert error.remedy.startswith("gcloud ") and f"--role=roles/{role}" in error.remedy


def test_a_right_that_the_account_lacks(granted: LoopbackCloud) -> None:
    bindings, subject = granted.access.bindings, build_in(granted)
    for path, name, role in (
        (ON_PROJECT, "logs", "roles/logging.logWriter"),
        (ON_BUCKET, "source", "roles/storage.objectViewer"),
        (ON_IMAGES, "images", "roles/artifactregistry.writer"),
    ):
        policy = bindings[path]
        bindings[path] = {role: ["user:somebody@example.com"]}
        finding = by_name(cloudbuild.account_rights(subject))[name]
        assert finding.severity == "error" and finding.remedy.endswith(f"--role={role}")
        del bindings[path]  # what may not be read is not known
        assert by_name(cloudbuild.account_rights(subject))[name].severity == "warning"
        bindings[path] = policy
    bindings.update({ON_PROJECT: {"roles/editor": MEMBER}, ON_BUCKET: {}, ON_IMAGES: {}})
    assert {f.severity for f in cloudbuild.account_rights(subject)} == {"ok"}


def test_an_api_that_is_off_and_a_build_without_an_account(granted: LoopbackCloud) -> None:
    granted.access.disabled = {"artifactregistry.googleapis.com"}
    (finding,) = cloudbuild.apis(build_in(granted))
    assert (finding.name, finding.severity, finding.remedy) == (
        "API artifactregistry.googleapis.com",
        "error",
        f"gcloud services enable artifactregistry.googleapis.com --project={PROJECT}",
    )
    settings, project = cloudbuild.connect(CloudSettings(project=PROJECT, endpoint=granted.url))
    alone = CloudBuild(settings, project, BuildOptions())
    assert [finding.severity for finding in cloudbuild.account(alone)] == ["warning"]
    assert list(cloudbuild.account_rights(alone)) == []


def test_a_private_pools_machine_has_no_price() -> None:
    for options in (BuildOptions(None), BuildOptions("E2_NO_SUCH")):
        (finding,) = cloudbuild.estimate(CloudSettings(), options)
        assert (finding.name, finding.severity) == ("cost", "warning")


def test_the_options_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(BUILD)
    assert BuildOptions.read(tmp_path / "c.yaml") == BuildOptions("E2_HIGHCPU_8", 150, 60)
    (tmp_path / "c.yaml").write_text("steps: []\noptions: {pool: {name: x}}")
    assert BuildOptions.read(tmp_path / "c.yaml") == BuildOptions(None)


def test_the_command(granted: LoopbackCloud, project: Path, run: Run) -> None:
    (project / "cloudbuild.yaml").write_text(BUILD)
    (project / "builder.toml").write_text(
        f'[cloud]\nproject = "{PROJECT}"\nendpoint = "{granted.url}"\n'
    )
    code, out, _ = run("doctor", "--cloud")
    assert code == 0 and "ok       APIs: 4 are enabled\n" in out
    granted.access.missing = {"cloudbuild.builds.create"}
    code, out, err = run("doctor", "--cloud")
    assert code == 4 and "error    right to build: missing: cloudbuild.builds.create\n" in out
    assert "error: 1 errors prevent the work" in err and "fix:   gcloud projects add-iam" in err
    findings = json.loads(run("doctor", "--cloud", "--json")[1])
    assert [finding["severity"] for finding in findings].count("error") == 1
