"""The order of a submission, on a backend of another distribution that does next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from builder.core import backends, plugins
from builder.core.backends import BackendKind, Flag
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.jobs import request, step
from builder.jobs.backends import choose
from builder.jobs.backends.protocol import JobStatus
from builder.jobs.checks import common
from builder.jobs.description.job import Job
from builder.jobs.ready import JobImage, Ready
from builder.jobs.request import JobRequest
from tests.jobs.slurm import registry


class Toy:
    """A backend that notes what it is asked, and keeps its jobs in memory."""

    title, name, location = "Toy", "toy", "memory"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.jobs: list[JobStatus] = []
        self.refuses = False

    def check(self, job: Job, image: JobImage, targets: Mapping[str, str]) -> Ready:
        self.asked.append("check")
        problems, placements, notes = common(job, image, targets)
        problems.stop()
        return Ready(job, image, "", placements, None, tuple(notes))

    def preflight(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:
        self.asked.append("preflight")
        if self.refuses:
            raise OutsideError("no room", "make some")
        return {}

    def key(self, ready: Ready) -> str:
        return "0123456789ab"

    def render(self, ready: Ready) -> dict[str, Any]:
        return {"image": ready.image.reference}

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        self.asked.append("with_key")
        return tuple(self.jobs)

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:
        self.asked.append("submit")
        image, times = ready.image.reference, (None, None, None)
        job = JobStatus(f"toy/{run}", "cats", "running", *times, "", image, "", (), run=run)
        self.jobs.append(job)
        return job


TOY = Toy()
KIND = BackendKind("toy", "Toy", lambda *_: TOY, (Flag("colour", "its colour."),))


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """The toy's distribution is installed."""
    point = EntryPoint("toy", f"{__name__}:KIND", backends.GROUP)
    monkeypatch.setattr(plugins, "others", lambda group: EntryPoints([point]).select(group=group))
    cached = (backends.names, backends.of, backends.every)
    for function in cached:
        function.cache_clear()
    TOY.__init__()  # type: ignore[misc]
    yield TOY
    for function in cached:
        function.cache_clear()


@pytest.fixture
def image() -> Iterator[str]:
    with registry() as reference:
        yield reference


@pytest.fixture
def asked(tmp_path: Path, image: str) -> JobRequest:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "cats.yaml").write_text(f"image: {image}\nmachine: n1-standard-8\n")
    return JobRequest(tmp_path, "cats", {"backend": "toy"}, Settings())


def test_a_job_is_checked_then_asked_for_then_made_once(
    toy: Toy, asked: JobRequest, image: str
) -> None:
    notes: list[str] = []
    backend, sent = request.submit(asked, on_note=notes.append)
    assert toy.asked == ["check", "preflight", "with_key", "submit"]
    assert backend is toy and sent.created and sent.job.image == image
    assert "no job_dir" in " ".join(notes)
    _, again = request.submit(asked)
    assert (again.created, len(toy.jobs)) == (False, 1)
    _, second = request.submit(asked, again=True)
    assert (second.created, second.job.run) == (True, 2)


def test_a_job_whose_step_does_not_fit_its_slice_is_not_made(
    toy: Toy, asked: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "check", lambda *_: "train compiles for TPU-v5e 4x4")
    notes: list[str] = []
    request.taken(asked, on_note=notes.append)
    assert notes[-1] == "train compiles for TPU-v5e 4x4"

    def refuse(*_: Any) -> None:
        raise CheckFailed("cats: train does not fit TPU-v5e 4x4", "take a smaller batch")

    monkeypatch.setattr(step, "check", refuse)
    for send in (request.submit, request.taken):
        with pytest.raises(CheckFailed, match="does not fit"):
            send(asked)
    assert toy.jobs == [] and "submit" not in toy.asked


def test_a_job_that_is_refused_before_is_not_made_but_what_was_noted_is_told(
    toy: Toy, asked: JobRequest
) -> None:
    toy.refuses = True
    notes: list[str] = []
    with pytest.raises(OutsideError, match="no room"):
        request.submit(asked, on_note=notes.append)
    assert notes and toy.jobs == [] and "with_key" not in toy.asked


def test_a_job_is_rendered_as_its_backend_says_and_nothing_is_asked(
    toy: Toy, asked: JobRequest, image: str
) -> None:
    text = request.prepare(asked).text
    assert text == f'{{\n  "image": "{image}"\n}}\n'
    assert toy.asked == ["check"]


def test_an_option_of_another_backend_is_refused_and_an_unknown_one_names_all(
    tmp_path: Path,
) -> None:
    assert choose.remote(tmp_path, None, {"backend": "toy", "colour": "red"}) is TOY
    with pytest.raises(InputError, match="--colour is an option of --on toy"):
        choose.remote(tmp_path, None, {"backend": "vertex", "colour": "red"})
    with pytest.raises(InputError, match="--on tow: no backend has this name") as unknown:
        choose.remote(tmp_path, None, {"backend": "tow"})
    assert unknown.value.fix == "write one of local, vertex, kubernetes, toy"
