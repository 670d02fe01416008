"""Builds in the cloud against a loopback service that speaks the product's protocol."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api

from builder.cloudbuild import buildfile, builds, follow, outcome, submit
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.outcome import Outcome, ReportedImage
from builder.cloudbuild.staging import staged
from builder.core.errors import FactoryError, InputError, OutsideError
from builder.core.events import Event, StepDone, StepLog, StepStarted
from builder.core.settings import CloudSettings
from tests.clock import until
from tests.cloudbuild.conftest import Connect
from tests.cloudbuild.test_source import packed, tree
from tests.emulators.cloud_build import PROJECT, LoopbackCloud, Script, Status

GCS = api.BuildOptions.LoggingMode.GCS_ONLY
LOGGING = api.BuildOptions.LoggingMode.CLOUD_LOGGING_ONLY
DIGEST = "sha256:" + "a" * 64
LINES = (*(f"line {number} ✓" for number in range(200)), "", "x" * 300, "\tthe end")


def build(logging: object = LOGGING, **fields: object) -> api.Build:
    step = api.BuildStep(name="busybox", id="say")
    return api.Build(steps=[step], options=api.BuildOptions(logging=logging), **fields)


def run(clients: Clients, message: api.Build | None = None) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    started = builds.create(clients, message or build())
    return follow.watch(clients, started, lines.append), lines


# Following ----------------------------------------------------------------------------------------


def test_a_log_that_may_not_be_read_is_never_a_failed_build(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.build.executor = Script(LINES)
    done, lines = run(connected(), build(GCS))
    assert (outcome.judged(done).status, lines) == ("SUCCESS", [])
    assert "not in Cloud Logging (logging: GCS_ONLY)" in done.note
    cloud.faults.bursts = [("entries:list", 403, 1)]
    done, lines = run(connected())
    assert (outcome.judged(done).status, lines) == ("SUCCESS", [])
    assert done.note == "Cloud Logging may not be read (HTTP 403)"


def test_late_entries_and_transient_errors_cost_nothing_but_time(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.build.executor, clients, lines = Script(LINES), connected(), list[str]()
    started = builds.create(clients, build())
    until(lambda: cloud.build.builds[started.id].status == Status.SUCCESS)
    cloud.faults.late_entries, cloud.faults.double_entries = 3, True
    cloud.faults.bursts = [("GET /v1/.*builds/", 503, 2), ("POST .*entries:list", 503, 1)]
    done = follow.watch(clients, started, lines.append)
    assert (done.status, done.note) == ("SUCCESS", "")
    assert lines == list(LINES)
    assert [left for *_, left in cloud.faults.bursts] == [0, 0]


def test_a_service_that_does_not_answer_any_more_is_left_and_the_build_goes_on(
    cloud: LoopbackCloud, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.build.executor = Script(wait=threading.Event())
    clients = connected()
    started = builds.create(clients, build())
    monkeypatch.setattr(follow, "PATIENCE", 0.0)
    cloud.faults.bursts = [("GET /v1/.*builds/", 503, 10_000)]
    with pytest.raises(OutsideError, match="the build goes on") as raised:
        follow.watch(clients, started, lambda line: None)
    assert raised.value.fix == f"builder cloud logs {started.id}"
    assert cloud.build.builds[started.id].status not in (Status.CANCELLED, Status.FAILURE)


def test_several_builds_are_followed_at_once_each_by_the_step_that_it_is_in(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    go_on, clients, events = threading.Event(), connected(), list[Event]()
    cloud.build.executor = Script(wait=go_on)

    def on_event(event: Event) -> None:
        events.append(event)
        if {StepLog("cpu", "say"), StepLog("v100", "say")} <= {*events}:
            go_on.set()

    started = {name: builds.create(clients, build()) for name in ("cpu", "v100")}
    cloud.faults.bursts = [("GET /v1/.*builds/", 503, 2)]
    done = follow.watch_all(clients, started, on_event)
    assert {name: ended.status for name, ended in done.items()} == dict.fromkeys(started, "SUCCESS")
    assert events[:2] == [StepStarted("cpu"), StepStarted("v100")]
    ends = [event for event in events if isinstance(event, StepDone)]
    assert sorted((end.name, end.detail, end.error) for end in ends) == [
        ("cpu", "SUCCESS", None),
        ("v100", "SUCCESS", None),
    ]


# Submitting ---------------------------------------------------------------------------------------


def test_a_create_is_repeated_until_one_build_is_there(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.faults.cut_create = 1
    first, _ = run(connected())
    cloud.faults.bursts = [("POST .*/builds$", 503, 2)]
    second, _ = run(connected())
    assert list(cloud.build.builds) == [first.id, second.id]


def test_what_the_service_refuses_is_explained(cloud: LoopbackCloud, connected: Connect) -> None:
    clients = connected()
    with pytest.raises(OutsideError, match="too many build steps"):
        builds.create(clients, api.Build(steps=[api.BuildStep(name="busybox")] * 301))
    with pytest.raises(OutsideError, match=r"_NO_ONE.*not matched"):
        builds.create(clients, build(substitutions={"_NO_ONE": "reads this"}))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("steps: [{nam: a}]", 'no field named "nam"'),
        ("steps: [", ":2: not YAML"),
        ("- a", "not a build"),
        ("a: &a [x, x]\n" + "".join(f"b{n}: [*a, *a]\n" for n in range(4000)), "more than 20000"),
    ],
)
def test_a_file_that_is_no_build(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match=what):
        buildfile.load(tmp_path / "c.yaml")


ACCOUNT = "builder@my-project.iam.gserviceaccount.com"


def settings(**values: object) -> CloudSettings:
    return CloudSettings.model_validate(values)


def test_a_service_account_gets_a_log_that_it_may_write(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    plain = api.Build(steps=[api.BuildStep(name="busybox")])
    new = submit.prepared(plain, settings(project="my-project", service_account=ACCOUNT), {})
    assert new.service_account == f"projects/my-project/serviceAccounts/{ACCOUNT}"
    assert (new.options.logging, plain.service_account) == (LOGGING, "")
    assert run(connected(), new)[0].status == "SUCCESS", "the service takes it"
    new.options.logging = api.BuildOptions.LoggingMode.LEGACY
    with pytest.raises(OutsideError, match="service_account"):
        builds.create(connected(), new)


def test_a_worker_pool_has_machines_of_its_own(connected: Connect) -> None:
    file = build()
    file.options.machine_type = api.BuildOptions.MachineType.E2_HIGHCPU_8
    file.options.disk_size_gb = 200
    pool = settings(project="proj-1", region="europe-west4", worker_pool="wheel_build")
    new = submit.prepared(file, pool, {})
    assert new.options.pool.name == (
        "projects/proj-1/locations/europe-west4/workerPools/wheel_build"
    )
    assert (new.options.machine_type, new.options.disk_size_gb) == (0, 0)
    assert run(connected(), api.Build(new))[0].status == "SUCCESS", "the service takes it"
    machine = settings(machine_type="E2_HIGHCPU_32", region="europe-west4")
    assert submit.prepared(file, machine, {}).options.machine_type.name == "E2_HIGHCPU_32"
    assert submit.prepared(new, machine, {}).options.machine_type == 0, "the file's own pool"


# Staging ------------------------------------------------------------------------------------------

BUCKET = f"{PROJECT}_cloudbuild"


def test_the_source_is_in_a_bucket_while_it_is_needed(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    tree(tmp_path, "a", "b/c")
    with pytest.raises(KeyboardInterrupt), staged(connected(), tmp_path) as source:
        (name,) = cloud.storage.objects(f"{BUCKET}/source/")
        assert name == f"{BUCKET}/{source.name}"
        known = cloud.storage.get(BUCKET, source.name)
        assert (known.data, known.generation) == (packed(tmp_path), source.generation)
        raise KeyboardInterrupt
    assert cloud.storage.objects() == [], "whatever ends the build"
    with staged(connected(), tmp_path, keep=True):
        pass
    assert len(cloud.storage.objects()) == 1


def test_a_large_source_goes_up_in_pieces_through_503s(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", 10_000)  # for 8 MB
    (tmp_path / "large").write_bytes(random.Random(0).randbytes(30_000))
    cloud.faults.bursts = [("PUT /upload", 503, 1)]
    with staged(connected(), tmp_path) as source:
        assert cloud.storage.get(BUCKET, source.name).data == packed(tmp_path)
    assert [left for *_, left in cloud.faults.bursts] == [0], "it was met"


def test_nothing_of_somebody_else_is_written_to(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "a")
    cloud.storage.make(BUCKET, owner="somebody")
    with pytest.raises(FactoryError, match="belongs to another project") as raised:
        staged(connected(), tmp_path).__enter__()
    assert "staging_bucket" in raised.value.fix
    cloud.storage.make(BUCKET)
    monkeypatch.setattr("time.time", lambda: 1.0)
    monkeypatch.setattr("uuid.uuid4", lambda: type("U", (), {"hex": "same"})())
    cloud.storage.put(BUCKET, "source/1.000000-same.tgz", b"someone else's")
    with pytest.raises(FactoryError, match=f"gs://{BUCKET}: refused"):
        staged(connected(), tmp_path).__enter__()
    assert cloud.storage.get(BUCKET, "source/1.000000-same.tgz").data == b"someone else's"


def test_the_images_that_steps_pushed_are_reported(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    output = json.dumps([{"repository": "h.test/x", "digest": DIGEST, "tags": ["cpu", "cpu-1"]}])
    cloud.build.executor = Script(
        images=(("h.test/x:builder", DIGEST),), outputs=(b"", b"no JSON", output.encode())
    )
    names = ("h.test/x:builder", "h.test/x:cpu", "h.test/x:cpu-1")
    assert run(connected())[0].images == tuple(ReportedImage(name, DIGEST) for name in names)
