"""What TensorBoard shows, read by TensorBoard itself."""

import contextlib
import io
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tests.trainer.runs import SMOKE
from trainer import task
from trainer.observe import activations, board, events, summaries, utilization
from trainer.observe.board import Board

pytestmark = pytest.mark.tensorflow

STEPS, EVERY = 60, 30


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A job's folder, and its event lines."""
    folder = tmp_path_factory.mktemp("job")
    arguments = ["--records", str(SMOKE), "--job-dir", str(folder), "--learning-rate", "0.002"]
    arguments += ["--steps", str(STEPS), "--batch", "16", "--profile-steps", "11,15"]
    for option in ("evaluate", "histograms", "checkpoint"):
        arguments += [f"--{option}-every", str(EVERY)]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.MonkeyPatch.context() as patch:
        patch.setattr(board, "BUDGET", 1.0)
        patch.setattr(utilization, "SECONDS", 0.05)
        assert task.main(arguments) == 0
    return folder, [json.loads(line) for line in output.getvalue().splitlines()]


@pytest.fixture(scope="module")
def logs(job: tuple[Path, list[dict]]) -> dict[str, EventAccumulator]:
    found = {}
    for run in ("", "train", "validation"):
        found[run] = EventAccumulator(str(job[0] / "logs" / run), {"tensors": 0})
        found[run].Reload()
    return found


def values(log: EventAccumulator, tag: str) -> dict[int, Any]:
    return {event.step: tf.make_ndarray(event.tensor_proto) for event in log.Tensors(tag)}


def test_training_and_evaluation_are_on_the_same_chart(
    job: tuple[Path, list[dict]], logs: dict[str, EventAccumulator]
) -> None:
    for tag in ("loss", "accuracy"):
        assert list(values(logs["train"], tag)) == list(range(1, STEPS + 1))
        told = {e["step"]: e[tag] for e in job[1] if e["event"] == "evaluated"}
        shown = values(logs["validation"], tag)
        assert list(shown) == [EVERY, STEPS]
        assert {step: pytest.approx(value) for step, value in shown.items()} == told


def test_losses_are_those_of_the_log(
    job: tuple[Path, list[dict]], logs: dict[str, EventAccumulator]
) -> None:
    losses = values(logs["train"], "loss")
    first = 1
    for event in (e for e in job[1] if e["event"] == "step"):
        mean = np.mean([losses[step] for step in range(first, event["step"] + 1)])
        assert event["loss"] == pytest.approx(mean, rel=1e-5)
        first = event["step"] + 1


def test_rate_speed_and_split_of_a_step(logs: dict[str, EventAccumulator]) -> None:
    train = logs["train"]
    assert {float(v) for v in values(train, "learning_rate").values()} == {np.float32(0.002)}
    assert min(values(train, "gradient_norm").values()) > 0
    parts = ("input", "compute", "checkpoint", "evaluation", "summaries", "other")
    split = [values(train, f"step_ms/{part}") for part in parts]
    speed = values(train, "examples_per_second")
    for step, total in values(train, "step_ms/total").items():
        assert speed[step] == pytest.approx(16 * 1000 / total, rel=1e-4)
        assert sum(float(part[step]) for part in split) >= 0
    assert values(train, "epoch")[STEPS] == pytest.approx(STEPS * 16 / 1000, rel=0.1)
    assert "utilisation/cpu" in train.Tags()["tensors"]
    assert "utilisation/memory_bytes" in train.Tags()["tensors"]


def test_histograms_count_every_value(logs: dict[str, EventAccumulator]) -> None:
    train = logs["train"]
    for tag, size in {
        "weights/conv1/kernel": 3 * 3 * 3 * 16,
        "weights/head_logits/bias": 10,
    }.items():
        found = values(train, tag)
        assert list(found) == [EVERY, STEPS]
        for rows in found.values():
            assert rows.shape == (events.BUCKETS, 3)
            assert rows[:, 2].sum() == size
            assert (rows[:, 0] <= rows[:, 1]).all()
    outputs = values(train, "activations/conv1")[STEPS]
    assert outputs[:, 2].sum() == activations.PROBE * 32 * 32 * 16
    assert outputs[0, 0] == 0.0  # a ReLU's


def test_zeros_and_dead_units_of_each_relu(logs: dict[str, EventAccumulator]) -> None:
    for layer in ("conv1", "conv2", "conv3"):
        zeros, dead = (values(logs["train"], f"{what}/{layer}") for what in ("zeros", "dead"))
        assert list(zeros) == [EVERY, STEPS]
        for step, share in zeros.items():
            assert 0 <= dead[step] <= share < 1


def test_the_graph_is_the_model(logs: dict[str, EventAccumulator]) -> None:
    names = [node.name for node in logs["train"].Graph().node]
    for layer in ("conv1", "conv2", "conv3", "head_logits"):
        assert any(f"/{layer}" in name for name in names), layer


