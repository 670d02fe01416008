"""What may pass is tried again, with pauses, and not for ever."""

import pytest

from builder.core.errors import CheckFailed, OutsideError
from builder.core.retry import Retry, TransientError


class Flaky:
    """Fails `times` times, then answers."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error
        self.called = 0

    def __call__(self) -> str:
        self.called += 1
        if self.called <= self.times:
            raise self.error
        return "there"


def test_pauses_double_and_are_told() -> None:
    messages: list[str] = []
    slept: list[float] = []
    flaky = Flaky(3, TransientError("busy"))
    assert Retry(4, first=1.0, longest=3.0).run(flaky, messages.append, slept.append) == "there"
    assert [0.8 <= slept[0] <= 1.2, 1.6 <= slept[1] <= 2.4, slept[2]] == [True, True, 3.0]
    assert messages[0] == f"busy; trying again in {slept[0]:.1f} s"
    assert len(messages) == 3


def test_the_other_sides_own_pause_is_kept() -> None:
    slept: list[float] = []
    Retry(2, first=1.0).run(Flaky(1, TransientError("busy", after=7.0)), sleep=slept.append)
    assert slept == [7.0]


def test_the_last_failure_is_an_error_that_says_how_to_go_on() -> None:
    flaky = Flaky(9, TransientError("busy", "wait"))
    with pytest.raises(OutsideError, match=r"^busy \(tried 3 times\)$") as raised:
        Retry(3).run(flaky, sleep=lambda _: None)
    assert raised.value.fix == "wait"
    assert flaky.called == 3


def test_the_last_failure_is_the_caller_s_own_error_where_it_names_one() -> None:
    own = CheckFailed("no")
    with pytest.raises(CheckFailed) as raised:
        Retry(2).run(Flaky(9, TransientError("busy", final=own)), sleep=lambda _: None)
    assert raised.value is own


def test_other_errors_are_not_tried_again() -> None:
    flaky = Flaky(9, ValueError())
    with pytest.raises(ValueError):
        Retry(5).run(flaky)
    assert flaky.called == 1
