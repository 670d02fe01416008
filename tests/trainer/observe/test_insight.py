"""The account of a run: it adds up, goes on after restarts, and shows what was lost."""

import errno
import json
import os
import types
from pathlib import Path

import numpy as np
import pytest

from trainer.config import parse
from trainer.job import storage
from trainer.loop.distribution import Cluster
from trainer.observe import insight

pytestmark = pytest.mark.tensorflow


def test_a_full_disk_at_the_end_is_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage, "write", full)
    account = insight.Account(None)
    monkeypatch.setattr(account, "summary", lambda run: {"step": 3})
    config = parse(["--records", "r", "--job-dir", "job"], {})
    account.end(types.SimpleNamespace(config=config, place=Cluster()), "fault")
    [line] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "summary.json cannot be written: " in line["message"]
    assert "No space left on device" in line["message"]


def test_a_call_ends_before_and_after_each_step_of_a_profile() -> None:
    config = parse(
        ["--records", "r", "--job-dir", "j", "--profile-steps", "7,9"],
        {},
    )
    profile = next(one for one in insight.observers(config) if type(one).__name__ == "Profile")
    assert [profile.until(step) for step in (0, 5, 6, 8, 9)] == [6, 6, 7, 9, None]


def test_few_lines_about_a_long_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("trainer.observe.insight.time.monotonic", lambda: now[0])
    config = parse(["--records", "r", "--job-dir", "j", "--batch", "10", "--steps", "10000"], {})
    position = types.SimpleNamespace(step=0, epoch=0.0)
    run = types.SimpleNamespace(config=config, position=position, place=Cluster())
    progress = insight.Progress(config)
    for call in range(10_000):
        now[0] += 0.25
        position.step = call + 1
        seconds = np.array([0.25])
        metrics = {"loss": np.array([call]), "seconds": seconds, "input_wait": seconds / 5}
        progress.steps(run, call + 1, metrics)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [waits] = [line for line in told if line["event"] == "input"]
    assert (waits["severity"], waits["wait_share"], waits["step"]) == ("WARNING", 0.2, 41)
    assert "20.0% of a step waited for; what helps: smaller records" in waits["message"]
    told.remove(waits)
    assert len(told) == 100 + (10_000 - 100) * 0.25 // 10 + 1
    assert (told[-1]["step"], told[-1]["eta_seconds"]) == (10_000, 0)
    assert told[0]["examples_per_second"] == 40
    # Each line covers all steps since the line before.
    assert told[100]["loss"] == np.mean(range(100, told[100]["step"]))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_format_of_cloudml_hypertune_and_the_last_hundred_are_kept(tmp_path: Path) -> None:
    """What cloudml-hypertune 0.1.0.dev6 writes for report_hyperparameter_tuning_metric."""
    path = tmp_path / "not/there/output.metrics"
    for step in range(insight.KEPT + 20):
        insight.report_metric(path, "7", "accuracy", 0.93, step)
    assert [line["global_step"] for line in lines(path)] == [
        str(n) for n in range(20, insight.KEPT + 20)
    ]
    first = lines(path)[0]
    assert isinstance(first.pop("timestamp"), float)
    assert first == {"accuracy": "0.93", "checkpoint_path": "", "global_step": "20", "trial": "7"}
    assert path.read_text().startswith('{"accuracy"')  # keys sorted, as theirs are
    assert [child.name for child in path.parent.iterdir()] == ["output.metrics"]


@pytest.mark.parametrize(
    ("trial", "file", "reported"),
    [
        ("3", "named", "named"),
        ("3", "", "default"),
        ("", "", ""),
        ("", "named", "named"),
        ("3", "default/below", "error"),
    ],
)
def test_a_trial_reports_and_an_error_is_a_line(
    trial: str,
    file: str,
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(insight, "TUNING", str(tmp_path / "default"))
    if reported == "error":
        (tmp_path / "default").touch()
    environment = {"CLOUD_ML_TRIAL_ID": trial, "CLOUD_ML_HP_METRIC_FILE": ""}
    environment["CLOUD_ML_HP_METRIC_FILE"] = str(tmp_path / file) if file else ""
    config = types.SimpleNamespace(metric="accuracy")
    run = types.SimpleNamespace(config=config)
    insight.Trial(environment).evaluated(run, 10, {"loss": 0.25, "accuracy": 0.75})
    written = {path.name for path in tmp_path.iterdir() if lines(path)}
    assert written == ({reported} if reported in ("named", "default") else set())
    if reported == "error":
        line = json.loads(capsys.readouterr().out)
        assert (line["severity"], line["event"]) == ("ERROR", "trial")
