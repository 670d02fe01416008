"""Whole runs: learning, being killed, told to stop, going wrong, in one process and in two."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer import distribution  # noqa: E402

# Two devices for the tests in this process; has to be said before TensorFlow touches the first.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

OPTIONS = ("--checkpoint-every", 20, "--deterministic")


def weights(job: Path, step: int) -> dict[str, np.ndarray]:
    with np.load(job / f"checkpoints/step-{step:08d}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def assert_same_weights(one: Path, other: Path, step: int) -> None:
    first, second = weights(one, step), weights(other, step)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard reads from a run's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: {e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)}
        for tag in events.Tags()["tensors"]
    }


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
    assert_same_weights(tmp_path / "unbroken", tmp_path / "killed", 120)

    check_finished(unbroken.lines, tmp_path / "unbroken")
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path / "unbroken", "--steps", 120)
    assert (code, [line["event"] for line in lines]) == (0, ["done"])
    assert "nothing to do" in lines[0]["message"]


def check_finished(lines: list[dict], job: Path) -> None:
    """It says what it runs on, learns, and leaves what it promised."""
    first, *_, evaluated, exported, done = lines
    assert (first["event"], first["tensorflow"]) == ("start", tf.__version__)
    assert {"keras", "cuda", "cudnn", "devices", "compute_capabilities"} <= first.keys()
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert losses[0] > 1.5
    assert losses[-1] < 0.3
    assert evaluated["accuracy"] > 0.9
    assert evaluated["examples"] == 200
    assert (exported["event"], done["event"], done["step"]) == ("exported", "done", 120)
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
    started = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.end() == 143
    assert time.monotonic() - started < 2
    preempted = run.lines[-1]
    assert preempted["event"] == "preempted"
    assert (
        preempted["step"] == run.events("step")[-1]["step"] == run.events("checkpoint")[-1]["step"]
    )
    assert len(weights(tmp_path, preempted["step"])) > 0


def test_sigterm_during_start_up_leaves_at_once(start, tmp_path: Path) -> None:
    run = start(tmp_path)
    while b"trainer.task" not in Path(f"/proc/{run.process.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    # Until the handler is there: its bit in the mask of caught signals.
    while not caught(run.process.pid) >> (signal.SIGTERM - 1) & 1:
        time.sleep(0.01)
    run.send(signal.SIGTERM)
    assert run.end(timeout=10) == 143
    assert [line["event"] for line in run.lines] == ["preempted"]


def caught(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16)


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step(tmp_path: Path, task) -> None:
    options = ("--records", SMOKE, "--job-dir", tmp_path, "--steps", 40, "--image-size", 8)
    code, lines = task(*options, "--learning-rate", 1e38, "--checkpoint-every", 1)
    assert code == 4
    error = lines[-1]
    assert (error["event"], error["severity"]) == ("error", "ERROR")
    assert f"the loss of step {error['step']} is" in error["message"]
    assert not (tmp_path / "DONE").exists()
    # Nothing that came of it was saved.
    for name, value in weights(tmp_path, error["step"] - 1).items():
        assert np.isfinite(value).all(), name


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_learns_and_resumes(precision: str, tmp_path: Path, task) -> None:
    options = ("--records", SMOKE, "--job-dir", tmp_path, "--precision", precision)
    code, lines = task(*options, "--steps", 20, "--image-size", 8)
    assert code == 0
    assert lines[0]["precision"] == precision
    code, lines = task(*options, "--steps", 60, "--image-size", 8)
    assert code == 0
    assert lines[1]["event"] == "resumed"
    assert lines[-1]["accuracy"] > 0.5


def test_two_replicas_in_one_process_learn_what_one_learns(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
        strategy = tf.distribute.MirroredStrategy(devices)
        monkeypatch.setattr(distribution, "create", lambda *_, made=strategy: made)
        job = tmp_path / str(len(devices))
        code, lines = task("--records", SMOKE, "--job-dir", job, "--steps", 20)
        assert code == 0
        assert (lines[0]["strategy"], lines[0]["replicas"]) == ("MirroredStrategy", len(devices))
        losses.append([line["loss"] for line in lines if "loss" in line])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_a_batch_that_does_not_divide_by_the_replicas_is_refused(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.setattr(distribution, "create", lambda *_: strategy)
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--batch-size", 33)
    assert code == 2
    assert lines[-1]["message"].startswith("--batch-size 33 does not divide by the 2 replicas")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--records", "/nowhere"), "there is no /nowhere/labels.txt"),
        (("--job-dir", "/proc/nowhere"), "cannot write to /proc/nowhere"),
    ],
)
def test_folders_that_cannot_be_used_are_named(
    options: tuple[str, str], message: str, tmp_path: Path, task
) -> None:
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, *options)
    assert code == 2
    assert lines[-1]["message"].startswith(message)


def test_checkpoints_of_another_model_are_refused(tmp_path: Path, task) -> None:
    options = ("--records", SMOKE, "--job-dir", tmp_path, "--steps")
    assert task(*options, 5, "--image-size", 8)[0] == 0
    code, lines = task(*options, 10, "--image-size", 16)
    assert code == 2
    assert f"the checkpoints in {tmp_path}/checkpoints are of another model" in lines[-1]["message"]


def test_a_fault_of_the_program_is_a_traceback_and_1(
    tmp_path: Path, task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer import export

    monkeypatch.delattr(export, "save")
    code, lines = task("--records", SMOKE, "--job-dir", tmp_path, "--steps", 2)
    assert code == 1
    assert lines[-1]["message"].startswith("AttributeError: ")
    assert not (tmp_path / "DONE").exists()


@pytest.mark.slow
def test_two_workers_stop_together_and_end_with_one_result(start, tmp_path: Path) -> None:
    def cluster(*options: object) -> list:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            hosts = [f"127.0.0.1:{s.getsockname()[1]}" for s in (one, other)]
        tf_config = {"cluster": {"worker": hosts}}
        return [
            start(
                tmp_path,
                *("--checkpoint-every", 20, *options),
                TF_CONFIG=json.dumps({**tf_config, "task": {"type": "worker", "index": index}}),
                NAME=str(index),
            )
            for index in (0, 1)
        ]

    chief, worker = cluster("--steps", 100_000)
    chief.until("step", 30)
    started = time.monotonic()
    worker.send(signal.SIGTERM)
    assert [chief.end(), worker.end()] == [143, 143]
    assert time.monotonic() - started < 2
    stopped = {run.lines[-1]["step"] for run in (chief, worker)}
    assert stopped == {chief.events("checkpoint")[-1]["step"]}

    steps = stopped.pop() + 20
    chief, worker = cluster("--steps", steps)
    assert [chief.end(), worker.end()] == [0, 0], worker.stderr()
    for run in (chief, worker):
        assert run.events("resumed")[0]["step"] == steps - 20
        assert run.lines[0]["replicas"] == 2
        assert run.events("evaluated")[-1]["examples"] == 200
    results = [(run.lines[-1]["loss"], run.lines[-1]["accuracy"]) for run in (chief, worker)]
    assert results[0] == results[1]
    assert results[0][1] > 0.8
    assert chief.events("exported")
    assert not worker.events("checkpoint")
    assert not worker.events("exported")
