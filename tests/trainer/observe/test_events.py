"""Event files of several attempts and processes in one folder, read by TensorBoard's own code."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from trainer.config import METRICS, parse
from trainer.job.checkpoints import Position
from trainer.loop.distribution import Cluster
from trainer.observe import summaries
from trainer.observe.board import Board

pytestmark = pytest.mark.tensorflow

DEDICATED = Cluster(tasks={"chief": ("a:1",), "evaluator": ("b:1",)})
EVALUATOR = Cluster(role="evaluator", tasks=DEDICATED.tasks)
INLINE = Cluster()


def losses(folder: Path) -> dict[int, float]:
    log = EventAccumulator(str(folder), {"tensors": 0})
    log.Reload()
    events = log.Tensors("loss")
    found = {event.step: float(event.tensor_proto.float_val[0]) for event in events}
    assert len(found) == len(events), "a step is shown once"
    return found


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., None]:
    """One process of a job, which trains and evaluates from a step on, with these losses."""
    config = parse(["--records", "r", "--job-dir", str(tmp_path)], {})

    def go(place: Cluster, start: int, *done: tuple[str, int, float]) -> None:
        board = Board()
        scalars = summaries.Scalars(board)
        run: Any = types.SimpleNamespace(
            config=config,
            place=place,
            position=Position(start, 0, 0.0),
            ledger=types.SimpleNamespace(seconds=lambda: dict.fromkeys(PARTS, 0.0)),
            writes=True,
        )
        scalars.begin(run)
        for what, step, loss in done:
            run.position = Position(step, 0, 0.0)
            if what == "evaluate":
                scalars.evaluated(run, step, dict.fromkeys(METRICS, 0.5) | {"loss": loss})
            else:
                values = {"loss": np.array([loss]), "seconds": np.array([0.1])}
                scalars.steps(run, step, values)
        board.close()

    return go


PARTS = ("input", "compute", "checkpoint", "evaluation", "summaries", "other")


def test_an_evaluator_and_the_trainers_keep_what_the_other_one_wrote(
    tmp_path: Path, attempt: Callable[..., None]
) -> None:
    attempt(EVALUATOR, 0, ("evaluate", 50, 0.9), ("evaluate", 100, 0.8))
    attempt(DEDICATED, 0, ("train", 1, 1.0), ("evaluate", 100, 0.8))  # the last one, in line
    attempt(EVALUATOR, 0, ("evaluate", 150, 0.7))  # started again
    assert losses(tmp_path / "logs/validation") == pytest.approx({50: 0.9, 100: 0.8, 150: 0.7})


def test_an_attempt_forgets_the_evaluations_after_its_checkpoint(
    tmp_path: Path, attempt: Callable[..., None]
) -> None:
    attempt(INLINE, 0, ("evaluate", 50, 0.9), ("evaluate", 100, 0.8))
    attempt(INLINE, 60, ("evaluate", 110, 0.7))
    assert losses(tmp_path / "logs/validation") == pytest.approx({50: 0.9, 110: 0.7})


def test_back_to_a_checkpoint_in_one_process_both_curves_go_on_from_there(
    tmp_path: Path, attempt: Callable[..., None]
) -> None:
    """After a loss that is not finite, evaluations come at the same steps again."""
    first = [("train", 1, 1.0), ("train", 2, 0.9), ("evaluate", 2, 0.8), ("train", 3, 0.7)]
    attempt(INLINE, 0, *first, ("train", 2, 0.6), ("evaluate", 2, 0.5))
    assert losses(tmp_path / "logs/train") == pytest.approx({1: 1.0, 2: 0.6})
    assert losses(tmp_path / "logs/validation") == pytest.approx({2: 0.5})
