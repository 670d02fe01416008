"""An evaluator beside the training: it follows the checkpoints and ends with the job."""

import json
import signal
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.trainer.runs import SMOKE, cluster, copied, done, scalars
from trainer import evaluate

pytestmark = pytest.mark.tensorflow


def evaluations(job: Path) -> dict:
    return json.loads((job / "evaluator/evaluations.json").read_text())


def test_the_role_evaluates_while_the_job_trains_and_ends_with_it(start, tmp_path: Path) -> None:
    job = tmp_path / "job"
    given = ("--steps", 400, "--checkpoint-every", 40, "--export", "none", "--keep-checkpoints", 9)
    chief, other = cluster("chief", "evaluator")
    beside = start(job, *given, **other)
    trained = start(job, *given, **chief)
    assert trained.end() == 0, trained.stderr()
    assert beside.end() == 0, beside.stderr()
    steps = [line["step"] for line in beside.events("evaluated")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 400
    found = evaluations(job)
    assert [entry["step"] for entry in found["evaluations"]] == steps
    own = trained.events("evaluated")[-1]
    assert found["evaluations"][-1]["accuracy"] == pytest.approx(own["accuracy"])
    assert beside.lines[-1]["message"] == "the job is done at step 400"
    assert list(scalars(job / "logs/evaluator")["accuracy"]) == steps
    best = max(found["evaluations"], key=lambda entry: entry["accuracy"])
    assert found["best"]["value"] == best["accuracy"]
    served = tf.saved_model.load(str(job / "evaluator/best")).signatures["tensors"]
    assert served(images=tf.zeros([1, 8, 8, 3], tf.uint8))["label"].shape == (1,)


def test_an_evaluator_waits_for_a_job_and_is_stopped_at_once(start, tmp_path: Path) -> None:
    _, other = cluster("chief", "evaluator")
    beside = start(tmp_path, **other)
    beside.until("waiting")
    beside.send(signal.SIGTERM)
    assert beside.end() == 143


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with checkpoints of the steps 10, 20, 30 and 40."""
    folder = tmp_path_factory.mktemp("job")
    given = ("--steps", 40, "--checkpoint-every", 10, "--keep-checkpoints", 9, "--export", "none")
    done(folder, *given)
    return folder


@pytest.fixture
def finished(job: Path, tmp_path: Path) -> Path:
    return copied(job, tmp_path)


def test_following_goes_on_where_it_was_and_skips_what_comes_too_soon(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoints appear one by one, and DONE last."""
    hidden = {path.name: path.read_bytes() for path in (finished / "checkpoints").glob("step*")}
    done = (finished / "DONE").read_bytes()
    (finished / "DONE").unlink()
    for name in hidden:
        (finished / "checkpoints" / name).unlink()

    def appear(_: float) -> None:
        step = next((n for n in (10, 20, 30, 40) if not shown(n).exists()), None)
        if step is None:
            (finished / "DONE").write_bytes(done)
            return
        for suffix in ("npz", "json"):
            path = shown(step).with_suffix(f".{suffix}")
            path.write_bytes(hidden[path.name])

    def shown(step: int) -> Path:
        return finished / f"checkpoints/step-{step:08d}.json"

    monkeypatch.setattr(time, "sleep", appear)
    given = ["--job-dir", str(finished), "--follow", "--evaluate-every", "20"]
    assert evaluate.main(given) == 0
    assert [entry["step"] for entry in evaluations(finished)["evaluations"]] == [10, 30, 40]
    capsys.readouterr()
    assert evaluate.main(given) == 0
    told = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["done"], "after a restart nothing is evaluated twice"


def test_a_number_of_batches_is_enough(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--job-dir", str(finished), "--records", str(SMOKE), "--split", "validation"]
    assert evaluate.main([*given, "--batches", "2"]) == 0
    [line] = [
        json.loads(line)
        for line in capsys.readouterr().out.splitlines()
        if json.loads(line)["event"] == "evaluated"
    ]
    assert line["examples"] == 2 * 32
    assert evaluate.main([*given, "--follow", "--checkpoint", "best"]) == 2
    assert "--follow: follows the last checkpoint" in capsys.readouterr().out
