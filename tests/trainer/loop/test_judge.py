"""Which evaluation is the best, and when to stop."""

import math

import pytest

from trainer.loop.judge import Judge


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
