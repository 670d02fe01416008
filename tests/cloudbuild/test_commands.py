"""`builder cloud ...` as a person calls it: what it says, its exit code, and nothing left over."""

from __future__ import annotations

import functools
import json
import re
import signal
import threading
from pathlib import Path

import pytest
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format
from inline_snapshot import snapshot

from builder.cloudbuild import builds
from builder.pipeline import changes
from builder.pipeline.changes import TargetChange
from tests import commands
from tests.conftest import Run
from tests.emulators.cloud_build import PROJECT, Job, LoopbackCloud, Outcome, Script, Status
from tests.emulators.google import Refused
from tests.shown import shown

FILE = """substitutions:
  _GPU: all
  _REGISTRY: h.test/a/b
steps:
- id: say
  name: busybox
  args: ['echo', '${_GPU}', '${_REGISTRY}']
options:
  logging: CLOUD_LOGGING_ONLY
"""
SOURCE = {r"source/[0-9a-f.-]+\.tgz#\d+ \(\d+ bytes\)": "source/NAME.tgz"}
SIDE_BY_SIDE = {**SOURCE, r"(?m)^\|   [=x] .*\n": ""}
"""Which of the builds ends first is left to them."""


@pytest.fixture
def checkout(project: Path, cloud: LoopbackCloud, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two targets, and a loopback cloud."""
    for target in ("cpu", "v100"):
        (project / "images" / target).mkdir(parents=True)
        (project / "images" / target / "image.yaml").write_text("accelerator: CPU\n")
    (project / "cloudbuild.yaml").write_text(FILE)
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def run(checkout: Path, builder: Run) -> Run:
    return functools.partial(builder, "cloud")


def only(cloud: LoopbackCloud) -> api.Build:
    (build,) = cloud.build.builds.values()
    return build


def test_a_build_is_staged_followed_and_cleaned_up(
    checkout: Path, cloud: LoopbackCloud, run: Run
) -> None:
    cloud.build.executor = script = Script(("hello",))
    assert shown(run("build", "cpu"), SOURCE) == snapshot("""\
| source: gs://loopback-project_cloudbuild/source/NAME.tgz
| build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
| hello
| build UUID: SUCCESS, N s
""")
    assert only(cloud).substitutions["_GPU"] == "cpu"
    assert only(cloud).substitutions["_REGISTRY"] == "h.test/a/b"
    assert "cpu" in only(cloud).tags
    assert "trainer/task.py" in script.workspaces[0]
    assert cloud.storage.objects(f"{PROJECT}_cloudbuild") == []


def targets_of(cloud: LoopbackCloud) -> list[str]:
    return sorted(build.substitutions["_GPU"] for build in cloud.build.builds.values())


def test_several_targets_have_a_build_each_side_by_side_of_one_source(
    cloud: LoopbackCloud, run: Run
) -> None:
    both = threading.Barrier(2, timeout=60)

    def together(job: Job) -> Outcome:
        both.wait()
        return Outcome(images=[api.BuiltImage(name="h.test/x:1", digest="sha256:1")])

    cloud.build.executor = together
    code, out, err = run("build", "cpu", "v100", "--json")
    assert shown((code, "", err), SIDE_BY_SIDE) == snapshot("""\
| source: gs://loopback-project_cloudbuild/source/NAME.tgz
| cpu: build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
| v100: build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
| cpu: build UUID: SUCCESS, N s
|   h.test/x:1  sha256:1
| v100: build UUID: SUCCESS, N s
|   h.test/x:1  sha256:1
""")
    assert targets_of(cloud) == ["cpu", "v100"]
    sources = {build.source.storage_source.object_ for build in cloud.build.builds.values()}
    assert (len(sources), cloud.storage.objects(f"{PROJECT}_cloudbuild")) == (1, [])
    assert {"  = cpu  ", "  = v100  "} <= {*re.findall(r"(?m)^  = \w+  ", err)}
    rows = [(row["target"], row["status"]) for row in json.loads(out)]
    assert rows == [("cpu", "SUCCESS"), ("v100", "SUCCESS")]


def test_a_list_that_the_call_names_is_one_build(cloud: LoopbackCloud, run: Run) -> None:
    code, out, err = run("build", "--all", "--substitutions", "^:^_GPU=cpu,v100", "--json")
    assert (code, json.loads(out)["status"]) == (0, "SUCCESS"), err
    assert targets_of(cloud) == ["cpu,v100"]


def test_all_builds_what_the_registry_does_not_hold(
    cloud: LoopbackCloud, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [
        TargetChange("cpu", False, "proven"),
        TargetChange("v100", True, "not in the registry yet"),
    ]
    monkeypatch.setattr(changes, "changed", lambda *_: verdicts)
    assert shown(run("build", "--all"), SOURCE) == snapshot("""\
| cpu: proven
| v100: not in the registry yet
| source: gs://loopback-project_cloudbuild/source/NAME.tgz
| v100: build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
|   = v100  N s  SUCCESS
| v100: build UUID: SUCCESS, N s
""")
    assert targets_of(cloud) == ["v100"]
    assert len(json.loads(run("build", "--all", "--dry-run")[1])) == 1
    del verdicts[1]
    assert shown(run("build", "--all", "--json")) == snapshot("""\
[]
| cpu: proven
| nothing to build
""")
    assert len(cloud.build.builds) == 1


def test_of_several_builds_each_that_failed_is_named(cloud: LoopbackCloud, run: Run) -> None:
    cloud.build.executor = lambda job: Outcome(job.build.substitutions["_GPU"] == "cpu")
    assert shown(run("build", "cpu", "v100"), SIDE_BY_SIDE) == snapshot("""\
| source: gs://loopback-project_cloudbuild/source/NAME.tgz
| cpu: build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
| v100: build UUID
|   https://console.cloud.google.com/cloud-build/builds/UUID
| cpu: build UUID: SUCCESS, N s
| v100: build UUID: FAILURE in say, N s
| error: 1 of 2 builds did not succeed: v100: build UUID failed in say
| fix:   builder cloud logs UUID
exit code 4
""")


def test_builds_that_were_submitted_before_one_is_refused_go_on_and_keep_the_source(
    cloud: LoopbackCloud, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cloud.build.create

    def once(build: api.Build, *parent: str) -> object:
        if cloud.build.builds:
            raise Refused(403, "PERMISSION_DENIED", "no more")
        return create(build, *parent)

    monkeypatch.setattr(cloud.build, "create", once)
    assert shown(run("build", "cpu", "v100")) == snapshot("""\
| error: the build was not created: not allowed: no more; these go on: cpu (UUID)
| fix:   ask for roles/cloudbuild.builds.editor, and roles/storage.admin for the
| .. staging
exit code 3
""")
    assert len(cloud.storage.objects(f"{PROJECT}_cloudbuild")) == 1


def test_async_leaves_the_source_and_of_a_clean_tree_the_commit_is_sent_that_the_file_uses(
    checkout: Path, cloud: LoopbackCloud, run: Run
) -> None:
    cloud.faults.stay_queued = True
    (checkout / "cloudbuild.yaml").write_text(FILE.replace("'echo'", "'echo', '$SHORT_SHA'"))
    for words in (["init"], ["add", "-A", "--force"], ["commit", "-m", "all"]):
        commands.git(checkout, *words)
    call = ("--registry", "other.test/x", "--substitutions", "_GPU=a")
    code, out, err = run("build", "cpu", "--async", "--json", *call)
    assert (code, json.loads(out)["status"]) == (0, "QUEUED"), err
    assert len(cloud.storage.objects(f"{PROJECT}_cloudbuild")) == 1
    sent = dict(only(cloud).substitutions)
    assert len(sent.pop("SHORT_SHA")) == 7
    assert sent == {"_GPU": "a", "_REGISTRY": "other.test/x"}


def test_a_dry_run_prints_the_very_request_and_writes_nothing(
    checkout: Path, cloud: LoopbackCloud, run: Run
) -> None:
    text = FILE + "  diskSizeGb: 200\ntags: [ours]\n"
    (checkout / "cloudbuild.yaml").write_text(text)
    before = sorted(checkout.rglob("*"))
    (checkout / "builder.toml").write_text('[cloud]\nmachine_type = "E2_HIGHCPU_32"\n')
    words = ("build", "cpu", "--region", "europe-west4")
    code, out, err = run(*words, "--dry-run")
    assert code == 0, err
    assert "not sent" in err
    assert (cloud.build.calls, cloud.build.builds, cloud.storage.buckets) == ([], {}, {})
    assert sorted(checkout.rglob("*")) == before
    request = json.loads(out)
    assert request["parent"] == f"projects/{PROJECT}/locations/europe-west4"
    assert request["build"].pop("source") == {
        "storageSource": {"bucket": f"{PROJECT}_europe-west4_cloudbuild"}
    }
    assert run(*words)[0] == 0
    message = api.Build.pb(api.Build())
    json_format.ParseDict(request["build"], message)
    sent = api.Build.pb(only(cloud))
    added = [tag for tag in sent.tags if tag.startswith(builds.TAG)]
    assert [*message.tags, *added] == [*sent.tags] and len(added) == 1
    for name in ("substitutions", "timeout", "options", "images", "service_account"):
        assert getattr(message, name) == getattr(sent, name)
    assert [step.args for step in message.steps] == [step.args for step in sent.steps]
    code, out, err = run("build", "cpu", "--substitutions", "_NO=1", "--dry-run")
    assert (code, out) == (2, ""), "what would be refused is refused"


def test_logs(cloud: LoopbackCloud, run: Run) -> None:
    cloud.build.executor = Script(("one", "two"))
    run("build", "cpu")
    assert run("logs", only(cloud).id)[1] == "one\ntwo\n"
    assert shown(run("logs", "no-such-build")) == snapshot("""\
| error: build no-such-build: not found: Requested entity was not found.
| fix:   correct its name, project and region
exit code 3
""")


@pytest.mark.parametrize(
    ("status", "code", "what"),
    [
        (Status.FAILURE, 4, "failed in say"),
        (Status.TIMEOUT, 3, "took longer than its timeout"),
        (Status.EXPIRED, 3, "waited in the queue longer"),
        (Status.INTERNAL_ERROR, 3, "ended with an internal error of Cloud Build"),
        (Status.CANCELLED, 3, "was cancelled"),
    ],
)
def test_a_build_that_did_not_succeed_is_an_error_and_its_source_is_gone(
    cloud: LoopbackCloud, run: Run, status: Status, code: int, what: str
) -> None:
    cloud.build.executor = Script(("oh no",), ok=status != Status.FAILURE)
    cloud.faults.end_as = status
    ended, _, err = run("build", "cpu")
    assert (ended, "oh no\n" in err) == (code, True), "its log is shown all the same"
    assert f"error: build {only(cloud).id} {what}" in err
    assert cloud.storage.objects(f"{PROJECT}_cloudbuild") == []


@pytest.mark.parametrize("targets", [["cpu"], ["cpu", "v100"]], ids=["one", "two"])
def test_after_ctrl_c_builds_go_on_and_keep_their_source(
    cloud: LoopbackCloud, run: Run, monkeypatch: pytest.MonkeyPatch, targets: list[str]
) -> None:
    cloud.build.executor = Script(wait=threading.Event())
    monkeypatch.setattr(builds, "wait", lambda _: signal.raise_signal(signal.SIGINT))
    code, _, err = run("build", *targets)
    assert code == 130
    assert err.count("goes on: builder cloud logs") == len(targets)
    assert all(build.status != Status.CANCELLED for build in cloud.build.builds.values())
    assert len(cloud.storage.objects(f"{PROJECT}_cloudbuild")) == 1


# What cannot be -----------------------------------------------------------------------------------


def test_what_is_wrong_here_is_refused_before_anything_is_sent(
    checkout: Path, cloud: LoopbackCloud, run: Run
) -> None:
    assert shown(run("build", "cup")) == snapshot("""\
| error: no target is called 'cup': there is no images/cup/image.yaml
| fix:   write cpu; known: cpu, v100
exit code 2
""")
    (checkout / "cloudbuild.yaml").write_text(FILE.replace("args:", "arguments:"))
    assert shown(run("build", "cpu")) == snapshot("""\
| error: HERE/cloudbuild.yaml:7: steps[0].arguments: unknown field of BuildStep (2
| .. more: cloudbuild-local validate HERE/cloudbuild.yaml)
| fix:   write args
exit code 2
""")
    assert cloud.build.calls == []


def test_a_project_without_the_api_leaves_nothing_behind(cloud: LoopbackCloud, run: Run) -> None:
    cloud.faults.disabled = True
    assert shown(run("build", "cpu")) == snapshot("""\
| error: the build was not created: the API cloudbuild.googleapis.com is not
| .. enabled: Cloud Build API has not been used in project loopback-project before
| .. or it is disabled. Enable it by visiting
| .. https://console.developers.google.com/apis/api/cloudbuild.googleapis.com/overview?project=loopback-project
| .. then retry.
| fix:   run: gcloud services enable cloudbuild.googleapis.com --project
| .. loopback-project
exit code 3
""")
    assert cloud.storage.objects() == []


def test_without_credentials_a_dry_run_alone_works(
    cloud: LoopbackCloud, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: object) -> None:
        raise DefaultCredentialsError("none were found")

    monkeypatch.delenv("BUILDER_CLOUD_ENDPOINT")
    monkeypatch.setattr("google.auth.default", none)
    assert shown(run("build", "cpu")) == snapshot("""\
| error: there are no credentials for Google Cloud
| fix:   run: gcloud auth application-default login
exit code 3
""")
    code, out, _ = run("build", "cpu", "--dry-run")
    assert code == 0 and json.loads(out)["build"]["substitutions"]["_GPU"] == "cpu"
    assert cloud.build.calls == []


def test_triggers_are_shown_before_they_are_made(
    checkout: Path, cloud: LoopbackCloud, run: Run
) -> None:
    (checkout / "builder.toml").write_text(
        '[[cloud.trigger]]\nname = "main"\nrepository = "acme/x"\nbranch = "^main$"\n'
    )
    changes = shown(run("triggers", "apply", "--dry-run"))
    assert changes == snapshot("""\
| main-cpu: create
|   + filename: "cloudbuild.yaml"
|   + github: {"owner": "acme", "name": "x", "push": {"branch": "^main$"}}
|   + includedFiles: ["images/cpu/**", "trainer/**", "images/*.lock",
| .. "builder.toml", "builder/**", "templates/**", "requirements/**",
| .. "builder.Dockerfile", "cloudbuild.yaml"]
|   + name: "main-cpu"
|   + substitutions: {"_GPU": "cpu"}
| main-v100: create
|   + filename: "cloudbuild.yaml"
|   + github: {"owner": "acme", "name": "x", "push": {"branch": "^main$"}}
|   + includedFiles: ["images/v100/**", "trainer/**", "images/*.lock",
| .. "builder.toml", "builder/**", "templates/**", "requirements/**",
| .. "builder.Dockerfile", "cloudbuild.yaml"]
|   + name: "main-v100"
|   + substitutions: {"_GPU": "v100"}
""")
    assert cloud.build.triggers == {}
    assert shown(run("triggers", "apply")) == changes + (
        "| main-cpu: created\n| main-v100: created\n"
    )
    assert shown(run("triggers", "apply")) == snapshot("""\
| main-cpu: unchanged
| main-v100: unchanged
| nothing to change
""")
    assert len(cloud.build.triggers) == 2
