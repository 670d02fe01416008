"""Builds in the cloud against a loopback service that speaks the product's protocols."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from google.cloud.devtools import cloudbuild_v1 as api

from builder.cloudbuild import submission
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.reader import buildfile
from builder.cloudbuild.submission import Finished, follow
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import Event, StepDone, StepStarted
from builder.core.settings import CloudSettings
from tests.emulators.cloud_build import LoopbackCloud, Script, Status
from tests.emulators.web import LoopbackServer

Connect = Callable[..., Clients]
GCS = api.BuildOptions.LoggingMode.GCS_ONLY
LOGGING = api.BuildOptions.LoggingMode.CLOUD_LOGGING_ONLY
DIGEST = "sha256:" + "a" * 64


def build(logging: object = GCS, **fields: object) -> api.Build:
    step = api.BuildStep(name="busybox", id="say")
    return api.Build(steps=[step], options=api.BuildOptions(logging=logging), **fields)


def run(clients: Clients, one: api.Build | None = None) -> tuple[Finished, list[str]]:
    lines: list[str] = []
    made = submission.create(clients, one or build(), sleep=lambda _: None)
    return submission.watch(clients, made, lines.append, sleep=lambda _: None), lines


SPOKEN = tuple(f"line {number} ✓" for number in range(200))


@pytest.mark.parametrize("logging", [GCS, LOGGING])
def test_a_build_is_created_followed_and_ends(
    cloud: LoopbackCloud, connected: Connect, transport: str, logging: object
) -> None:
    cloud.build.executor = Script(SPOKEN, seconds=0.0005)
    done, lines = run(connected(transport), build(logging))
    assert done.status == "SUCCESS"
    assert lines == list(SPOKEN)
    assert done.note == ""
    spoken = {call.split()[0] == "grpc" for call in cloud.build.calls if "uild" in call}
    assert (transport == "grpc") in spoken


def test_its_steps_are_told_as_events(cloud: LoopbackCloud, connected: Connect) -> None:
    events: list[Event] = []
    clients = connected()
    made = submission.create(clients, build())
    submission.watch(clients, made, on_event=events.append, sleep=lambda _: None)
    assert [event for event in events if event.name == "say"] == [StepStarted("say"), events[-1]]
    assert isinstance(events[-1], StepDone)


def test_a_log_of_last_week_is_read(cloud: LoopbackCloud, connected: Connect) -> None:
    clients = connected()
    done, said = run(clients, build(LOGGING))
    for entry in cloud.build.entries:
        entry["timestamp"] = "2020-01-01T00:00:00Z"
    lines: list[str] = []
    submission.watch(clients, submission.get(clients, done.id), lines.append)
    assert lines == said != []


@pytest.mark.parametrize("logging_status", [None, 403])
def test_a_log_that_may_not_be_read_is_never_a_failed_build(
    cloud: LoopbackCloud, connected: Connect, logging_status: int | None
) -> None:
    cloud.build.executor = Script(SPOKEN)
    cloud.faults.log_status, cloud.faults.logging_status = 403, logging_status
    done, lines = run(connected())
    assert submission.judged(done).status == "SUCCESS"
    assert lines == ([] if logging_status else list(SPOKEN))
    assert "may not be read (HTTP 403)" in done.note


def test_bursts_of_503_cost_nothing_but_time(cloud: LoopbackCloud, connected: Connect) -> None:
    cloud.build.executor = Script(SPOKEN, seconds=0.001)
    cloud.faults.bursts = [("GET /v1/.*builds/", 503, 5), ("GET /.*log-", 503, 5)]
    done, lines = run(connected())
    assert done.status == "SUCCESS"
    assert lines == list(SPOKEN)
    assert [left for *_, left in cloud.faults.bursts] == [0, 0]


def test_a_service_that_is_not_heard_of_any_more_is_left_and_the_build_goes_on(
    cloud: LoopbackCloud, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.build.executor = Script(wait=threading.Event())
    clients = connected()
    made = submission.create(clients, build())
    monkeypatch.setattr(follow, "OUT_OF_TOUCH", 0.0)
    cloud.faults.bursts = [("GET /v1/.*builds/", 503, 10_000)]
    with pytest.raises(OutsideError, match="it goes on") as raised:
        submission.watch(clients, made, sleep=lambda _: None)
    assert raised.value.fix == f"builder cloud logs {made.id}"
    assert cloud.build.builds[made.id].status not in (Status.CANCELLED, Status.FAILURE)


def test_a_connection_that_is_cut_in_the_middle_of_a_log(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.build.executor = Script(SPOKEN)
    cloud.faults.cut_log = (7, 60)
    done, lines = run(connected())
    assert done.status == "SUCCESS"
    assert lines == list(SPOKEN)
    assert cloud.faults.cut_log == (7, 0)


def test_a_create_whose_answer_was_lost_is_not_sent_twice(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.faults.cut_create = 1
    done, _ = run(connected())
    assert done.status == "SUCCESS"
    assert list(cloud.build.builds) == [done.id]


def test_a_create_that_never_arrived_is_sent_again(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    cloud.faults.bursts = [("POST .*/builds$", 503, 2)]
    done, _ = run(connected())
    assert list(cloud.build.builds) == [done.id]


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (Status.FAILURE, CheckFailed, "failed in say"),
        (Status.TIMEOUT, OutsideError, "took longer than its timeout"),
        (Status.EXPIRED, OutsideError, "waited in the queue longer"),
        (Status.INTERNAL_ERROR, OutsideError, "internal error of Cloud Build"),
    ],
)
def test_a_build_that_did_not_succeed_is_an_error(
    cloud: LoopbackCloud,
    connected: Connect,
    status: Status,
    error: type[Exception],
    said: str,
) -> None:
    cloud.build.executor = Script(ok=status != Status.FAILURE)
    cloud.faults.end_as = status
    done, lines = run(connected())
    assert lines == ["Starting", "Done"], "its log is shown all the same"
    with pytest.raises(error, match=said):
        submission.judged(done)


def test_one_that_stays_queued_can_be_cancelled(cloud: LoopbackCloud, connected: Connect) -> None:
    cloud.faults.stay_queued = True
    clients = connected()
    made = submission.create(clients, build())
    polls = 0

    def sleep(_: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 5:
            assert submission.status(submission.get(clients, made.id)) == "QUEUED"
            submission.cancel(clients, made.id)

    done = submission.watch(clients, made, sleep=sleep)
    assert done.status == "CANCELLED"
    with pytest.raises(OutsideError, match="was cancelled"):
        submission.judged(done)


def test_a_running_one_is_cancelled_and_retried(cloud: LoopbackCloud, connected: Connect) -> None:
    cloud.build.executor = Script(wait=threading.Event())
    clients = connected()
    made = submission.create(clients, build())
    submission.cancel(clients, made.id)
    assert submission.watch(clients, made, sleep=lambda _: None).status == "CANCELLED"
    cloud.build.executor = Script(("again",))
    again = submission.retry(clients, made.id)
    assert again.id != made.id
    assert submission.watch(clients, again, sleep=lambda _: None).status == "SUCCESS"
    assert {one.id for one in submission.listed(clients)} == {made.id, again.id}


def test_digests_come_from_images_and_from_what_steps_pushed(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    pushed = json.dumps([{"repository": "h.test/a/b", "digest": DIGEST, "tags": ["cpu", "cpu-1"]}])
    cloud.build.executor = Script(
        images=(("h.test/a/b:builder", DIGEST),), outputs=(b"", b"no JSON", pushed.encode())
    )
    done, _ = run(connected())
    assert {image.name for image in done.images} == {
        "h.test/a/b:builder",
        "h.test/a/b:cpu",
        "h.test/a/b:cpu-1",
    }
    assert done.images[0].reference == f"h.test/a/b@{DIGEST}"


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, str]]]:
    """A registry's answer to HEAD, as HOST:PORT, and tag -> digest."""
    tags: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            digest = tags.get(self.path.rsplit("/", 1)[-1])
            self.send_response(200 if digest else 404)
            if digest:
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", tags
    server.shutdown()
    server.server_close()


