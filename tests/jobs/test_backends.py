"""What every backend of jobs must do: the same questions to Vertex AI, Kubernetes and Slurm.

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
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.backends.protocol import JobStatus, LogLine, RemoteBackend
from builder.jobs.backends.vertex.backend import VertexAI
from tests.emulators import kubernetes as cluster
from tests.emulators import slurm as batch
from tests.emulators import vertex as emulator
from tests.emulators.kubernetes import Script
from tests.jobs import jobfiles
from tests.jobs.clusters import ready as kubernetes_job
from tests.jobs.conftest import JOB
from training_slurm.backend import Slurm
from training_slurm.options import SlurmSettings

WORKER = "replicas: {workers: 1}\n"
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
            ready = jobfiles.ready(JOB + WORKER, project=emulator.PROJECT)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        where = server.where
        yield Case(VertexAI(where), request)


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with cluster.running(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))

        def request(does: str, argument: str = "1") -> Any:
            code = {DONE: 0, FAILS: 7, STAYS: None}[does]
            server.objects.script = lambda pod: Script(code=code)
            ready = kubernetes_job(JOB + WORKER)
            return replace(ready, job=ready.job.model_copy(update={"arguments": (argument,)}))

        yield Case(Kubernetes(Cluster()), request)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with batch.running(tmp_path / "slurm") as server:
        monkeypatch.setenv("PATH", server.path)
        backend = Slurm(SlurmSettings(), tmp_path / "shared")

        def request(does: str, argument: str = "1") -> Any:
            server.does(code=7 if does == FAILS else 0, stays=does == STAYS)
            job = jobfiles.job(JOB + WORKER).model_copy(update={"arguments": (argument,)})
            image = replace(jobfiles.image(), entrypoint=("python3", "-m", "trainer.task"))
            return backend.check(job, image, jobfiles.TARGETS)

        yield Case(backend, request)


@pytest.fixture(params=["vertex", "kubernetes", "slurm"])
def case(request: pytest.FixtureRequest) -> Case:
    case: Case = request.getfixturevalue(request.param)
    return case


def send(case: Case, does: str, tmp_path: Path, **more: Any) -> submission.Submitted:
    return submission.submit(case.backend, case.request(does, **more), submission.Memory(tmp_path))


def ended(case: Case, job: JobStatus, lines: list[LogLine] | None = None) -> JobStatus:
    """Return the job after its end. lines: gets what it prints."""
    write = [].append if lines is None else lines.append
    return watch.follow(case.backend, job, write, pause=lambda: time.sleep(0.05))


def test_what_is_rendered_starts_nothing_and_a_job_is_found_by_all_its_names(
    case: Case, tmp_path: Path
) -> None:
    request = case.request(DONE, "only-here")
    rendered = json.dumps(case.backend.render(request))
    assert "only-here" in rendered and "V100:2,capab" in rendered
    assert case.backend.with_key(case.backend.key(request)) == () and case.backend.list() == ()
    sent = send(case, DONE, tmp_path)
    assert sent.created
    lines: list[LogLine] = []
    job = ended(case, sent.job, lines)
    assert [line.text for line in lines if line.replica == "chief-0"] == ["hello"]
    log = case.backend.logs(job)
    assert "hello" in [each.text for each in log.read()] and log.read() == ()
    assert (job.state, job.exit_code, job.active) == ("succeeded", 0, False)
    assert [(pool.role, pool.count) for pool in job.pools] == [("chief", 1), ("worker", 1)]
    assert job.image == f"{jobfiles.REPOSITORY}@{jobfiles.DIGEST}"  # by digest, never by tag
    assert job.output == f"gs://my-bucket/jobs/{job.display_name}"
    for name in ("cats", job.name):
        assert case.backend.find(name).name == job.name
    assert [each.name for each in case.backend.list("cats")] == [job.name]
    assert case.backend.list("dogs") == ()
    assert [each.name for each in case.backend.with_key(case.backend.key(case.request(DONE)))] == [
        job.name
    ]


def test_a_job_that_failed_has_its_replicas_exit_code_and_is_made_anew_in_its_folder(
    case: Case, tmp_path: Path
) -> None:
    job = ended(case, send(case, FAILS, tmp_path).job)
    assert (job.state, job.exit_code) == ("failed", 7)
    second = send(case, FAILS, tmp_path)
    assert second.created and second.job.name != job.name
    assert second.job.output == job.output  # where the trainer finds its checkpoints


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
        job = ended(case, case.backend.cancel(each))
        assert (job.state, job.exit_code) == ("cancelled", 143)
        assert case.backend.cancel(job).state == "cancelled"  # an ended one is left alone


def test_a_job_that_is_not_there_is_refused_with_a_way_out(case: Case) -> None:
    with pytest.raises(FactoryError) as caught:
        case.backend.find("nowhere")
    assert "nowhere" in caught.value.message and caught.value.fix
