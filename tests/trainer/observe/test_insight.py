"""The account of a run: it adds up, goes on after restarts, and shows what was lost."""

import errno
import json
import os
import signal
import time
import types
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tests.trainer.runs import Process
from trainer import task
from trainer.config import parse
from trainer.loop.distribution import Cluster
from trainer.observe import insight
from trainer.observe.ledger import Ledger

pytestmark = pytest.mark.tensorflow


def summary(job: Path) -> dict:
    return json.loads((job / "summary.json").read_text())


def adds_up(time: dict) -> None:
    """Its parts add up to the wall clock, and little of it is unexplained."""
    assert sum(time["seconds"].values()) == pytest.approx(time["wall_seconds"])
    assert sum(time["work_seconds"].values()) == pytest.approx(time["wall_seconds"])
    assert sum(time["shares"].values()) == pytest.approx(1)
    assert time["unexplained_share"] < 0.1


@pytest.mark.slow
def test_the_account_of_a_job_that_was_killed_and_started_again(
    tmp_path: Path, start: type[Process]
) -> None:
    options = ("--steps", 400, "--batch", 8, "--checkpoint-every", 100, "--steps-per-loop", 10)
    options += ("--histograms-every", 0)
    began = time.monotonic()
    first = start(tmp_path, *options)
    first.until("checkpoint", 100)
    reached = first.until("step", 160)["step"]
    first.send(signal.SIGKILL)
    assert first.end() == -signal.SIGKILL
    killed_after = time.monotonic() - began
    began = time.monotonic()
    second = start(tmp_path, *options)
    resumed = second.until("resumed")["step"]
    second.until("done")
    wall = time.monotonic() - began
    assert second.end() == 0

    found = summary(tmp_path)
    adds_up(found["time"])
    assert (found["outcome"], found["step"]) == ("done", 400)
    assert found["time"]["attempts"] == 2
    # The journal is written every few seconds, so the lost steps are at most those seen.
    lost = found["time"]["lost_steps"]
    assert 0 <= lost <= reached - resumed + 20
    # Both attempts, without what the first one did after its last entry in the journal.
    measured = found["time"]["wall_seconds"]
    assert 0.98 * wall < measured < (wall + killed_after) * 1.02

    log = EventAccumulator(str(tmp_path / "logs/train"), {"tensors": 0})
    log.Reload()
    steps = [event.step for event in log.Tensors("loss")]
    assert steps == list(range(1, 401))  # each once, whatever was made twice


def test_steps_made_again_after_a_recovery_are_lost_work() -> None:
    """Back from step 30 to the checkpoint of step 10, in the same process."""
    clock = [0.0]
    ledger = Ledger(lambda: clock[0])
    config = parse(["--records", "r", "--job-dir", "ram://account"], {})
    position = types.SimpleNamespace(step=0)
    place = Cluster()
    run = types.SimpleNamespace(ledger=ledger, config=config, position=position, place=place)
    board = insight.Board()
    account = insight.Account(board, None, None)
    account.begin(run)

    def steps(first: int, count: int, seconds: float = 1.0) -> None:
        with ledger.spend("compute"):
            clock[0] += count * seconds
        position.step = first + count - 1
        account.steps(run, first, {"seconds": np.full(count, seconds, np.float32)})

    steps(1, 1)  # compiling
    steps(2, 9)
    account.saved(run, 10, 0.0)
    steps(11, 20)
    steps(11, 20)  # again
    steps(31, 5)
    assert ledger.report()["work_seconds"] == {"useful": 9 + 20 + 5, "lost": 20, "overhead": 1}
    assert account.state()["lost_steps"] == 20


def test_a_run_that_diverged_or_failed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.trainer.runs import SMOKE

    arguments = ["--records", str(SMOKE), "--job-dir", str(tmp_path), "--steps", "50"]
    arguments += ["--batch", "8", "--optimizer", "sgd", "--learning-rate", "1e20"]
    assert task.main(arguments) == 4
    found = summary(tmp_path)
    assert found["outcome"] == "diverged"
    adds_up(found["time"])


def test_a_full_disk_at_the_end_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(insight.storage, "write", full)
    account = insight.Account(insight.Board(), None, None)
    monkeypatch.setattr(account, "summary", lambda run: {"step": 3})
    config = parse(["--records", "r", "--job-dir", "job"], {})
    position = types.SimpleNamespace(step=3)
    place, ledger = Cluster(), Ledger()
    run = types.SimpleNamespace(config=config, place=place, position=position, ledger=ledger)
    account.end(run, "fault")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["journal", "summary"]
    assert "summary.json cannot be written: " in lines[1]["message"]
    assert "No space left on device" in lines[1]["message"]
    assert not any("traceback" in line for line in lines)


def test_observers_agree_on_where_a_call_ends_on_every_rank() -> None:
    """A decision of one rank alone would leave the others waiting for ever."""
    config = parse(
        ["--records", "r", "--job-dir", "j", "--profile-steps", "7,9", "--histograms-every", "4"],
        {},
    )
    chief = insight.observers(config, Cluster(2, 0, "chief"))
    worker = insight.observers(config, Cluster(2, 1, "worker", 0))
    for step in range(30):
        asked = [[one.until(step) for one in ranks] for ranks in (chief, worker)]
        assert asked[0] == asked[1]
    profile = next(one for one in chief if type(one).__name__ == "Profile")
    assert [profile.until(step) for step in (0, 5, 6, 8, 9)] == [6, 6, 7, 9, None]


def test_few_lines_about_a_long_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import types

    import numpy as np

    now = [0.0]
    monkeypatch.setattr("trainer.observe.insight.time.monotonic", lambda: now[0])
    config = parse(["--records", "r", "--job-dir", "j", "--batch", "10"], {})
    position = types.SimpleNamespace(step=0, epoch=0.0)
    run = types.SimpleNamespace(config=config, position=position, place=Cluster(), steps=10_000)
    progress = insight.Progress()
    for call in range(10_000):
        now[0] += 0.25
        position.step = call + 1
        metrics = {"loss": np.array([call], np.float32), "seconds": np.array([0.25])}
        progress.steps(run, call + 1, metrics)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(told) == 100 + (10_000 - 100) * 0.25 // 10 + 1
    assert (told[-1]["step"], told[-1]["eta_seconds"]) == (10_000, 0)
    assert told[0]["examples_per_second"] == 40
    # Each line covers all steps since the line before.
    assert told[100]["loss"] == np.mean(range(100, told[100]["step"]))


def test_what_json_does_not_know_becomes_text() -> None:
    odd = {"a": [float("nan"), 1.0], "b": {"c": float("inf")}, "d": (2,)}
    assert insight._finite(odd) == {"a": ["nan", 1.0], "b": {"c": "inf"}, "d": [2]}
