"""Real clusters on loopback: two workers and an evaluator are killed, stopped and restarted."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import ROOT, SMOKE, cluster, same_weights, scalars

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.alone]
tf = pytest.importorskip("tensorflow")

from trainer import config  # noqa: E402
from trainer.input import data, splits  # noqa: E402
from trainer.loop import inner  # noqa: E402

STEPS = 100
OPTIONS = ("--checkpoint-every", 20, "--deterministic", "--steps", STEPS, "--batch-size", 32)
OPTIONS += ("--ema", 0.9)
LOOKED_AT = ("--histograms-every", 25, "--profile-steps", "31,33")
"""Options that switch on all observers; the others are on by default."""
UNSEEN = ("--histograms-every", 0)
OFTEN = """
from trainer.observe import board, utilization
board.BUDGET, utilization.SECONDS = 1.0, 0.5
"""
"""A sitecustomize.py with which no summary is too dear."""
FAULT = """
import os
from trainer.observe import examples
if os.environ.get("NAME") == "worker0":
    examples.worst = None
"""
"""A sitecustomize.py with which an observer fails, on the chief alone."""
EXACT, TOLERANCE = 10, 0.15
"""Two workers add up their gradients in another order than one process. This differs by rounding,
which grows from step to step: the first EXACT losses are equal to 0.2 %, all within TOLERANCE."""


@pytest.mark.long
def test_killed_and_stopped_workers_end_as_unbroken_ones(start, tmp_path: Path) -> None:
    """They end with the same bits, and learn as one worker does with the same batches, with all
    observers on, and with almost none and a fault of one on the chief."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    often = tmp_path / "often"
    often.mkdir()
    (often / "sitecustomize.py").write_text(OFTEN)
    seen = (*LOOKED_AT, "--export", "final,best,latest")
    chief, worker, evaluator = (
        start(unbroken, *OPTIONS, *seen, PYTHONPATH=f"{often}:{ROOT}", **environment)
        for environment in cluster("worker", "worker", "evaluator")
    )
    assert [run.end(300) for run in (chief, worker, evaluator)] == [0, 0, 0], worker.stderr()
    check_evaluator(chief.lines, evaluator.lines, unbroken)
    check_losses(unbroken)
    check_summaries(unbroken, chief.process.pid, evaluator.process.pid)
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    path = f"{tmp_path}:{ROOT}"
    unseen = (*OPTIONS, *UNSEEN, "--evaluate-every", 20)

    def pair() -> list:
        ranks = cluster("worker", "worker")
        return [start(broken, *unseen, PYTHONPATH=path, **one) for one in ranks]

    ranks = pair()
    ranks[0].until("step", random.randint(25, 45))
    victim = random.randrange(2)
    ranks[victim].send(signal.SIGKILL)
    began = time.monotonic()
    assert ranks[1 - victim].end(300) == 143
    assert time.monotonic() - began < 60, "a dead peer is noticed in seconds on an idle machine"
    ranks = pair()
    ranks[0].until("resumed")
    ranks[0].until("step", 45)
    ranks[1].send(signal.SIGTERM)
    assert [run.end(300) for run in ranks] == [143, 143]
    assert {run.lines[-1]["event"] for run in ranks} == {"preempted"}
    assert {run.lines[-1]["step"] for run in ranks} == {ranks[0].events("checkpoint")[-1]["step"]}
    ranks = pair()
    assert [run.end(300) for run in ranks] == [0, 0], ranks[1].stderr()
    same_weights(unbroken, broken, STEPS)
    [left_out] = ranks[0].events("observer")
    assert (left_out["observer"], left_out["severity"]) == ("Mistakes", "WARNING")
    assert len(ranks[0].events("evaluated")) > 1, "it went on after that, with the other"
    assert ranks[1].events("observer") == []


