"""Whole runs: they learn, are killed, are told to stop, and fail, in one process and in two."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from builder.core.errors import CheckFailed
from builder.pipeline import model
from tests import ROOT
from tests.clock import until
from tests.trainer.runs import SMOKE, Task, copied, done, mirrored, same_weights, scalars, weights
from trainer import evaluate
from trainer.job import checkpoints, storage
from trainer.loop import distribution, inner, outer

pytestmark = pytest.mark.tensorflow

mirrored()  # Before TensorFlow touches the first device, or there is no second one.

OPTIONS = ("--checkpoint-every", 20, "--deterministic")


def test_a_killed_run_with_a_torn_checkpoint_ends_as_an_unbroken_one(
    start, tmp_path: Path, task
) -> None:
    unbroken = start(tmp_path / "unbroken", *OPTIONS, "--steps", 120)
    killed = start(tmp_path / "killed", *OPTIONS, "--steps", 120)
    killed.until("step", 70)
    killed.send(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    newest = sorted((tmp_path / "killed/checkpoints").glob("*.npz"))[-1]
    os.truncate(newest, newest.stat().st_size // 2)

    again = start(tmp_path / "killed", *OPTIONS, "--steps", 120)
    assert unbroken.end() == 0, unbroken.stderr()
    assert again.end() == 0, again.stderr()
    [torn], [resumed] = again.events("torn"), again.events("resumed")
    assert str(newest) in torn["message"]
    assert resumed["step"] == torn["step"] - 20
    assert again.events("step")[0]["step"] == resumed["step"] + 10
    same_weights(tmp_path / "unbroken", tmp_path / "killed", 120)

    check_finished(unbroken.lines, tmp_path / "unbroken")
    code, lines = task("--job-dir", tmp_path / "unbroken", "--steps", 120)
    assert (code, [line["event"] for line in lines]) == (0, ["done"])
    assert "nothing to do" in lines[0]["message"]


def check_finished(lines: list[dict], job: Path) -> None:
    """A run reports its devices, learns, and writes all its files."""
    first, *_, exported, report, done = lines
    evaluated = [line for line in lines if line["event"] == "evaluated"][-1]
    classes = lines[lines.index(evaluated) + 1]
    assert (first["event"], first["tensorflow"]) == ("start", tf.__version__)
    assert {"keras", "cuda", "cudnn", "devices", "compute_capabilities"} <= first.keys()
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert losses[0] > 1.5
    assert losses[-1] < 0.3
    assert evaluated["accuracy"] > 0.9
    assert evaluated["examples"] == 200
    assert len(classes["message"].splitlines()) == 11, "a table of ten classes"
    ended = (exported["event"], report["event"], done["event"])
    assert (ended, done["step"]) == (("exported", "report", "done"), 120)
    assert json.loads((job / "DONE").read_text())["step"] == 120
    kept = [path.name for path in sorted((job / "checkpoints").glob("*.npz"))]
    assert kept == [f"step-{step:08d}.npz" for step in (80, 100, 120)]
    assert not list(job.rglob("*tmp*"))

    train, validation = scalars(job / "logs/train"), scalars(job / "logs/validation")
    assert list(train["loss"]) == list(range(1, 121))
    assert train["epoch"][120] == pytest.approx(3.84)
    assert validation["accuracy"][120] == pytest.approx(evaluated["accuracy"])

    serve = tf.saved_model.load(str(job / "model")).signatures["serving_default"]
    correct = total = 0
    for record in tf.data.TFRecordDataset(str(SMOKE / "validation-00000-of-00001.tfrecord")):
        example = tf.train.Example.FromString(record.numpy()).features.feature
        image = example["image/encoded"].bytes_list.value[0]
        served = serve(image_bytes=tf.constant([image]))["label"].numpy()[0].decode()
        correct += served == str(example["image/class/label"].int64_list.value[0])
        total += 1
    assert correct / total == pytest.approx(evaluated["accuracy"])


def test_sigterm_saves_the_step_it_is_at_and_leaves_fast(start, tmp_path: Path) -> None:
    run = start(tmp_path, "--steps", 1_000_000, "--checkpoint-every", 1_000_000)
    run.until("step", 30)
    run.send(signal.SIGTERM)
    assert run.end() == 143
    preempted = run.lines[-1]
    assert preempted["event"] == "preempted"
    assert (
        preempted["step"] == run.events("step")[-1]["step"] == run.events("checkpoint")[-1]["step"]
    )
    assert len(weights(tmp_path, preempted["step"])) > 0


def test_a_model_says_what_it_was_made_from(
    task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are those that `builder verify` compares."""
    monkeypatch.setenv("TRAINING_IMAGE", "a.b/c@sha256:1")
    given = ("--steps", 4, "--export", "final,best", "--checkpoint-every", 2)
    assert task(*given)[0] == 0
    content = json.loads((tmp_path / model.FILE).read_text())
    assert content["image"] == "a.b/c@sha256:1"
    assert content["options"]["steps"] == 4
    assert len(content["records"]["files"]) == 5
    model.compare(tmp_path, content["files"])
    named = set(content["files"])
    assert {"model/saved_model.pb", "export/best/saved_model.pb"} <= named
    assert {name for name in named if "checkpoints" in name} == {
        f"checkpoints/step-00000004.{kind}" for kind in ("npz", "json")
    }
    (tmp_path / "model/saved_model.pb").write_bytes(b"another")
    with pytest.raises(CheckFailed, match="is not the file that the job wrote"):
        model.compare(tmp_path, content["files"])


