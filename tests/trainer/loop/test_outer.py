"""Which evaluation is the best, and how the ranks of a run part, without other ranks."""

import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from trainer import verdict
from trainer.config import UsageError
from trainer.job.preemption import Preempted
from trainer.loop import outer
from trainer.loop.distribution import Cluster
from trainer.loop.judge import Judge

pytestmark = pytest.mark.tensorflow

GONE = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")


@pytest.mark.parametrize(
    ("votes", "ends"),
    [
        ((None, None), Preempted),
        ((None, GONE), Preempted),  # A rank that exits first is no loss for the others.
        ((GONE,), outer.Interrupted),  # One that is lost before all is saved is one.
        ((tf.errors.InternalError(None, None, "NCCL"),), outer.Interrupted),
        ((None, KeyError("a fault")), KeyError),
    ],
)
def test_a_farewell_is_told_from_a_loss(
    votes: tuple[Exception | None, ...], ends: type[Exception]
) -> None:
    given = iter(votes)

    def vote(_: list[float]) -> None:
        if error := next(given):
            raise error

    run: Any = SimpleNamespace(
        trainer=SimpleNamespace(vote=vote),
        stalls=outer.StallMonitor({}),
        _collect=lambda wait: None,
        _trouble=None,
        end=lambda _: None,
        position=SimpleNamespace(step=7),
    )
    run._parted = functools.partial(outer.Controller._parted, run)
    run._together = functools.partial(outer.Controller._together, run)
    with pytest.raises(ends):
        outer.Controller._leave(run)


def test_a_rank_that_is_lost_while_the_chief_finishes_is_no_fault_of_the_program() -> None:
    """Not in Controller.run: the others wait in `settle` for the SavedModel."""

    def lost(_: list[float]) -> None:
        raise tf.errors.InternalError(None, None, "Connection reset by peer")

    run: Any = SimpleNamespace(
        trainer=SimpleNamespace(vote=lost),
        stalls=outer.StallMonitor({}),
        _trouble=None,
        position=SimpleNamespace(step=7),
    )
    run._together = functools.partial(outer.Controller._together, run)
    with pytest.raises(outer.Interrupted) as caught:
        outer.Controller.settle(run)
    place = Cluster(workers=2, tasks={"worker": ("127.0.0.1:1", "127.0.0.1:2")}, role="worker")
    code, text = verdict.of(caught.value, None, place)
    assert code == 143
    assert "all have to be started again: Connection reset by peer" in text


@pytest.mark.parametrize(
    ("ending", "error", "votes"),
    [
        (lambda run: run.settle(), outer.Stopped, 2),
        (lambda run: run._recover(outer.NotFinite(7, math.nan)), outer.NotFinite, 1),
        (lambda run: run._restore(), UsageError, 2),
    ],
)
def test_no_rank_ends_with_the_others_before_each_has_heard_why(
    ending: Any, error: type[Exception], votes: int
) -> None:
    """One that exits at once takes the answer from one that still waits for it."""
    told: list[list[float]] = []

    def vote(values: list[float]) -> list[float]:
        told.append(values)
        return [1.0]

    run = object.__new__(outer.Controller)
    run.trainer = SimpleNamespace(vote=vote)  # type: ignore[assignment]
    run.stalls, run.tries, run.background = outer.StallMonitor({}), outer.RETRIES, None
    run.place, run._trouble = Cluster(workers=2, index=1, role="worker"), None
    run.config = SimpleNamespace(checkpoint_dir="c")  # type: ignore[assignment]
    run.run_ = SimpleNamespace(position=outer.Position())  # type: ignore[assignment]
    run._load_newest = lambda: False  # type: ignore[method-assign]
    run.trainer.snapshot = dict  # type: ignore[method-assign]
    with pytest.raises(error):
        ending(run)
    assert len(told) == votes


def judged(judge: Judge, *values: float) -> list[bool]:
    return [judge.better(step, {judge.metric: value}) for step, value in enumerate(values)]


def test_more_accuracy_is_better_and_less_loss() -> None:
    assert judged(Judge("accuracy"), 0.5, 0.7, 0.6, 0.7) == [True, True, False, False]
    assert judged(Judge("loss"), 0.5, 0.7, 0.4) == [True, False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_never_the_best(value: float) -> None:
    assert judged(Judge("loss"), value, 1.0, value) == [False, True, False]


def test_patience_counts_from_the_best_and_survives_a_restart() -> None:
    judge = Judge("loss", patience=2)
    judged(judge, 1.0, 2.0)
    assert not judge.stop
    again = Judge("loss", patience=2)
    again.restore(judge.state())
    assert not again.better(5, {"loss": 1.5})
    assert again.stop
    assert (again.best, again.best_step) == (1.0, 0)
    assert again.better(6, {"loss": 0.5})
    assert not again.stop
