"""How the ranks of a run part, without other ranks: each vote's end is given."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer.job.preemption import Preempted  # noqa: E402
from trainer.loop import outer  # noqa: E402

GONE = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")


def leaving(*votes: Exception | None) -> Any:
    """What `Controller._leave` uses of a run that was told to stop."""
    ends = iter(votes)

    def together(_: list[float]) -> None:
        if error := next(ends):
            raise error

    run: Any = SimpleNamespace(
        _together=together,
        _collect=lambda wait: None,
        _trouble=None,
        watch=SimpleNamespace(end=lambda *_: None),
        run_=SimpleNamespace(),
        position=SimpleNamespace(step=7),
    )
    run._part = lambda: outer.Controller._part(run)
    return run


@pytest.mark.parametrize("votes", [(None, None), (None, GONE)])
def test_a_rank_that_exits_first_is_no_loss_for_the_others(votes: tuple[Exception | None]) -> None:
    with pytest.raises(Preempted, match="after step 7"):
        outer.Controller._leave(leaving(*votes))


def test_a_rank_that_is_lost_before_all_is_saved_is_one() -> None:
    with pytest.raises(tf.errors.UnavailableError):
        outer.Controller._leave(leaving(GONE))


def test_another_error_is_not_taken_for_a_farewell() -> None:
    with pytest.raises(KeyError):
        outer.Controller._leave(leaving(None, KeyError("a fault")))