def saved(lines: list[dict]) -> list[int]:
    """The steps of a run's checkpoints."""
    return [line["step"] for line in lines if line["event"] == "checkpoint"]


def test_checkpoints_come_by_the_clock(task, finished: tuple[Path, list[dict]]) -> None:
    code, lines = task("--steps", 60, "--checkpoint-every", "0.001s", "--export", "none")
    assert (code, saved(lines)[-1]) == (0, 60)
    assert len(saved(lines)) > 3
    assert saved(finished[1]) == [60], "each ten minutes, unless they are asked for"


def test_sigterm_during_start_up_leaves_at_once(tmp_path: Path) -> None:
    """While it imports TensorFlow."""
    command = [sys.executable, "-m", "trainer.task", "--records", SMOKE, "--job-dir", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        until(lambda: b"trainer.task" in Path(f"/proc/{run.pid}/cmdline").read_bytes())
        # Wait until the handler's bit is in the mask of caught signals.
        until(lambda: caught(run.pid) >> (signal.SIGTERM - 1) & 1)
        run.send_signal(signal.SIGTERM)
        lines, _ = run.communicate(timeout=300)
    assert run.returncode == 143
    assert [json.loads(line)["event"] for line in lines.splitlines()] == ["preempted"]


def caught(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16)


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(tmp_path: Path, task) -> None:
    code, lines = task("--steps", 40, "--learning-rate", 1e38, "--checkpoint-every", 1)
    assert code == 4
    error = lines[-1]
    assert (error["event"], error["severity"]) == ("error", "ERROR")
    assert f"the loss of step {error['step']} is" in error["message"]
    assert not (tmp_path / "DONE").exists()
    assert json.loads((tmp_path / "summary.json").read_text())["outcome"] == "diverged"
    # Nothing from after it was saved.
    for name, value in weights(tmp_path, error["step"] - 1).items():
        assert np.isfinite(value).all(), name


@pytest.mark.parametrize(
    ("precision", "lengths"), [("mixed_float16", (20, 60)), ("mixed_bfloat16", (60,))]
)
def test_mixed_precision_learns_and_resumes(precision: str, lengths: tuple[int, ...], task) -> None:
    """A scale of the loss goes with float16 alone."""
    for steps in lengths:
        code, lines = task("--precision", precision, "--steps", steps, "--export", "none")
        [began] = [line for line in lines if line["event"] == "start"]
        assert (code, began["precision"]) == (0, precision)
    assert [line["step"] for line in lines if line["event"] == "resumed"] == [*lengths[:-1]]
    assert lines[-1]["accuracy"] > 0.5


def test_two_replicas_in_one_process_learn_what_one_learns(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for devices, strategy in ((1, tf.distribute.MirroredStrategy(["CPU:0"])), (2, mirrored())):
        monkeypatch.setattr(distribution, "create", lambda *_, made=strategy: made)
        job = tmp_path / str(devices)
        # Without a --batch-size, each replica gets a batch of that size.
        code, lines = task("--job-dir", job, "--steps", 20, "--batch-size", 32, "--export", "none")
        assert code == 0
        assert (lines[0]["strategy"], lines[0]["replicas"]) == ("MirroredStrategy", devices)
        losses.append([line["loss"] for line in lines if "loss" in line])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--records", "/nowhere"), "there is no /nowhere/labels.txt"),
        (("--job-dir", "/proc/nowhere"), "cannot write to /proc/nowhere"),
    ],
)
def test_folders_that_cannot_be_used_are_named(
    options: tuple[str, str], message: str, task
) -> None:
    code, lines = task(*options)
    assert code == 2
    assert lines[-1]["message"].startswith(message)