def test_the_profile_is_of_the_steps_asked_for(
    job: tuple[Path, list[dict]],
) -> None:
    folder, said = job
    (event,) = [e for e in said if e["event"] == "profile"]
    assert event["message"].startswith("steps 11 to 15 are in")
    (trace,) = (folder / "logs/train/plugins/profile").glob("*/*.xplane.pb")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    content = trace.read_bytes()
    assert content.count(b"train_steps") >= 1
    marked = []  # the trace's own marks of where a step begins and ends
    for plane in xplane_pb2.XSpace.FromString(content).planes:
        names = {number: one.name for number, one in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            found = {names[one.metadata_id]: one.int64_value for one in event.stats}
            marked += [found["step_num"]] if "step_num" in found else []
    assert marked == [11, 12, 13, 14, 15]


def test_options_are_there_as_text(logs: dict[str, EventAccumulator]) -> None:
    options = values(logs[""], "options")[0][0].decode()
    assert "| learning_rate | 0.002 |" in options


def test_what_it_cost_is_in_the_summary(job: tuple[Path, list[dict]]) -> None:
    summary = json.loads((job[0] / "summary.json").read_text())
    costs = summary["summaries"]
    assert {"scalars", "histograms", "activations", "mistakes", "graph", "profile"} <= set(costs)
    assert costs["histograms"]["times"] == costs["activations"]["times"] == 2
    spent = sum(cost["seconds"] for cost in costs.values())
    assert 0 < spent <= summary["time"]["seconds"]["summaries"] + costs["graph"]["seconds"] + 1


def test_cadences_and_what_is_too_dear_is_skipped_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "BUDGET", 0.0001)
    arguments = ["--records", str(SMOKE), "--job-dir", str(tmp_path), "--steps", "55"]
    arguments += ["--batch", "8", "--histograms-every", "10"]
    assert task.main(arguments) == 0
    log = EventAccumulator(str(tmp_path / "logs/train"), {"tensors": 0})
    log.Reload()
    histograms = [event.step for event in log.Tensors("weights/conv1/kernel")]
    assert histograms == [10, 20], "two show what they cost"
    cost = json.loads((tmp_path / "summary.json").read_text())["summaries"]["activations"]
    assert (cost["times"], cost["skipped"]) == (2, 4)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [one["message"] for one in told if one["event"] == "summaries"]
    assert [line.partition(" take ")[0] for line in lines] == ["histograms", "activations"]
    assert "--histograms-every" in lines[0]


# The parts, on their own


def test_the_split_of_a_step_is_of_the_time_since_the_last_call() -> None:
    spent = dict.fromkeys(("input", "compute", "checkpoint", "evaluation", "summaries"), 1.0)
    spent["other"] = 1.0
    ledger = types.SimpleNamespace(seconds=lambda: dict(spent))
    run: Any = types.SimpleNamespace(
        ledger=ledger,
        config=types.SimpleNamespace(batch_size=8),
        position=types.SimpleNamespace(epoch=0.5),
    )
    scalars = summaries.Scalars(Board())
    scalars._before = ledger.seconds()
    metrics = {"seconds": np.full(4, 0.5, np.float32)}
    for _ in range(2):
        spent["compute"] += 2.0
        spent["input"] += 0.4
        found = scalars._speed(run, metrics, 4)
        assert found["step_ms/compute"] == pytest.approx(500)
        assert found["step_ms/input"] == pytest.approx(100)
        assert found["step_ms/checkpoint"] == 0
    assert found["examples_per_second"] == pytest.approx(16)


@pytest.mark.parametrize(
    ("values", "counts"), [([1.0, 1.0], [2]), ([], []), ([0, 1, 2, np.nan, np.inf], [1, 1, 1])]
)
def test_buckets_of_odd_values(values: list[float], counts: list[int]) -> None:
    rows = events.buckets(np.array(values))
    assert [int(count) for count in rows[:, 2] if count] == counts


def test_a_later_attempt_replaces_what_it_does_again(tmp_path: Path) -> None:
    first = events.Events(str(tmp_path))
    for step in range(1, 11):
        first.scalars(step, {"loss": 1.0})
    first.close()
    second = events.Events(str(tmp_path), first_step=6)
    for step in range(6, 9):
        second.scalars(step, {"loss": 2.0})
    second.close()
    log = EventAccumulator(str(tmp_path), {"tensors": 0})
    log.Reload()
    found = values(log, "loss")
    assert {step: float(value) for step, value in found.items()} == {
        **dict.fromkeys(range(1, 6), 1.0),
        **dict.fromkeys(range(6, 9), 2.0),
    }


def test_a_full_disk_stops_the_summaries_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = events.Events(str(tmp_path))

    def full(event: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "no space left")

    log._writer.add_event = full
    for step in range(3):
        log.scalars(step, {"loss": 1.0})
    log.close()
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in said] == ["summaries_failed"]
    assert "no space left" in said[0]["message"]


def test_a_folder_that_cannot_be_made_stops_the_summaries_and_not_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = events.Events("/proc/nowhere")
    log.scalars(1, {"loss": 1.0})
    log.close()
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in said] == ["summaries_failed"]
    assert "/proc/nowhere" in said[0]["message"]
