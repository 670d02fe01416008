"""What `builder doctor --cloud` sees in a project; each thing missing is taken away once."""

from __future__ import annotations

import json
from pathlib import Path

from inline_snapshot import snapshot

from builder.cloudbuild.clients import connect
from builder.core.findings import examine
from builder.core.settings import CloudSettings
from builder.doctor import cloudbuild
from builder.doctor.cloudbuild import CloudBuild
from tests.conftest import Run
from tests.doctor.conftest import by_name, severities
from tests.emulators.cloud_build import PROJECT, LoopbackCloud
from tests.shown import shown

ACCOUNT = f"builder@{PROJECT}.iam.gserviceaccount.com"


def build_in(cloud: LoopbackCloud, **settings: str) -> CloudBuild:
    values = {"project": PROJECT, "service_account": ACCOUNT, "endpoint": cloud.url, **settings}
    return cloudbuild.of(connect(CloudSettings.model_validate(values)))


def test_each_right_that_the_caller_lacks_has_the_command_that_grants_it(
    cloud: LoopbackCloud,
) -> None:
    assert set(severities(by_name(examine(build_in(cloud)))).values()) == {"ok"}
    pool = "projects/other/locations/global/workerPools/w"
    for permission, name, role in (
        ("cloudbuild.builds.create", "right to build", "cloudbuild.builds.editor"),
        ("logging.logEntries.list", "right to read logs", "logging.viewer"),
        ("cloudbuild.workerpools.use", "right to use the pool", "cloudbuild.workerPoolUser"),
        ("iam.serviceAccounts.actAs", "account", "iam.serviceAccountUser"),
        ("storage.objects.create", "staging", "storage.objectAdmin"),
    ):
        cloud.build.missing = {permission}
        findings = examine(build_in(cloud, worker_pool=pool))
        (error,) = [finding for finding in findings if finding.severity == "error"]
        assert error.name == name and permission in error.message
        assert error.remedy.startswith("gcloud ") and f"--role=roles/{role}" in error.remedy
    assert not cloud.build.builds


def test_the_command(cloud: LoopbackCloud, project: Path, run: Run) -> None:
    (project / "builder.toml").write_text(
        f'[cloud]\nproject = "{PROJECT}"\nendpoint = "{cloud.url}"\n'
    )
    assert shown(run("doctor", "--cloud")) == snapshot("""\
ok       right to build: granted: cloudbuild.builds.create, cloudbuild.builds.get
ok       right to read logs: granted: logging.logEntries.list
ok       staging: granted: storage.objects.create, storage.objects.delete
warning  account: none is set: the build runs as the project's default account
         write service_account below [cloud], and give it what docs/cloud-build.md
.. lists
""")
    cloud.build.missing = {"cloudbuild.builds.create"}
    assert shown(run("doctor", "--cloud")) == snapshot("""\
error    right to build: missing: cloudbuild.builds.create
         gcloud projects add-iam-policy-binding loopback-project --member=user:YOU
.. --role=roles/cloudbuild.builds.editor
ok       right to read logs: granted: logging.logEntries.list
ok       staging: granted: storage.objects.create, storage.objects.delete
warning  account: none is set: the build runs as the project's default account
         write service_account below [cloud], and give it what docs/cloud-build.md
.. lists
| error: 1 errors prevent the work
| fix:   gcloud projects add-iam-policy-binding loopback-project --member=user:YOU
| .. --role=roles/cloudbuild.builds.editor
exit code 4
""")
    findings = json.loads(run("doctor", "--cloud", "--json")[1])
    assert [finding["severity"] for finding in findings].count("error") == 1
