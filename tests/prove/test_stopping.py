"""The check `stopping`: what it says of a run that was sent SIGTERM."""

from types import SimpleNamespace
from typing import Any

import pytest

from builder.contract import TrainerEvent
from builder.prove.checks import stopping
from builder.prove.run import Run
from builder.prove.session import Limits, Workload

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
    defects = stopping.judge(run, 30.0)
    assert len(defects) == bool(message)
    for defect in defects:
        assert defect.message.startswith(message)
        assert defect.fix


def test_one_run_is_stopped_with_sigterm_and_none_without_a_trainer_that_works() -> None:
    started: list[dict[str, Any]] = []

    def start(given: list[str], seconds: float, **more: Any) -> Run:
        started.append({"given": given, **more})
        return Run(143, 6.0, (STEP, SAVED), stopped=True)

    session = SimpleNamespace(
        finished_job=None,
        workload=Workload(),
        limits=Limits(),
        gpus=SimpleNamespace(ids=()),
        start=start,
    )
    assert stopping.run(session) is None  # type: ignore[arg-type]
    assert started == []
    session.finished_job = "/smoke/job/0"
    answer = stopping.run(session)  # type: ignore[arg-type]
    assert answer is not None
    assert answer[0] == []
    (run,) = started
    assert run["stop_signal"] == "SIGTERM"
    assert "--job-dir=/smoke/job/stopped" in run["given"], "it must not begin at the end"
    assert not run["stop"]([TrainerEvent("start")])
    assert run["stop"]([TrainerEvent("start"), STEP])