def check_summaries(job: Path, chief: int, evaluator: int) -> None:
    """All event files are there; the chief wrote them, and the evaluator wrote evaluations."""
    written = sorted((job / "logs").rglob("events.out.tfevents.*"))
    by = {
        folder: {int(re.search(r"\.(\d+)\.\d{4}$", path.name)[1]) for path in found}
        for folder in ("logs", "train", "validation")
        if (found := [path for path in written if path.parent.name == folder])
    }
    assert by == {"logs": {chief}, "train": {chief}, "validation": {chief, evaluator}}
    [trace] = (job / "logs/train/plugins/profile").glob("*/*.xplane.pb")
    assert trace.stat().st_size > 0
    found = json.loads((job / "summary.json").read_text())
    kinds = {"scalars", "histograms", "activations", "mistakes", "graph"}
    assert kinds | {"profile"} <= found["summaries"].keys()
    assert found["summaries"]["histograms"]["times"] == STEPS // 25
    assert found["left_out"] == {}
    assert found["speed"]["machine"]["cpu"]["mean"] > 0
    assert found["time"]["unexplained_share"] < 0.25, (
        "what no part accounts for is the machine's load"
    )
    tags = scalars(job / "logs/train").keys()
    assert {"zeros/conv1", "gradient_norm", "utilisation/cpu", "step_ms/total"} <= tags


def test_workers_agree_on_what_batch_norm_saw() -> None:
    """Each worker saw other pictures; what is saved and evaluated is the mean of both."""
    ranks = [
        subprocess.Popen(
            [sys.executable, ROOT / "tests/trainer/loop/agree.py"],
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in cluster("worker", "worker")
    ]
    try:
        said = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][1][-2000:]
    mine, agreed = (
        [np.array(json.loads(out)[key]) for out, _ in said] for key in ("mine", "agreed")
    )
    assert not np.array_equal(*mine)
    np.testing.assert_array_equal(*agreed)
    np.testing.assert_allclose(agreed[0], (mine[0] + mine[1]) / 2, rtol=1e-5)


def check_evaluator(trainers: list[dict], evaluator: list[dict], job: Path) -> None:
    """It evaluates at the end of the job, too, and keeps the best."""
    evaluated = [line for line in evaluator if line["event"] == "evaluated"]
    assert evaluated[-1]["step"] == STEPS
    assert evaluator[-1]["event"] == "done"
    [last] = [line for line in trainers if line["event"] == "evaluated"]
    assert evaluated[-1]["accuracy"] == pytest.approx(last["accuracy"])
    assert evaluated[-1]["loss"] == pytest.approx(last["loss"], rel=1e-5)
    for name in ("best", "latest"):
        assert (job / "export" / name / "saved_model.pb").exists()
    best = max(evaluated, key=lambda line: line["accuracy"])["step"]
    assert (job / f"checkpoints/best/step-{best:08d}.npz").exists()


def check_losses(job: Path) -> None:
    """Train in one process on the batches that the two workers had together."""
    arguments = ["--records", str(SMOKE), "--job-dir", str(job), "--steps", str(STEPS)]
    arguments += ["--image-size", "32"]  # of small_cnn, where the records say nothing
    chosen = config.parse(arguments, {})
    shards = splits.find(str(SMOKE), "train")
    parts = [
        data.training(
            shards,
            tf.distribute.InputContext(2, worker, 2),
            batch_size=16,
            image_size=chosen.image_size,
            classes=10,
            seed=chosen.seed,
            consumed=0,
        )
        for worker in range(2)
    ]
    both = tf.data.Dataset.zip(*parts).map(
        lambda one, other: tuple(tf.concat(pair, 0) for pair in zip(one, other, strict=True))
    )
    tf.keras.utils.set_random_seed(chosen.seed)
    one = inner.Trainer(tf.distribute.get_strategy(), chosen, 10, "float32")
    expected = one.train(iter(both), STEPS)["loss"]
    losses = scalars(job / "logs/train")["loss"]
    assert list(losses) == list(range(1, STEPS + 1))
    found = np.array(list(losses.values()))
    np.testing.assert_allclose(found[:EXACT], expected[:EXACT], rtol=2e-3)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
