"""A process that is frozen in the middle of a run: the one that waits for it names it, and ends to
be started again. NCCL needs GPUs; TensorFlow's rings of collectives over gRPC hang in the same way.
"""

import signal
from pathlib import Path

import pytest

from tests.trainer.runs import ROOT, cluster
from trainer.job.preemption import RESTART

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.alone]

SOON = "from trainer.loop import waiting\nwaiting.FIRST = 2.0\n"
"""A sitecustomize.py with which a wait is told after 2 s."""
OPTIONS = ("--steps", 100_000, "--steps-per-loop", 1, "--image-size", 8, "--export", "none")
OPTIONS += ("--peer-timeout", 15)


@pytest.mark.long
@pytest.mark.parametrize("frozen", [1, 0], ids=["another worker", "the one that coordinates"])
def test_a_peer_that_is_frozen_is_named_and_all_are_started_again(
    frozen: int, start, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SOON)
    ranks = [
        start(tmp_path / "job", *OPTIONS, PYTHONPATH=f"{tmp_path}:{ROOT}", **one)
        for one in cluster("worker", "worker")
    ]
    waits = ranks[1 - frozen]
    waits.until("step" if frozen else "start", step=20 if frozen else 0)
    if not frozen:
        ranks[0].until("step", step=20)
    ranks[frozen].send(signal.SIGSTOP)

    code = waits.end(timeout=120)

    said = [line["message"] for line in waits.events("waiting")]
    assert any(f"for worker {frozen} at 127.0.0.1:" in line for line in said), said
    assert any("no answer" in line for line in said), said
    assert code == RESTART, waits.stderr()[-2000:]
