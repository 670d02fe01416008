"""TensorBoard over the folders of jobs: what it is shown, and that it shows it."""

import json
import re
import signal
import subprocess
import sys
import types
import urllib.request
from pathlib import Path

import pytest

from builder.core.errors import InputError, OutsideError
from builder.jobs import tensorboard
from tests import commands


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


def test_jobs_are_found_by_name_folder_and_address_and_shown_with_their_names(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cats = ran / "build/jobs/cats"
    here = {"cats": str(cats), "dogs": str(ran / "build/jobs/dogs")}
    assert tensorboard.sources(ran, ()) == here
    named = tensorboard.sources(ran, ["cats", "gs://mine/jobs/far/", str(cats)])
    assert named == {"cats": str(cats), "far": "gs://mine/jobs/far", "cats+": str(cats)}
    with pytest.raises(InputError, match="bats: this job has not run here") as error:
        tensorboard.sources(ran, ["bats"])
    assert error.value.fix == "known: cats, dogs"
    (ran / "build/jobs/tuned/local").mkdir(parents=True)
    assert list(tensorboard.sources(ran, ())) == ["cats", "dogs", "tuned"]
    (ran / "jobs").mkdir()
    text = "image: cpu\nmachine: n1-standard-4\njob_dir: gs://mine/jobs/far\n"
    (ran / "jobs/far.yaml").write_text(text)
    assert tensorboard.sources(ran, ["far"]) == {"far": "gs://mine/jobs/far"}
    with pytest.raises(InputError, match="no job has run on this machine yet"):
        tensorboard.sources(ran / "nowhere", ())
    shown = tensorboard.sources(ran, ["cats", "dogs", "gs://mine/jobs/far"])
    places = f"cats:{cats}/logs,dogs:{ran}/build/jobs/dogs,far:gs://mine/jobs/far"
    assert tensorboard.spec(shown) == places
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OutsideError, match="reads gs:// with gcsfs") as error:
        tensorboard.serve(shown, "localhost", 0, print)
    assert error.value.fix.endswith(" gcsfs")


@pytest.mark.slow
def test_tensorboard_shows_two_jobs_in_one_view(ran: Path) -> None:
    process = subprocess.Popen(
        [*commands.COMMAND, "tensorboard", "--port=0", "cats", "dogs"],
        cwd=ran,
        env=commands.environment(),
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
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        runs: set[str] = set()
        while len(runs) < 2:  # it loads in the background; the test's time limit is the limit
            with direct.open(f"{address[0]}data/runs") as answer:
                runs = set(json.load(answer))
        assert runs == {"cats/train", "dogs/elsewhere"}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with pytest.raises(OSError, match="refused"):
        direct.open(f"{address[0]}data/runs")
