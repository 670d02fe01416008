"""TensorBoard over folders and buckets: what it is shown, and that it shows it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError, OutsideError
from builder.jobs import tensorboard
from builder.jobs.tensorboard import BucketMirror

ROOT = Path(__file__).resolve().parents[2]


def events(folder: Path, value: float) -> Path:
    """Return an event file with one scalar."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True)
    writer = EventFileWriter(str(folder))
    scalar = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
    writer.add_event(Event(step=1, summary=scalar))
    writer.close()
    (path,) = folder.glob("*tfevents*")
    return path


@pytest.fixture
def ran(project: Path) -> Path:
    """A project with two local jobs: one with logs/, one of another layout."""
    for name, place in (("cats", "logs/train"), ("dogs", "elsewhere")):
        (project / "build/jobs" / name / "local").mkdir(parents=True)
        events(project / "build/jobs" / name / place, 0.5)
    return project


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of Google's storage emulator."""
    from gcp_storage_emulator.server import create_server
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="mine")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    client = storage.Client(project="emulated", credentials=AnonymousCredentials())
    yield client.bucket("mine")
    server.stop()


def test_jobs_are_found_by_name_folder_and_address(ran: Path) -> None:
    cats = ran / "build/jobs/cats"
    here = {"cats": str(cats), "dogs": str(ran / "build/jobs/dogs")}
    assert tensorboard.sources(ran, ()) == here
    named = tensorboard.sources(ran, ["cats", "gs://mine/jobs/far/", str(cats)])
    assert named == {"cats": str(cats), "far": "gs://mine/jobs/far", "cats+": str(cats)}
    with pytest.raises(InputError, match="bats: this job has not run here") as error:
        tensorboard.sources(ran, ["bats"])
    assert error.value.fix == "known: cats, dogs"


def test_a_study_is_one_of_the_jobs_and_a_bucket_is_named_by_a_description(ran: Path) -> None:
    (ran / "build/jobs/tuned/1/local").mkdir(parents=True)
    (ran / "build/jobs/tuned/study.json").write_text("{}")
    assert list(tensorboard.sources(ran, ())) == ["cats", "dogs", "tuned"]
    (ran / "jobs").mkdir()
    text = "image: cpu\nmachine: n1-standard-4\njob_dir: gs://mine/jobs/far\n"
    (ran / "jobs/far.yaml").write_text(text)
    assert tensorboard.sources(ran, ["far"]) == {"far": "gs://mine/jobs/far"}


def test_no_job_at_all_is_a_clear_line(project: Path) -> None:
    with pytest.raises(InputError, match="no job has run on this machine yet"):
        tensorboard.sources(project, ())


def test_a_view_is_a_link_a_job_and_runs_are_called_by_it(ran: Path) -> None:
    with tensorboard.view(tensorboard.sources(ran, ()), print) as logs:
        assert (logs / "cats").resolve() == ran / "build/jobs/cats/logs"
        assert (logs / "dogs").resolve() == ran / "build/jobs/dogs"
    assert not logs.exists()


def test_a_bucket_is_copied_event_files_only_and_again_when_they_grow(
    bucket: Any, tmp_path: Path
) -> None:
    local = events(tmp_path / "made", 0.5)
    content = local.read_bytes()
    bucket.blob(f"jobs/far/logs/train/{local.name}").upload_from_string(content[:30])
    bucket.blob("jobs/far/model/saved_model.pb").upload_from_string("large")
    bucket.blob("jobs/far2/logs/events.out.tfevents.1.x").upload_from_string("another job")
    mirror = BucketMirror("gs://mine/jobs/far", tmp_path / "copy")
    assert mirror.update() == 1
    copy = tmp_path / "copy/logs/train" / local.name
    assert copy.read_bytes() == content[:30]
    inode = copy.stat().st_ino
    bucket.blob(f"jobs/far/logs/train/{local.name}").upload_from_string(content)
    assert mirror.update() == 1
    assert (copy.read_bytes(), copy.stat().st_ino) == (content, inode), "it grew in place"
    assert len([path for path in (tmp_path / "copy").rglob("*") if path.is_file()]) == 1
    with pytest.raises(OutsideError, match="gs://nobodys/jobs: Cloud Storage refused"):
        BucketMirror("gs://nobodys/jobs", tmp_path).update()


@pytest.mark.slow
def test_tensorboard_shows_a_local_job_and_one_in_a_bucket(ran: Path, bucket: Any) -> None:
    local = next((ran / "build/jobs/cats").rglob("*tfevents*"))
    bucket.blob(f"jobs/far/validation/{local.name}").upload_from_string(local.read_bytes())
    command = [sys.executable, "-c", "from builder.cli import main; main()", "tensorboard"]
    process = subprocess.Popen(
        [*command, "--port=0", "cats", "gs://mine/jobs/far"],
        cwd=ran,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if address := re.search(r"http://\S+", line):
                break
        else:
            pytest.fail(said)
        assert "gs://mine/jobs/far: 1 event files" in said
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        runs: set[str] = set()
        while len(runs) < 2:  # it loads in the background; the test's time limit is the limit
            with direct.open(f"{address[0]}data/runs") as answer:
                runs = set(json.load(answer))
        assert runs == {"cats/train", "far/validation"}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with pytest.raises(OSError, match="refused"):
        direct.open(f"{address[0]}data/runs")
