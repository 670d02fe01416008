"""A step tells of its beginning and of its end, however it ends."""

import pytest

from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted, prefixed, step


def test_a_step_tells_what_came_out() -> None:
    events: list[Event] = []
    with step("build", prefixed("v100", events.append)) as building:
        building.log("a line")
        building.progress(1, 2)
        building.cached, building.detail = True, "2 layers"
    *before, done = events
    assert before == [
        StepStarted("v100: build"),
        StepLog("v100: build", "a line"),
        StepProgress("v100: build", 1, 2, "bytes"),
    ]
    assert isinstance(done, StepDone) and 0 <= done.seconds < 60
    assert done == StepDone("v100: build", done.seconds, True, "2 layers", None)
    for error, message in (
        (ValueError("no layer"), "no layer"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "stopped"),
    ):
        with pytest.raises(type(error)), step("build", events.append):
            raise error
        assert isinstance(done := events[-1], StepDone) and done.error == message
