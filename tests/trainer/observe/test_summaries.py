"""What TensorBoard shows of a run and of its attempts, and samples of the machine."""

import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.runs import done, scalars
from trainer.config import METRICS, parse
from trainer.loop.distribution import Cluster
from trainer.observe import summaries, utilization

pytestmark = pytest.mark.tensorflow

STEPS, EVERY = 60, 30
PARTS = ("input", "compute", "checkpoint", "evaluation", "summaries", "other")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """A job's folder, and its event lines."""
    folder = tmp_path_factory.mktemp("job")
    options = ("--learning-rate", 0.002, "--schedule", "constant", "--profile-steps", "11,15")
    options += ("--steps", STEPS, "--batch", 16, "--evaluate-every", EVERY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilization, "SECONDS", 0.05)
        patch.setitem(sys.modules, "pynvml", None)
        return folder, done(folder, *options, "--checkpoint-every", EVERY)


def test_training_and_evaluation_are_on_the_same_chart(job: tuple[Path, list[dict]]) -> None:
    folder, said = job
    train, validation = (scalars(folder / "logs" / run) for run in ("train", "validation"))
    for tag in ("loss", "accuracy"):
        assert list(train[tag]) == list(range(1, STEPS + 1))
        reported = {e["step"]: e[tag] for e in said if e["event"] == "evaluated"}
        assert list(validation[tag]) == [EVERY, STEPS]
        assert validation[tag] == pytest.approx(reported)
    first = 1
    for event in (e for e in said if e["event"] == "step"):
        steps = range(first, event["step"] + 1)
        mean = np.mean([train["loss"][step] for step in steps])
        assert event["loss"] == pytest.approx(mean, rel=1e-5)
        first = event["step"] + 1


def test_rate_speed_split_of_a_step_and_utilisation(job: tuple[Path, list[dict]]) -> None:
    train = scalars(job[0] / "logs/train")
    assert set(train["learning_rate"].values()) == {float(np.float32(0.002))}
    assert min(train["gradient_norm"].values()) > 0
    for step, total in train["step_ms/total"].items():
        assert train["examples_per_second"][step] == pytest.approx(16 * 1000 / total, rel=1e-4)
        assert sum(train[f"step_ms/{part}"][step] for part in PARTS) >= 0
    assert train["epoch"][STEPS] == pytest.approx(STEPS * 16 / 1000, rel=0.1)
    assert {"utilisation/cpu_cores", "utilisation/memory_bytes"} <= train.keys()


def test_the_profile_is_of_the_steps_asked_for(job: tuple[Path, list[dict]]) -> None:
    folder, said = job
    (event,) = [e for e in said if e["event"] == "profile"]
    assert event["message"].startswith("steps 11 to 15 are in")
    (trace,) = (folder / "logs/train/plugins/profile").glob("*/*.xplane.pb")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    content = trace.read_bytes()
    assert content.count(b"train_steps") >= 1
    marked = []  # the trace's own marks of where a step begins and ends
    for plane in xplane_pb2.XSpace.FromString(content).planes:
        names = {number: each.name for number, each in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            found = {names[each.metadata_id]: each.int64_value for each in event.stats}
            marked += [found["step_num"]] if "step_num" in found else []
    assert marked == [11, 12, 13, 14, 15]


def test_without_nvml_a_run_has_figures_of_the_machine(job: tuple[Path, list[dict]]) -> None:
    speed = json.loads((job[0] / "summary.json").read_text())["speed"]
    assert speed["machine"].keys() == {"cpu_cores", "memory_bytes"}
    assert 0 < speed["machine"]["cpu_cores"]["mean"] <= len(os.sched_getaffinity(0)) + 0.5
    assert speed["machine"]["memory_bytes"]["most"] > 10e6
    assert speed["examples_per_second"] > 0


def test_figures_are_means_over_the_gpus_and_those_not_given_are_left_out() -> None:
    """Two GPUs as nvidia-ml-py shows them."""

    def refuse(_: int) -> None:
        raise ArithmeticError("not supported")

    nvml = types.SimpleNamespace(NVMLError=ArithmeticError)
    nvml.nvmlDeviceGetUtilizationRates = lambda n: types.SimpleNamespace(gpu=(90, 50)[n])
    nvml.nvmlDeviceGetMemoryInfo = refuse
    assert utilization.use_of(nvml, [0, 1]) == {"gpu_busy": pytest.approx(0.7)}
    nvml.nvmlDeviceGetMemoryInfo = lambda n: types.SimpleNamespace(used=8, total=16)
    nvml.nvmlDeviceGetUtilizationRates = refuse
    assert utilization.use_of(nvml, [0]) == {"gpu_memory": 0.5, "gpu_memory_bytes": 8}
    assert utilization.use_of(nvml, [0, 1]) == {"gpu_memory": 0.5, "gpu_memory_bytes": 16}


def test_a_figure_of_a_gpu_that_cannot_be_read_any_more_is_no_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = utilization.Utilization()
    used = {"gpu_busy": 0.875, "gpu_memory_bytes": 8.0}
    monkeypatch.setattr(utilization, "use_of", lambda *_: used)
    machine.end(types.SimpleNamespace(), "done")  # type: ignore[arg-type]
    assert machine.of_gpus == {"gpu_percent": 87.5, "gpu_memory_bytes": 8}
    monkeypatch.setattr(utilization, "use_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        machine._measure()
    assert machine.of_gpus == {}


# Attempts in one folder


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., None]:
    """One attempt of a job, which trains and evaluates from a step on, with these losses."""
    config = parse(["--records", "r", "--job-dir", str(tmp_path)], {})

    def go(start: int, *done: tuple[str, int, float]) -> None:
        time.sleep(1.01)  # TensorBoard orders the files of attempts by their second.
        observer = summaries.Scalars(utilization.Utilization())
        stopwatch = types.SimpleNamespace(seconds=lambda: dict.fromkeys(PARTS, 0.0))
        position = types.SimpleNamespace(step=start, epoch=0.0)
        run: Any = types.SimpleNamespace(
            config=config, place=Cluster(), position=position, stopwatch=stopwatch
        )
        observer.begin(run)
        for what, step, loss in done:
            position.step = step
            if what == "evaluate":
                observer.evaluated(run, step, dict.fromkeys(METRICS, 0.5) | {"loss": loss})
            else:
                values = {"loss": np.array([loss]), "seconds": np.array([0.1])}
                observer.steps(run, step, values)
        observer.end(run, "done")

    return go


def losses(folder: Path) -> dict[int, float]:
    return scalars(folder)["loss"]


def test_steps_that_are_made_again_replace_the_earlier_ones(
    tmp_path: Path, attempt: Callable[..., None]
) -> None:
    """After a restart, and in one process after a loss that was not finite."""
    attempt(0, *[("train", step, 1.0) for step in range(1, 8)], ("evaluate", 7, 0.9))
    attempt(5, ("train", 6, 2.0), ("evaluate", 6, 0.7))
    assert losses(tmp_path / "logs/train") == {**dict.fromkeys(range(1, 6), 1.0), 6: 2.0}
    assert losses(tmp_path / "logs/validation") == pytest.approx({6: 0.7})
    first = [("train", 7, 0.9), ("evaluate", 7, 0.8), ("train", 8, 0.7)]
    attempt(6, *first, ("train", 7, 0.6), ("evaluate", 7, 0.5))
    assert losses(tmp_path / "logs/train")[7] == pytest.approx(0.6)
    assert max(losses(tmp_path / "logs/train")) == 7
    assert losses(tmp_path / "logs/validation") == pytest.approx({6: 0.7, 7: 0.5})
