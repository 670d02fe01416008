"""How the ranks of a run part, without other ranks: each vote's end is given."""

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from trainer.job.preemption import Preempted
from trainer.loop import outer

pytestmark = pytest.mark.tensorflow

GONE = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")


@pytest.mark.parametrize(
    ("votes", "ends"),
    [
        ((None, None), Preempted),
        ((None, GONE), Preempted),  # A rank that exits first is no loss for the others.
        ((GONE,), tf.errors.UnavailableError),  # One that is lost before all is saved is one.
        ((None, KeyError("a fault")), KeyError),
    ],
)
def test_a_farewell_is_told_from_a_loss(
    votes: tuple[Exception | None, ...], ends: type[Exception]
) -> None:
    given = iter(votes)

    def together(_: list[float]) -> None:
        if error := next(given):
            raise error

    run: Any = SimpleNamespace(
        _together=together,
        _collect=lambda wait: None,
        _trouble=None,
        end=lambda _: None,
        position=SimpleNamespace(step=7),
    )
    run._part = lambda: outer.Controller._part(run)
    with pytest.raises(ends):
        outer.Controller._leave(run)