def test_a_digest_is_compared_with_the_registry_s_and_a_tampered_one_is_caught(
    cloud: LoopbackCloud, connected: Connect, registry: tuple[str, dict[str, str]]
) -> None:
    host, tags = registry
    output = json.dumps([{"repository": f"{host}/team/x", "digest": DIGEST, "tags": ["cpu"]}])
    cloud.build.executor = Script(
        images=((f"{host}/team/x:builder", DIGEST),), outputs=(output.encode(),)
    )
    tags.update(cpu=DIGEST, builder=DIGEST)
    done = submission.compared(run(connected())[0])
    assert [(image.registry, image.digest) for image in done.images] == [(DIGEST, DIGEST)] * 2
    assert done.note == ""
    tags["cpu"] = "sha256:" + "b" * 64
    with pytest.raises(CheckFailed, match=r"cpu: the build says sha256:a+, the registry sha256:b"):
        submission.compared(done)
    del tags["cpu"]
    with pytest.raises(CheckFailed, match="that it has no such image"):
        submission.compared(done)
    tags["cpu"] = DIGEST
    cloud.faults.tampered = True
    with pytest.raises(CheckFailed, match="the build says sha256:0000"):
        submission.compared(run(connected())[0])


def test_a_registry_that_cannot_be_asked_is_a_note(
    cloud: LoopbackCloud, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OutsideError("127.0.0.1:9: no answer")

    monkeypatch.setattr("builder.registry.Registry.head", refuse)
    cloud.build.executor = Script(images=(("127.0.0.1:9/team/x:cpu", DIGEST),))
    done = submission.compared(submission.judged(run(connected())[0]))
    assert done.images[0].registry is None
    assert done.note == "digests not compared: 127.0.0.1:9: no answer"


# What the service refuses -------------------------------------------------------------------------


def test_a_project_without_the_api(cloud: LoopbackCloud, connected: Connect) -> None:
    cloud.faults.disabled = True
    with pytest.raises(OutsideError) as raised:
        submission.create(connected(), build())
    assert "the API cloudbuild.googleapis.com is not enabled" in raised.value.message
    assert raised.value.fix.startswith("run: gcloud services enable cloudbuild.googleapis.com")
    assert "\n" not in raised.value.message


def test_a_build_over_a_limit_and_an_unused_substitution(
    cloud: LoopbackCloud, connected: Connect, transport: str
) -> None:
    clients = connected(transport)
    many = api.Build(steps=[api.BuildStep(name="busybox")] * 301)
    with pytest.raises(OutsideError, match="too many build steps"):
        submission.create(clients, many)
    with pytest.raises(OutsideError, match=r"_NO_ONE.*not matched"):
        submission.create(clients, build(substitutions={"_NO_ONE": "reads this"}))


def test_a_commit_that_the_file_does_not_use_is_refused_as_any_substitution(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    with pytest.raises(OutsideError, match=r'"COMMIT_SHA" in the substitution data is not matched'):
        submission.create(connected(), build(substitutions={"COMMIT_SHA": "0" * 40}))


def test_a_build_that_nobody_knows(connected: Connect, transport: str) -> None:
    with pytest.raises(OutsideError, match="build no-such: not found"):
        submission.get(connected(transport), "no-such")


# What is sent -------------------------------------------------------------------------------------

COMMIT = {"COMMIT_SHA": "a" * 40, "SHORT_SHA": "a" * 7, "BRANCH_NAME": "main", "REPO_NAME": "r"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("steps: [{name: a}]", set()),
        (
            "steps: [{name: a, args: [$SHORT_SHA]}]\ntags: ['$BRANCH_NAME']",
            {"SHORT_SHA", "BRANCH_NAME"},
        ),
        ("steps: [{name: a, script: 'echo $COMMIT_SHA'}]", set()),
        ("steps: [{name: a, args: [$$COMMIT_SHA]}]", set()),
        ("steps: [{name: a, args: ['${COMMIT_SHA:0:4}']}]", set()),
        (
            "steps: [{name: a, args: ['${COMMIT_SHA:0:4}']}]\n"
            "options: {dynamicSubstitutions: true}",
            {"COMMIT_SHA"},
        ),
        (
            "steps: [{name: a, args: [$_V]}]\nsubstitutions: {_V: 'v-$SHORT_SHA'}\n"
            "options: {dynamicSubstitutions: true}",
            {"SHORT_SHA"},
        ),
        ("steps: [{name: a, script: x, automapSubstitutions: true}]", set(COMMIT)),
        ("steps: [{name: a, script: x}]\noptions: {automapSubstitutions: true}", set(COMMIT)),
        (
            "steps: [{name: a, script: x, automapSubstitutions: false}]\n"
            "options: {automapSubstitutions: true}",
            set(),
        ),
    ],
)
def test_of_a_commit_only_what_the_file_uses_is_sent(text: str, sent: set[str]) -> None:
    file = buildfile.parse(text, Path("c.yaml"))
    assert submission.values(file, (), None, "global", COMMIT, {}) == {
        name: COMMIT[name] for name in sent
    }


# What the settings add ----------------------------------------------------------------------------

ACCOUNT = "builder@my-project.iam.gserviceaccount.com"


def test_a_service_account_gets_a_log_that_it_may_write(
    cloud: LoopbackCloud, connected: Connect
) -> None:
    settings = CloudSettings(project="my-project", service_account=ACCOUNT)
    plain = api.Build(steps=[api.BuildStep(name="busybox")])
    made = submission.prepared(plain, settings, {})
    assert made.service_account == f"projects/my-project/serviceAccounts/{ACCOUNT}"
    assert made.options.logging == LOGGING
    assert plain.service_account == ""
    assert run(connected(), made)[0].status == "SUCCESS", "the service takes it"
    default = CloudSettings(service_account="123-compute@developer.gserviceaccount.com")
    assert submission.prepared(plain, default, {}).service_account == (
        "projects/123/serviceAccounts/123-compute@developer.gserviceaccount.com"
    )
    made.options.logging = api.BuildOptions.LoggingMode.LEGACY
    with pytest.raises(OutsideError, match="service_account"):
        submission.create(connected(), made)


def test_a_service_account_with_gcs_only_needs_a_bucket() -> None:
    settings = CloudSettings(service_account=ACCOUNT, logging="GCS_ONLY")
    with pytest.raises(InputError, match="needs a logs bucket"):
        submission.prepared(build(), settings, {})


def test_a_worker_pool_has_machines_of_its_own() -> None:
    settings = CloudSettings(project="p-1", region="europe-west4", worker_pool="mine")
    file = build()
    file.options.machine_type = api.BuildOptions.MachineType.E2_HIGHCPU_8
    file.options.disk_size_gb = 200
    made = submission.prepared(file, settings, {})
    assert made.options.pool.name == "projects/p-1/locations/europe-west4/workerPools/mine"
    assert made.options.machine_type == 0
    assert made.options.disk_size_gb == 0
    settings = CloudSettings(machine_type="E2_HIGHCPU_32", region="europe-west4")
    assert submission.prepared(file, settings, {}).options.machine_type.name == "E2_HIGHCPU_32"
    assert submission.prepared(made, settings, {}).options.machine_type == 0, "the file's own pool"


@pytest.mark.parametrize("region", ["global", "us-east1"])
def test_a_worker_pool_of_another_region_is_refused_before_the_source_is_staged(
    region: str,
) -> None:
    pool = "projects/p-1/locations/europe-west4/workerPools/mine"
    settings = CloudSettings(project="p-1", region=region, worker_pool=pool)
    with pytest.raises(InputError, match=f"pool is in europe-west4, .* run in {region}") as raised:
        submission.prepared(build(), settings, {})
    assert raised.value.fix.startswith('write region = "europe-west4" below [cloud]')
