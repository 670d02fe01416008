"""A trial's metric, as Vertex AI reads it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.observe.hypertune import KEPT, report

pytestmark = pytest.mark.tensorflow


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_format_of_cloudml_hypertune(tmp_path: Path) -> None:
    """What cloudml-hypertune 0.1.0.dev6 writes for report_hyperparameter_tuning_metric."""
    path = tmp_path / "not/there/output.metrics"
    report(path, "7", "accuracy", 0.93, 200)
    report(path, "7", "accuracy", 0.95, 400)
    first, second = lines(path)
    assert isinstance(first.pop("timestamp"), float)
    assert first == {
        "accuracy": "0.93",
        "checkpoint_path": "",
        "global_step": "200",
        "trial": "7",
    }
    assert second["global_step"] == "400"
    assert path.read_text().startswith('{"accuracy"')  # keys sorted, as theirs are


def test_the_last_hundred_are_kept_and_nothing_else_lies_about(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    for step in range(KEPT + 20):
        report(path, "1", "loss", 1 / (step + 1), step)
    assert [line["global_step"] for line in lines(path)] == [str(n) for n in range(20, KEPT + 20)]
    assert os.listdir(tmp_path) == ["metrics"]  # noqa: PTH208


def test_no_reader_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics"
    report(path, "1", "loss", 0.5, 1)

    def torn(self: Path, text: str) -> None:
        self.open("w").write(text[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(OSError, match="No space"):
        report(path, "1", "loss", 0.4, 2)
    assert [line["global_step"] for line in lines(path)] == ["1"]


def evaluated(environment: dict[str, str], role: str = "chief") -> None:
    from trainer.observe.hypertune import Trial

    place = SimpleNamespace(chief=role == "chief", role=role)
    run = SimpleNamespace(place=place, config=SimpleNamespace(metric="accuracy"))
    Trial(environment).evaluated(run, 10, {"loss": 0.25, "accuracy": 0.75})


@pytest.mark.parametrize(("role", "reported"), [("chief", 1), ("evaluator", 1), ("worker", 0)])
def test_only_who_evaluates_reports(tmp_path: Path, role: str, reported: int) -> None:
    path = tmp_path / "metrics"
    evaluated({"CLOUD_ML_TRIAL_ID": "3", "CLOUD_ML_HP_METRIC_FILE": str(path)}, role)
    assert len(lines(path) if path.exists() else []) == reported


def test_a_run_that_is_no_trial_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.observe.hypertune.DEFAULT", str(tmp_path / "default"))
    evaluated({})
    assert not (tmp_path / "default").exists()
    evaluated({"CLOUD_ML_TRIAL_ID": "3"})
    assert lines(tmp_path / "default")[0]["accuracy"] == "0.75"


def test_a_file_that_cannot_be_written_is_an_error_in_the_log_and_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    evaluated({"CLOUD_ML_HP_METRIC_FILE": str(tmp_path / "file/metrics")})
    said = json.loads(capsys.readouterr().out)
    assert (said["severity"], said["event"]) == ("ERROR", "trial")
    assert "cannot be reported" in said["message"]
