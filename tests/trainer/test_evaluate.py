"""A finished job's model on any split: the same numbers as in the run."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.runs import SMOKE, Task
from trainer import evaluate

pytestmark = pytest.mark.tensorflow

COMMON = ("--records", SMOKE, "--image-size", 8, "--steps", 60, "--ema", 0.9, "--export", "none")


def test_a_finished_job_is_evaluated_and_predicts_what_it_did_not_before(
    tmp_path: Path, task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = task(*COMMON, "--job-dir", tmp_path / "job")
    [during] = [line for line in lines if line["event"] == "evaluated"]
    code, lines = task(*COMMON, "--job-dir", tmp_path / "job", "--predictions")
    assert (code, [line["event"] for line in lines][-2:]) == (0, ["predictions", "done"])
    with (tmp_path / "job/predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = [row["label"] == row["prediction"] for row in rows]
    assert sum(right) / len(right) == pytest.approx(during["accuracy"])
    found = json.loads((tmp_path / "job/evaluation.json").read_text())
    names = [row["class"] for row in found["classes"]]
    pairs = [(names.index(row["label"]), names.index(row["prediction"])) for row in rows]
    assert found["confusion"][2][2] == pairs.count((2, 2))
    assert sum(map(sum, found["confusion"])) == len(rows) == found["metrics"]["examples"] == 200
    assert sum(float(rows[0][f"p({name})"]) for name in names) == pytest.approx(1, abs=1e-4)
    code, lines = task(*COMMON, "--job-dir", tmp_path / "job", "--predictions")
    assert [line["event"] for line in lines] == ["done"], "they are there"

    split = tmp_path / "records"
    split.mkdir()
    for path in SMOKE.glob("validation-*"):
        shutil.copy(path, split / path.name.replace("validation", "test"))
    shutil.copy(SMOKE / "labels.txt", split)
    given = ["--job-dir", str(tmp_path / "job"), "--records", str(split)]
    assert evaluate.main([*given, "--predictions", str(tmp_path / "test.csv")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [after] = [line for line in lines if line["event"] == "evaluated"]
    assert after["loss"] == pytest.approx(during["loss"], rel=1e-5)
    assert (tmp_path / "test.csv").read_text().count("\n") == 201

    assert evaluate.main([*given, "--split", "none"]) == 2
    assert "there are no records at" in capsys.readouterr().out
    names = (split / "labels.txt").read_text().splitlines()
    (split / "labels.txt").write_text("\n".join(reversed(names)) + "\n")
    assert evaluate.main(given) == 2
    assert "labels.txt has" in capsys.readouterr().out
    assert evaluate.main(["--job-dir", str(tmp_path / "nothing")]) == 2
    assert "no job began" in capsys.readouterr().out
