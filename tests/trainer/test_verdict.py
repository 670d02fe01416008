"""A store that fails in the middle is tried again and named; each error has one code and line."""

import json
import shutil
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.trainer.input.samples import options
from tests.trainer.runs import SMOKE, Task
from trainer import evaluate, verdict
from trainer.input import splits
from trainer.job import storage
from trainer.loop import inner

pytestmark = pytest.mark.tensorflow

RECORD = f"{SMOKE}/train-00001-of-00004.tfrecord"


def of_the_store(kind: type = tf.errors.UnavailableError, path: str = RECORD) -> Exception:
    """What TensorFlow raises where reading a record's file fails."""
    return kind(None, None, f"{{{{function_node f}}}} {path}; Connection timed out\n\t [[{{n}}]]")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (of_the_store(), 143, f"{RECORD} cannot be read: Connection timed out; start again"),
        (of_the_store(tf.errors.UnknownError), 143, f"{RECORD} cannot be read: Connection timed"),
        (of_the_store(tf.errors.NotFoundError), 143, f"{RECORD} cannot be read: Connection timed"),
        (OSError(5, "Input/output error", RECORD), 143, f"{RECORD} cannot be read: Input/output"),
        (
            OSError(28, "No space left on device", f"{SMOKE}/job/DONE"),
            3,
            "cannot go on: [Errno 28]",
        ),
        (PermissionError(13, "Permission denied", RECORD), 3, "cannot go on: [Errno 13]"),
        (tf.errors.DataLossError(None, None, "truncated record at 9"), 143, "a record could not"),
        (of_the_store(tf.errors.InternalError, "gs://b/model"), 1, "InternalError: "),
        (KeyError("a fault"), 1, "KeyError: 'a fault'"),
    ],
)
def test_what_ended_a_run_has_one_code_and_line(error: Exception, code: int, line: str) -> None:
    found, text = verdict.of(error, options(records=str(SMOKE)))
    assert (found, "\n" in text) == (code, False)
    assert text.startswith(line)


def test_a_store_that_fails_while_the_damage_is_looked_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reads(path: str, *_: object) -> bool:
        raise of_the_store(path=path)

    monkeypatch.setattr(splits, "_reads", reads)
    lost = tf.errors.DataLossError(None, None, "truncated record at 9")
    code, text = verdict.of(lost, options(records=str(SMOKE)))
    assert (code, "cannot be read: Connection timed out" in text) == (143, True)


@pytest.fixture
def fails_twice(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits take no time, and are listed."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


def test_a_step_whose_records_a_store_did_not_give_is_made_again(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is gone when the second epoch begins, and comes back while the run waits."""
    records = shutil.copytree(SMOKE, tmp_path / "records")
    lost, train = records / Path(RECORD).name, inner.Trainer.train
    made: list[int] = []

    def trained(self: inner.Trainer, batches: object, count: int) -> object:
        made.append(count)
        if len(made) == 2:
            lost.rename(tmp_path / "away")
        return train(self, batches, count)

    given = ("--records", records, "--steps", 40, "--export", "none", "--checkpoint-every", 20)
    assert task(*given, "--job-dir", tmp_path / "whole")[0] == 0
    monkeypatch.setattr(inner.Trainer, "train", trained)
    monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / "away").rename(lost))
    code, lines = task(*given, "--job-dir", tmp_path / "broken")
    assert code == 0, lines[-1]
    [told] = [line for line in lines if line["event"] == "store"]
    wanted = f"{lost} cannot be read: No such file or directory: tried again in 1 s"
    assert told["message"] == wanted
    losses = [
        json.loads((tmp_path / job / "evaluation.json").read_text())["metrics"]["loss"]
        for job in ("whole", "broken")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_an_evaluation_is_made_again_and_a_store_that_stays_away_ends_with_143(
    tmp_path: Path, task: Task, fails_twice: list[float], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    measure, calls = inner.Evaluation.run, [0]

    def measured(self: inner.Evaluation, *given: object) -> object:
        calls[0] += 1
        if calls[0] != 3:
            raise of_the_store()
        return measure(self, *given)

    monkeypatch.setattr(inner.Evaluation, "run", measured)
    code, _ = task("--steps", 3, "--export", "none")
    assert (code, calls[0]) == (0, 3)
    assert evaluate.main(["--job-dir", str(tmp_path), "--split", "validation"]) == 143
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["message"].startswith(f"{RECORD} cannot be read: Connection timed out")


def test_what_is_read_at_the_start_is_tried_again(
    fails_twice: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [of_the_store(), of_the_store(), OSError(5, "Input/output error")]

    def work() -> str:
        if len(errors) > 1:
            raise errors.pop(0)
        return "read"

    assert storage.patiently(work) == "read"
    assert fails_twice == [1.0, 4.0]
    errors = [tf.errors.NotFoundError(None, None, "x"), OSError()]
    with pytest.raises(tf.errors.NotFoundError):
        storage.patiently(work)
