"""A trial's metric, as Vertex AI reads it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.observe import hypertune
from trainer.observe.hypertune import KEPT, report

pytestmark = pytest.mark.tensorflow


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_format_of_cloudml_hypertune_and_the_last_hundred_are_kept(tmp_path: Path) -> None:
    """What cloudml-hypertune 0.1.0.dev6 writes for report_hyperparameter_tuning_metric."""
    path = tmp_path / "not/there/output.metrics"
    for step in range(KEPT + 20):
        report(path, "7", "accuracy", 0.93, step)
    assert [line["global_step"] for line in lines(path)] == [str(n) for n in range(20, KEPT + 20)]
    first = lines(path)[0]
    assert isinstance(first.pop("timestamp"), float)
    assert first == {"accuracy": "0.93", "checkpoint_path": "", "global_step": "20", "trial": "7"}
    assert path.read_text().startswith('{"accuracy"')  # keys sorted, as theirs are
    assert [child.name for child in path.parent.iterdir()] == ["output.metrics"]


@pytest.mark.parametrize(
    ("trial", "file", "chief", "reported"),
    [
        ("3", "named", True, "named"),
        ("3", "named", False, ""),
        ("3", "", True, "default"),
        ("", "", True, ""),
        ("", "named", True, "named"),
        ("3", "default/below", True, "error"),
    ],
)
def test_the_chief_of_a_trial_reports_and_an_error_is_a_line(
    trial: str,
    file: str,
    chief: bool,
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hypertune, "DEFAULT", str(tmp_path / "default"))
    if reported == "error":
        (tmp_path / "default").touch()
    environment = {"CLOUD_ML_TRIAL_ID": trial, "CLOUD_ML_HP_METRIC_FILE": ""}
    environment["CLOUD_ML_HP_METRIC_FILE"] = str(tmp_path / file) if file else ""
    config = SimpleNamespace(metric="accuracy")
    run = SimpleNamespace(place=SimpleNamespace(chief=chief), config=config)
    hypertune.Trial(environment).evaluated(run, 10, {"loss": 0.25, "accuracy": 0.75})
    written = {path.name for path in tmp_path.iterdir() if lines(path)}
    assert written == ({reported} if reported in ("named", "default") else set())
    if reported == "error":
        line = json.loads(capsys.readouterr().out)
        assert (line["severity"], line["event"]) == ("ERROR", "trial")
