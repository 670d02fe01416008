"""What every backend of jobs must do: the same questions to Vertex AI and Kubernetes.

A new backend is one more fixture here.
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
from builder.jobs import submission, watch
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.cluster import Cluster
from builder.jobs.backends.protocol import JobStatus, LogLine, RemoteBackend
from builder.jobs.backends.vertex.backend import VertexAI
from builder.jobs.backends.vertex.service import Service
from tests.emulators import vertex as emulator
from tests.emulators.kubernetes import server as cluster
from tests.emulators.kubernetes.objects import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import ready as kubernetes_job
from tests.jobs.test_submission import JOB

DONE, FAILS, STAYS = "done", "fails", "stays"
"""What a request's replica does: print `hello` and end, end with 7, or run until it is stopped."""


@dataclass
class Case:
    """A backend, and how a request for it is made: what its replica does, another argument."""

    backend: RemoteBackend
    request: Callable[..., Any]


@pytest.fixture
def vertex() -> Iterator[Case]:
    with ExitStack() as open_:
        server = open_.enter_context(emulator.running())

        def request(does: str, argument: str = "1") -> Any:
            hello = (("workerpool0-0", "hello"),)
            wait = threading.Event() if does == STAYS else None
            code = 7 if does == FAILS else 0
            server.service.executor = emulator.Script(lines=hello, code=code, wait=wait)
            ready = jobfiles.ready(JOB, project=emulator.PROJECT)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        where = Service(emulator.PROJECT, "us-central1", server.grpc, server.rest)
        yield Case(VertexAI(where), request)


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with cluster.running(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))

        def request(does: str, argument: str = "1") -> Any:
            code = {DONE: 0, FAILS: 7, STAYS: None}[does]
            server.objects.script = lambda pod: Script(code=code)
            ready = kubernetes_job(JOB)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        yield Case(Kubernetes(Cluster()), request)


@pytest.fixture(params=["vertex", "kubernetes"])
def case(request: pytest.FixtureRequest) -> Case:
    case: Case = request.getfixturevalue(request.param)
    return case


def send(case: Case, does: str, tmp_path: Path, **more: Any) -> submission.Submitted:
    return submission.submit(case.backend, case.request(does, **more), submission.Memory(tmp_path))


def ended(case: Case, job: JobStatus) -> JobStatus:
    """Return the job after its end."""
    return watch.follow(case.backend, job, lambda line: None, pause=lambda: time.sleep(0.05))


def test_what_is_rendered_names_image_and_arguments_and_starts_nothing(case: Case) -> None:
    request = case.request(DONE, "only-here")
    text = json.dumps(case.backend.render(request))
    assert "only-here" in text
    assert case.backend.with_key(case.backend.key(request)) == () and case.backend.list() == ()


def test_a_job_runs_to_its_end_and_is_found_by_all_its_names(case: Case, tmp_path: Path) -> None:
    sent = send(case, DONE, tmp_path)
    assert sent.created
    job = ended(case, sent.job)
    assert (job.state, job.exit_code, job.active) == ("succeeded", 0, False)
    assert [(pool.role, pool.count) for pool in job.pools] == [("chief", 1)]
    for name in ("cats", job.name):
        assert case.backend.find(name).name == job.name
    assert [each.name for each in case.backend.list("cats")] == [job.name]
    assert case.backend.list("dogs") == ()
    assert [each.name for each in case.backend.with_key(case.backend.key(case.request(DONE)))] == [
        job.name
    ]


def test_the_exit_code_is_the_replicas(case: Case, tmp_path: Path) -> None:
    job = ended(case, send(case, FAILS, tmp_path).job)
    assert (job.state, job.exit_code) == ("failed", 7)


def test_each_line_once_with_its_replica(case: Case, tmp_path: Path) -> None:
    job = send(case, DONE, tmp_path).job
    lines: list[LogLine] = []
    pause = lambda: time.sleep(0.05)  # noqa: E731
    watch.follow(case.backend, job, lines.append, pause=pause)
    assert [line.text for line in lines if line.replica == "chief-0"] == ["hello"]
    only = case.backend.logs(job, "chief-0")
    assert [each.text for each in only.read()] == ["hello"] and only.read() == ()
    assert case.backend.logs(job, "worker-7").read() == ()


def test_a_job_that_runs_is_found_and_not_made_again_until_it_is_asked_for(
    case: Case, tmp_path: Path
) -> None:
    first = send(case, STAYS, tmp_path)
    second = send(case, STAYS, tmp_path)
    assert (second.created, second.job.name) == (False, first.job.name)
    again = submission.submit(
        case.backend, case.request(STAYS), submission.Memory(tmp_path), again=True
    )
    assert (again.created, again.job.run) == (True, 2)
    assert again.job.name != first.job.name
    for each in (first.job, again.job):
        case.backend.cancel(each)
        assert ended(case, each).state == "cancelled"


def test_cancelling_ends_a_job_and_leaves_an_ended_one_alone(case: Case, tmp_path: Path) -> None:
    sent = send(case, STAYS, tmp_path)
    case.backend.cancel(sent.job)
    job = ended(case, sent.job)
    assert (job.state, job.exit_code) == ("cancelled", 143)
    assert case.backend.cancel(job).state == "cancelled"


def test_a_job_that_is_not_there_is_refused_with_a_way_out(case: Case) -> None:
    with pytest.raises(FactoryError) as caught:
        case.backend.find("nowhere")
    assert "nowhere" in caught.value.message and caught.value.fix
