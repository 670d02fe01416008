"""What may pass is tried again, with pauses, and not for ever."""

from unittest.mock import Mock

import pytest

from builder.core.errors import CheckFailed, OutsideError
from builder.core.retry import Retry, TransientError


def test_pauses_double_up_to_the_longest_and_the_other_sides_own_pause_is_kept() -> None:
    messages, slept = list[str](), list[float]()
    flaky = Mock(side_effect=[*[TransientError("busy")] * 3, "there"])
    assert Retry(4, first=1.0, longest=3.0).run(flaky, messages.append, slept.append) == "there"
    assert [0.8 <= slept[0] <= 1.2, 1.6 <= slept[1] <= 2.4, slept[2]] == [True, True, 3.0]
    assert messages[0] == f"busy; trying again in {slept[0]:.1f} s" and len(messages) == 3
    flaky = Mock(side_effect=[TransientError("busy", after=7.0), "there"])
    Retry(2, first=1.0).run(flaky, sleep=slept.append)
    assert slept[-1] == 7.0


@pytest.mark.parametrize(
    ("failure", "raised", "called"),
    [
        (TransientError("busy", "wait"), OutsideError("busy (tried 3 times)", "wait"), 3),
        (TransientError("busy", final=CheckFailed("no")), CheckFailed("no"), 3),
        (ValueError("a fault"), ValueError("a fault"), 1),
    ],
)
def test_the_last_failure_is_raised(failure: Exception, raised: Exception, called: int) -> None:
    flaky = Mock(side_effect=failure)
    with pytest.raises(type(raised)) as caught:
        Retry(3).run(flaky, sleep=lambda _: None)
    assert str(caught.value) == str(raised) and flaky.call_count == called
    assert getattr(caught.value, "fix", "") == getattr(raised, "fix", "")
