"""Parameter servers: no update is lost, and a worker may die."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from count_updates import RATE, STEPS
from runs import ROOT, cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
tf = pytest.importorskip("tensorflow")


def test_no_update_is_lost(start, tmp_path: Path) -> None:
    environments = cluster("chief", "worker", "worker", "ps")
    chief, *others = environments
    for environment in others:
        start(tmp_path, **environment)
    done = subprocess.run(
        [sys.executable, ROOT / "tests/trainer/count_updates.py"],
        env={**os.environ, **chief, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for counted in found.values():
        assert counted["updates"] == STEPS
        assert counted["others"] == [STEPS]
    assert found["sgd"]["trained"] == [-STEPS * RATE]
    first, second = tf.Variable([0.0]), tf.Variable([0.0])
    for _ in range(STEPS):  # what one process makes of the same gradients
        tf.raw_ops.ResourceApplyAdam(
            var=tf.Variable([0.0]).handle,
            m=first.handle,
            v=second.handle,
            beta1_power=0.5,
            beta2_power=0.5,
            lr=RATE,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-7,
            grad=[1.0],
        )
    expected = [np.float32(slot.numpy()[0]) for slot in (first, second)]
    assert [[np.float32(v) for v in values] for values in found["adam"]["slots"]] == [
        [value] for value in expected
    ]


def test_a_worker_that_dies_does_not_end_the_run(start, tmp_path: Path) -> None:
    options = ("--steps", 120, "--checkpoint-every", 40)
    roles = ("chief", "worker", "worker", "ps")
    chief, worker, *others = (
        start(tmp_path, *options, **environment) for environment in cluster(*roles)
    )
    chief.until("step", 20)
    worker.send(signal.SIGKILL)
    assert chief.end() == 0, chief.stderr()
    assert [other.end() for other in others] == [0, 0]
    assert chief.events("start")[0]["strategy"] == "ParameterServerStrategy"
    assert chief.lines[-1]["accuracy"] > 0.8
    with np.load(tmp_path / "checkpoints/step-00000120.npz") as archive:
        assert archive[archive.files[-1]] >= 120
