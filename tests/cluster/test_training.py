"""Our image for the CPU in a real cluster: its replicas find each other and train in step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.cluster.access import Access, ended, lines
from tests.registry.server import skopeo

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
for number in range(30):
    step()
    print("step", number, flush=True)
    time.sleep(0.2)
print("replicas", strategy.num_replicas_in_sync, "weight", weight.numpy().tobytes().hex())
"""
"""Each step sums a gradient over all replicas: without one of them it waits."""


@pytest.fixture(scope="session")
def image(access: Access, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our image for the CPU, in the cluster's registry."""
    layout = tmp_path_factory.mktemp("cpu") / "layout"
    commands.builder("build", "cpu", "--to-layout", str(layout), check=True)
    name = f"{access.registry}/builder-tests:cpu"
    plain = f"--dest-tls-verify={'false' if name.startswith('127.') else 'true'}"
    skopeo("copy", plain, f"oci:{layout}", f"docker://{name}")
    return name


def test_a_cluster_trains_in_step_and_again_when_a_pod_is_lost(
    access: Access, project: Callable[..., str], image: str, tmp_path: Path
) -> None:
    """The chief loses its peer in the middle. It ends with the same bits as without that."""
    said = []
    for lost in (False, True):
        name = project("", "replicas: {workers: 1}\n", image=image)
        path = tmp_path / f"jobs/{name}.yaml"
        text = path.read_text().replace('["sh", "-c", ""]', "[python, -c, program]")
        path.write_text(text.replace("program", json.dumps(PROGRAM)))
        following = access.follow(name)
        if lost:
            chief, worker = (access.pods(name, role)[0].metadata for role in ("chief", "worker"))
            log = access.core.read_namespaced_pod_log
            while "step 5" not in log(chief.name, access.namespace):
                time.sleep(0.2)
            gone = {"grace_period_seconds": 1}  # the first process of a container ignores SIGTERM
            access.core.delete_namespaced_pod(worker.name, access.namespace, **gone)
        code, shown = ended(following)
        assert code == 0, shown
        assert lines(shown)["chief-0"].count("step 5") == (2 if lost else 1)
        said.append(lines(shown)["chief-0"][-1])
    assert said[0] == said[1] and said[0].startswith("replicas 2 weight ")