def test_checkpoints_of_another_model_are_refused(
    tmp_path: Path, task, finished: tuple[Path, list[dict]]
) -> None:
    copied(finished[0], tmp_path)
    code, lines = task("--steps", 70, "--image-size", 16)
    assert code == 2
    assert f"the checkpoints in {tmp_path}/checkpoints are of another model" in lines[-1]["message"]


def test_a_loss_that_is_not_finite_is_recovered_from_with_a_smaller_rate(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer, "SLOWER", 1e-6)
    wild = ("--optimizer", "sgd", "--learning-rate", 3e4, "--export", "none", "--steps")
    code, lines = task(*wild, 60, "--checkpoint-every", 20)
    assert code == 0
    [back] = [line for line in lines if line["event"] == "diverged"]
    assert "with 1e-06 times the learning rate, try 1 of 2" in back["message"]
    assert lines[-1]["loss"] < 2.25
    steps = list(scalars(tmp_path / "logs/train")["loss"])
    assert steps == list(range(1, 61)), "what was made again replaces what it was before"
    state = json.loads((tmp_path / "checkpoints/step-00000060.json").read_text())["state"]
    assert state["factor"] == pytest.approx(1e-6)
    code, lines = task(*wild, 61)
    assert code == 0
    assert lines[-1]["loss"] < 2.25, "it is taken up with the smaller rate"


def test_a_run_that_gets_no_better_stops_early_and_is_done_until_more_is_asked_for(
    tmp_path: Path, task
) -> None:
    options = ("--learning-rate", 1e-12, "--evaluate-every", 10, "--early-stopping", 1, "--steps")
    code, lines = task(*options, 500, "--export", "best,latest")
    assert code == 0
    assert [line["step"] for line in lines if line["event"] == "early"] == [20]
    assert {line["examples"] for line in lines if line["event"] == "evaluated"} == {200}
    assert (tmp_path / "checkpoints/best/step-00000010.npz").exists()
    exported = [(line["name"], line["step"]) for line in lines if line["event"] == "exported"]
    assert exported[0] == ("best", 10)
    assert [step for name, step in exported if name == "latest"] == [10, 20, 20]
    assert not (tmp_path / "model").exists()
    _, lines = task(*options, 1000, "--export", "none")
    stopped = [line["step"] for line in lines if line["event"] == "early"]
    assert stopped == [30], "the patience starts anew: one more evaluation, not none"
    code, lines = task(*options, 1000)
    assert (code, lines[-1]["message"]) == (
        0,
        "already finished at step 30, stopped early: nothing to do",
    )


def test_weights_that_are_no_numbers_at_the_end_have_diverged_though_the_loss_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task
) -> None:
    """On some machines a ReLU makes 0 of NaN, so that only the last checkpoint shows it."""
    whole = inner.Trainer.snapshot
    spoil = [True]

    def snapshot(self: inner.Trainer) -> dict:
        found = whole(self)
        if self.optimizer.iterations.numpy() == 20 and spoil.pop(0):
            spoil.append(False)
            found = {k: v * float("nan") if v.dtype.is_floating else v for k, v in found.items()}
        return found

    monkeypatch.setattr(inner.Trainer, "snapshot", snapshot)
    code, lines = task("--steps", 20, "--export", "none")
    assert code == 0
    assert len([line for line in lines if line["event"] == "diverged"]) == 1
    for name, value in weights(tmp_path, 20).items():
        assert np.isfinite(value).all(), name


RECIPE = (
    *("--steps", 6, "--checkpoint-every", 3),
    *("--batch-size", 4, "--export", "none", "--schedule", "constant"),
    *("--ema", 0.9, "--evaluate-every", 2, "--accumulate", 2, "--class-weights", "balanced"),
    *("--sampling", "balanced", "--optimizer", "adamw", "--weight-decay", 0.01),
    *("--mixup", 0.2, "--cutmix", 1, "--label-smoothing", 0.1, "--rand-augment", 1, "--crop", 0.5),
)


