"""GPUs of a device plugin in a real cluster: the guard of our image sees the cards that a pod gets.

The cards are NVML's stand-in, which the plugin mounts where GKE mounts a driver. The image is ours
for the CPU, and its label says that it is for a V100: one that is has gigabytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests import ROOT
from tests.cluster.access import SECONDS, Access
from tests.cluster.gpus import RESOURCE
from tests.commands import environment
from tests.trainer.test_guard import T4, V100, Gpu, machine

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]
NODE = "node-0"
PROGRAM = """
import os, sys
from trainer import guard
cause = guard.refusal(os.environ)
print(cause or "let through", flush=True)
sys.exit(2 if cause else 0)
"""
"""What stands before TensorFlow, which sees no GPU here."""


@contextmanager
def plugin(access: Access, driver: Path, count: int) -> Iterator[None]:
    """A device plugin beside a node's kubelet, until the node offers its GPUs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.gpus", str(driver), str(count)],
        cwd=Path(access.kubeconfig).parent / NODE / "kubelet/device-plugins",
        env=environment(PYTHONPATH=str(ROOT)),
        stdin=subprocess.PIPE,
    )
    assert process.stdin
    try:
        deadline = time.monotonic() + SECONDS
        while access.core.read_node(NODE).status.allocatable.get(RESOURCE) != str(count):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.3)
        yield
    finally:
        process.stdin.close()
        process.wait()


@pytest.mark.parametrize("card", [V100, T4], ids=lambda card: str(card.name))
def test_the_guard_sees_the_cards_that_a_device_plugin_gives(
    card: Gpu,
    own: Access,
    project: Callable[..., str],
    ours: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name = project("", "accelerators: 2 x V100\n", image=ours("cpu for V100"))
    path = tmp_path / f"jobs/{name}.yaml"
    command = json.dumps(["python", "-c", PROGRAM])
    path.write_text(path.read_text().replace('["sh", "-c", ""]', command))
    cards = (card, replace(card, uuid="GPU-2"))
    with plugin(own, machine(tmp_path / "driver", *cards), len(cards)):
        code, shown = own.run("submit", name, "--logs", "--poll", "0.5")
    if card is V100:
        assert code == 0 and "let through" in shown, shown
    else:
        assert code == 2 and "let through" not in shown, shown
        assert "Tesla T4" in shown, shown
