"""A step tells of its beginning and of its end, however it ends."""

import pytest

from builder.core.events import (
    Event,
    StepDone,
    StepLog,
    StepProgress,
    StepStarted,
    begin,
    prefixed,
    step,
)


def test_a_step_tells_what_came_out() -> None:
    events: list[Event] = []
    with step("build", prefixed("v100", events.append)) as building:
        building.log("a line")
        building.progress(1, 2)
        building.cached = True
        building.detail = "2 layers"
    *before, done = events
    assert before == [
        StepStarted("v100: build"),
        StepLog("v100: build", "a line"),
        StepProgress("v100: build", 1, 2, "bytes"),
    ]
    assert isinstance(done, StepDone)
    assert done == StepDone("v100: build", done.seconds, True, "2 layers", None)
    assert 0 <= done.seconds < 60


@pytest.mark.parametrize(
    ("error", "message"),
    [(ValueError("no such layer"), "no such layer"), (SystemExit(), "SystemExit")],
)
def test_an_error_ends_the_step_and_goes_on(error: BaseException, message: str) -> None:
    events: list[Event] = []
    with pytest.raises(type(error)), step("build", events.append):
        raise error
    assert isinstance(events[-1], StepDone)
    assert events[-1].error == message


def test_a_step_that_runs_elsewhere_is_begun_and_ended_by_what_is_heard_of_it() -> None:
    seen: list[Event] = []
    running = begin("build", seen.append)
    running.error = "failure"
    running.done(seconds=12.5)
    assert seen == [StepStarted("build"), StepDone("build", 12.5, error="failure")]