def test_a_run_that_goes_on_ends_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And autograph rewrites nothing of it: that took a third of a short run's processor time."""
    from tensorflow.python.autograph.impl import api

    rewritten = Mock(side_effect=api._convert_actual)
    monkeypatch.setattr(api, "_convert_actual", rewritten)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, lines = task(*RECIPE, "--job-dir", whole, "--predictions")
    assert code == 0, lines[-1]
    for path in (copied(whole, parts) / "DONE", *parts.glob("checkpoints/step-*[!3].*")):
        path.unlink()  # as it was after three steps
    code, lines = task(*RECIPE, "--job-dir", parts)
    assert (code, [line["step"] for line in lines if line["event"] == "resumed"]) == (0, [3])
    same_weights(whole, parts, 6)
    functions = [call.args[0] for call in rewritten.call_args_list]
    assert [one for one in functions if one.__module__.startswith("trainer")] == []


FINISHED = ("--steps", 60, "--ema", 0.9, "--export", "none")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A job that is done, and its event lines."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, done(folder, *FINISHED)


def test_a_finished_job_is_evaluated_and_predicts_what_it_did_not_before(
    tmp_path: Path,
    task: Task,
    finished: tuple[Path, list[dict]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied(finished[0], tmp_path / "job")
    [during] = [line for line in finished[1] if line["event"] == "evaluated"]
    code, lines = task(*FINISHED, "--job-dir", tmp_path / "job", "--predictions")
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
    code, lines = task(*FINISHED, "--job-dir", tmp_path / "job", "--predictions")
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


# What ends a run, by the type of the error and by what was done before


INTERNAL = tf.errors.InternalError(None, None, "failed to query event: CUDA_ERROR_LAUNCH_FAILED")
OUT_OF_MEMORY = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


@pytest.mark.parametrize(
    ("error", "made", "code", "says"),
    [
        (OUT_OF_MEMORY, 2, 2, "the memory is used up: give a smaller --batch-size"),
        (INTERNAL, 2, 143, "a device failed while this run used it, start again: failed to query"),
        (INTERNAL, 0, 1, "InternalError: failed to query event"),
    ],
)
def test_what_ended_a_step_is_told_and_the_checkpoint_that_is_being_written_is_not_lost(
    error: Exception,
    made: int,
    code: int,
    says: str,
    tmp_path: Path,
    task,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error comes one step after the snapshot, and the disk is slow."""
    train, save = inner.Trainer.train, checkpoints.Checkpoints.save
    steps: list[int] = []

    def trained(self: inner.Trainer, batches: object, count: int) -> object:
        steps.append(count)
        if sum(steps) > made:
            raise error
        return train(self, batches, count)

    def slowly(self: checkpoints.Checkpoints, *given: object) -> str:
        time.sleep(0.5)
        return save(self, *given)

    def exits(ended: int) -> None:
        raise SystemExit(ended)

    monkeypatch.setattr(inner.Trainer, "train", trained)
    monkeypatch.setattr(checkpoints.Checkpoints, "save", slowly)
    monkeypatch.setattr("os._exit", exits)
    monkeypatch.setattr("trainer.event_lines.hush", lambda: None)  # stderr is the tests' own
    try:
        ended, lines = task("--steps", 4, "--checkpoint-every", 2)
    except SystemExit as exit_:
        ended, lines = exit_.code, [*map(json.loads, capsys.readouterr().out.splitlines())]
    assert ended == code
    assert lines[-1]["message"].startswith(says)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.json"))
    assert saved == (["step-00000002.json"] if made else [])


def test_a_folder_that_cannot_be_written_at_the_end_is_no_fault(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = tf.errors.UnknownError(None, None, "job/model; Input/output error")
    monkeypatch.setattr(storage, "replace_folder", Mock(side_effect=error))
    code, lines = task("--steps", 2)
    assert (code, lines[-1]["message"]) == (3, "cannot go on: job/model; Input/output error")
    assert not (tmp_path / "DONE").exists()


def unknown_to_xla(image_size: int, classes: int) -> object:
    keras = tf.keras
    images = keras.Input((image_size, image_size, 3))
    counted = keras.layers.Lambda(
        lambda x: x + tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), x.shape),
        output_shape=(image_size, image_size, 3),
    )(images)
    return keras.Model(images, keras.layers.Dense(classes)(keras.layers.Flatten()(counted)))


def test_what_xla_does_not_compile_is_one_line(task) -> None:
    code, lines = task("--steps", 2, "--xla", "--model", f"{__name__}:unknown_to_xla")
    assert code == 2
    assert lines[-1]["message"].startswith("--xla: XLA does not compile this model, leave it out: ")
