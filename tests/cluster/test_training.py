"""Our image for the CPU in a real cluster: its replicas find each other and train in step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.access import Access, ended, lines

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
PROGRAM = """
import sys, time, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(4.0)
    best = tf.keras.optimizers.SGD(0.1)
@tf.function
def step():
    def each():
        with tf.GradientTape() as tape:
            loss = weight * weight / strategy.num_replicas_in_sync
        best.apply_gradients([(tape.gradient(loss, weight), weight)])
    strategy.run(each)
for number in range(60):
    step()
    print("step", number, flush=True)
    time.sleep(0.2)
print("replicas", strategy.num_replicas_in_sync, "weight", weight.numpy().tobytes().hex())
"""
"""Each step sums a gradient over all replicas: without one of them it waits."""


def test_a_cluster_trains_in_step_and_again_when_a_pod_is_lost(
    access: Access, project: Callable[..., str], ours: Callable[[str], str], tmp_path: Path
) -> None:
    """The chief loses its peer in the middle. It ends with the same bits as without that."""
    said = []
    for lost in (False, True):
        name = project("", "replicas: {workers: 1}\n", image=ours("cpu"))
        path = tmp_path / f"jobs/{name}.yaml"
        text = path.read_text().replace('["sh", "-c", ""]', "[python, -c, program]")
        path.write_text(text.replace("program", json.dumps(PROGRAM)))
        following = access.follow(name)
        if lost:
            chief, worker = (access.pods(name, role)[0] for role in ("chief", "worker"))
            access.printed(chief, "step 5")
            access.lose(worker)
        code, shown = ended(following)
        assert code == 0, shown
        assert lines(shown)["chief-0"].count("step 5") == (2 if lost else 1)
        said.append(lines(shown)["chief-0"][-1])
    assert said[0] == said[1] and said[0].startswith("replicas 2 weight ")
