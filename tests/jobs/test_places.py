"""What every place must do: the same questions to this machine, Vertex AI and Kubernetes.

A new place is one more fixture here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import FactoryError
from builder.jobs import following, submission
from builder.jobs.places.kubernetes import kubeconfig
from builder.jobs.places.kubernetes.api import Api
from builder.jobs.places.kubernetes.cluster import Cluster
from builder.jobs.places.kubernetes.place import Kubernetes
from builder.jobs.places.local.place import ThisMachine
from builder.jobs.places.local.replicas import LocalJob
from builder.jobs.places.protocol import JobStatus, LogLine, Place
from builder.jobs.places.vertex.place import VertexAI
from builder.jobs.places.vertex.service import Service
from tests.emulators import vertex as emulator
from tests.emulators.kubernetes import server as cluster
from tests.emulators.kubernetes.kubelet import Script, Scripted
from tests.jobs import jobfiles
from tests.jobs.test_job_local import shell  # noqa: F401
from tests.jobs.test_kubernetes import ready as kubernetes_job
from tests.jobs.test_submission import JOB

DONE, FAILS, STAYS = "done", "fails", "stays"
"""What a request's replica does: print `hello` and end, end with 7, or run until it is stopped."""


@dataclass
class Case:
    """A place, and how a request for it is made: what its replica does, and another argument."""

    place: Place[Any]
    request: Callable[..., Any]


@pytest.fixture
def vertex() -> Iterator[Case]:
    with ExitStack() as open_:
        found = open_.enter_context(emulator.running())

        def request(does: str, argument: str = "1") -> Any:
            hello = (("workerpool0-0", "hello"),)
            wait = threading.Event() if does == STAYS else None
            code = 7 if does == FAILS else 0
            found.service.executor = emulator.Script(lines=hello, code=code, wait=wait)
            ready = jobfiles.ready(JOB, project=emulator.PROJECT)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        where = Service(emulator.PROJECT, "us-central1", found.grpc, found.rest, "grpc")
        yield Case(VertexAI(where), request)


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Case]:
    script = Script()
    with cluster.running(tmp_path, Scripted(lambda pod: script)) as found:

        def request(does: str, argument: str = "1") -> Any:
            script.wait = threading.Event() if does == STAYS else None
            script.code = 7 if does == FAILS else 0
            ready = kubernetes_job(JOB)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        access = kubeconfig.load(None, {"KUBECONFIG": str(found.kubeconfig())})
        yield Case(Kubernetes(Api(access), Cluster()), request)


@pytest.fixture
def local(request: pytest.FixtureRequest, project: Path) -> Case:
    image = request.getfixturevalue("shell")
    scripts = {
        DONE: "echo hello",
        FAILS: "echo hello; exit 7",
        STAYS: "trap 'exit 0' TERM; echo hello; while :; do sleep 0.1; done",
    }

    def make(does: str, argument: str = "1") -> LocalJob:
        arguments = (f"{scripts[does]} # {argument}",)
        folder = project / "build" / "jobs" / "cats"
        return LocalJob("cats", image, folder, arguments=arguments, grace=5.0, shm=1 << 26)

    return Case(ThisMachine(project, request.getfixturevalue("engine")), make)


@pytest.fixture(
    params=["vertex", "kubernetes", pytest.param("local", marks=pytest.mark.engine)],
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


def send(case: Case, does: str, tmp_path: Path, **more: Any) -> submission.Submitted:
    return submission.submit(case.place, case.request(does, **more), locks=tmp_path)


def ended(case: Case, job: JobStatus) -> JobStatus:
    return following.wait(case.place, job, poll=0.05, timeout=60)


def test_what_is_rendered_names_image_and_arguments_and_starts_nothing(case: Case) -> None:
    request = case.request(DONE, "only-here")
    text = json.dumps(case.place.render(request))
    assert "only-here" in text
    assert case.place.same(request) == [] and case.place.newest() == ()


def test_one_key_for_the_same_job_and_another_for_another(case: Case) -> None:
    one, other = case.request(DONE, "1"), case.request(DONE, "2")
    assert case.place.key(one) == case.place.key(case.request(DONE, "1")) != case.place.key(other)
    assert case.place.name_of(one) == "cats"


def test_a_job_runs_to_its_end_and_is_found_by_all_its_names(case: Case, tmp_path: Path) -> None:
    sent = send(case, DONE, tmp_path)
    assert sent.created
    job = ended(case, sent.job)
    assert (job.state, job.exit_code, job.active) == ("succeeded", 0, False)
    assert [(pool.role, pool.count) for pool in job.pools] == [("chief", 1)]
    for name in ("cats", job.name):
        assert case.place.find(name).name == job.name
    assert [one.name for one in case.place.newest("cats")] == [job.name]
    assert case.place.newest("dogs") == ()
    assert [one.name for one in case.place.same(case.request(DONE))] == [job.name]


def test_the_exit_code_is_the_replicas(case: Case, tmp_path: Path) -> None:
    job = ended(case, send(case, FAILS, tmp_path).job)
    assert (job.state, job.exit_code) == ("failed", 7)


def test_each_line_once_with_its_replica(case: Case, tmp_path: Path) -> None:
    job = send(case, DONE, tmp_path).job
    lines: list[LogLine] = []
    pause = lambda: time.sleep(0.05)  # noqa: E731
    following.follow(case.place, job, lines.append, pause=pause)
    assert [one.text for one in lines if one.replica == "chief-0"] == ["hello"]
    only = case.place.log(job, "chief-0")
    assert [one.text for one in only.new()] == ["hello"] and only.new() == ()
    assert case.place.log(job, "worker-7").new() == ()
    assert all(one.replica == "chief-0" for one in case.place.usage(job).new())


def test_a_job_that_runs_is_found_and_not_made_again_until_it_is_asked_for(
    case: Case, tmp_path: Path
) -> None:
    first = send(case, STAYS, tmp_path)
    second = send(case, STAYS, tmp_path)
    assert (second.created, second.job.name) == (False, first.job.name)
    again = submission.submit(case.place, case.request(STAYS), locks=tmp_path, again=True)
    assert (again.created, again.job.run) == (True, 2)
    assert again.job.name != first.job.name
    for one in (first.job, again.job):
        case.place.cancel(one)
        assert ended(case, one).state == "cancelled"


def test_cancelling_ends_a_job_and_leaves_an_ended_one_alone(case: Case, tmp_path: Path) -> None:
    sent = send(case, STAYS, tmp_path)
    case.place.cancel(sent.job)
    job = ended(case, sent.job)
    assert (job.state, job.exit_code) == ("cancelled", 143)
    assert case.place.cancel(job).state == "cancelled"


def test_a_job_that_is_not_there_is_refused_with_a_way_out(case: Case) -> None:
    with pytest.raises(FactoryError) as caught:
        case.place.find("nowhere")
    assert "nowhere" in caught.value.message and caught.value.fix
