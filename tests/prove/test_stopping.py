"""The check `stopping`: what it says of a run that was sent SIGTERM."""

from types import SimpleNamespace
from typing import Any

import pytest

from builder.contract import TrainerEvent
from builder.prove.checks import stopping
from builder.prove.image import NotThereError
from builder.prove.judge import Run

STEP, SAVED = TrainerEvent("step", 20, 1.5), TrainerEvent("checkpoint", 20)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(143, 6.0, (STEP, SAVED), stopped=True), ""),
        (
            Run(137, 36.0, (STEP,), stopped=True, timed_out=True),
            "SIGTERM does not end the trainer: 30 s later it was at step 20, and was killed",
        ),
        (
            Run(143, 6.0, (STEP,), stopped=True),
            "stopped by SIGTERM at step 20, the trainer saved no checkpoint: the work since",
        ),
        (
            Run(143, 6.0, (TrainerEvent("checkpoint", 10), STEP), stopped=True),
            "stopped by SIGTERM at step 20, the trainer saved one of 10: the work since then",
        ),
        (
            Run(0, 6.0, (STEP, SAVED), stopped=True),
            "stopped by SIGTERM, the image ends with exit code 0, not 143: a service takes that "
            "for success",
        ),
        (
            Run(1, 6.0, (STEP, SAVED), stopped=True),
            "stopped by SIGTERM, the image ends with exit code 1, not 143: a service takes that "
            "for a failure",
        ),
        (
            Run(3, 6.0, (), ("no such folder",)),
            "the trainer ended with exit code 3 before it could be stopped; it said last: no such",
        ),
    ],
)
def test_what_a_stopped_run_did_wrong(run: Run, message: str) -> None:
    defect = stopping.judge(run, 30.0)
    assert (defect is not None) == bool(message)
    assert defect is None or (defect.message.startswith(message) and defect.fix)


def test_nothing_is_stopped_without_a_trainer_that_works() -> None:
    session: Any = SimpleNamespace(finished_job=None)
    with pytest.raises(NotThereError, match="no training run ended well"):
        stopping.run(session)
    assert not stopping.in_training([TrainerEvent("start")])
    assert stopping.in_training([TrainerEvent("start"), STEP])
