"""What is concluded from a run: each way a trainer fails has its own line."""

import math
from collections.abc import Callable

import pytest

from builder.contract import TrainerEvent as Event
from builder.prove.judge import (
    Run,
    behind_a_checkpoint,
    explain,
    falling,
    judge_failing,
    judge_first,
    judge_second,
)


def steps(
    first: int, last: int, loss: Callable[[int], float] = lambda step: 3 / step
) -> list[Event]:
    return [Event("step", step, loss(step)) for step in range(first, last + 1, 10)]


FIRST = Run(137, 5.0, (*steps(10, 40), Event("checkpoint", 40), *steps(50, 50)), stopped=True)
IGNORED = "the trainer ignored its checkpoint: killed at step 50 with a checkpoint of step 40, it"
SECOND = Run(0, 5.0, (Event("resumed", 40), *steps(50, 100), Event("done", 100)))


def second(*events: Event, code: int = 0, **more: object) -> Run:
    return Run(code, 5.0, events or SECOND.events, **more)  # type: ignore[arg-type]


def evaluated(step: int, accuracy: float) -> Event:
    return Event("evaluated", step, 0.3, accuracy=accuracy)


def test_a_good_pair_of_runs_and_one_without_a_loss() -> None:
    assert judge_first(FIRST, 100) is None
    assert judge_second(FIRST, SECOND, 100) == []
    assert judge_second(FIRST, second(*SECOND.events, evaluated(100, 0.9)), 100) == []
    silent = second(*(Event(event.name, event.step) for event in SECOND.events))
    (problem,) = judge_second(Run(137, 1.0, FIRST.events[4:5]), silent, 100)
    assert problem.message == "the trainer reported no loss"


def test_killed_only_behind_a_checkpoint_and_a_step_more() -> None:
    step, saved = Event("step", 10, 1.0), Event("checkpoint", 10)
    assert not behind_a_checkpoint([])
    assert not behind_a_checkpoint([step, step])
    assert not behind_a_checkpoint([step, saved])
    assert behind_a_checkpoint([step, saved, step])


def test_a_first_run_that_could_not_be_killed() -> None:
    failed = (*steps(1, 2), Event("error", message="no", severity="ERROR"))
    for run, message in (
        (Run(0, 5.0, tuple(steps(10, 100))), "the trainer reported no checkpoint in 100 steps"),
        (
            Run(0, 5.0, (*steps(10, 100), Event("checkpoint", 100))),
            "the trainer was through with 100 steps before it could be killed",
        ),
        (Run(1, 5.0, failed), "the trainer failed with exit code 1 after step 1: no"),
    ):
        problem = judge_first(run, 100)
        assert problem and problem.message.startswith(message) and problem.fix


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            second(*steps(10, 100)),
            f"{IGNORED} did not say it resumed and went on with step 10",
        ),
        (
            second(Event("resumed", 40), *steps(10, 100)),
            f"{IGNORED} said it resumed at step 40 and went on with step 10",
        ),
        (
            second(Event("resumed", 20), *steps(30, 100)),
            f"{IGNORED} said it resumed at step 20 and went on with step 30",
        ),
        (
            second(Event("resumed", 40), *steps(50, 80)),
            "the trainer ended well, but at step 80 of 100",
        ),
        (
            second(Event("resumed", 40), *steps(50, 100, lambda _: 3.0)),
            "the loss does not fall: 0.137 at first, 3 after 100 steps (wanted: below 0.0959)",
        ),
        (
            second(Event("resumed", 40), *steps(50, 100, lambda _: math.nan)),
            "the loss is nan at step 50",
        ),
        (
            second(*SECOND.events, evaluated(60, 0.95), evaluated(100, 0.895)),
            "it does not learn: 89.5% of the held-out digits are right after 100 steps "
            "(wanted: 90%)",
        ),
        (
            second(code=1, tail=("ValueError: torn",)),
            "the trainer, started again after a kill, failed with exit code 1 after step 100: "
            "ValueError: torn",
        ),
    ],
)
def test_a_second_run_that_is_not_right(run: Run, message: str) -> None:
    problems = judge_second(FIRST, run, 100)
    assert [problem.message for problem in problems] == [message]
    assert problems[0].fix


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            Run(1, 5.0, tail=("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure "
                              "in name resolution>",)),
            "the trainer needs the network, and has none: urllib.error.URLError",
        ),
        (
            Run(1, 5.0, tail=("OSError: [Errno 30] Read-only file system: '/app/cache.bin'",)),
            "the trainer writes outside its job folder: /app/cache.bin",
        ),
        (
            Run(1, 5.0, tail=("PermissionError: [Errno 13] Permission denied: '/opt/x'",)),
            "the trainer writes outside its job folder: /opt/x",
        ),
        (
            Run(137, 5.0, out_of_memory=True),
            "the trainer needed more memory than its limit and was killed",
        ),
        (
            Run(137, 900.4, tail=("waiting for workers",), timed_out=True),
            "the trainer was not done after 900 s; it said last: waiting for workers",
        ),
        (Run(139, 5.0, tuple(steps(10, 20))), "the trainer was ended by SIGSEGV after step 20"),
        (
            Run(4, 5.0, (Event("error", 3, message="loss", severity="ERROR"),)),
            "the trainer ended with a loss that is not finite: loss",
        ),
        (Run(1, 5.0, (Event("step", 3, math.inf),)), "the loss is inf at step 3"),
        (
            Run(1, 5.0, tail=("Traceback", "ValueError: bad shape", "warning: leaked semaphores")),
            "the trainer failed with exit code 1: ValueError: bad shape",
        ),
        (Run(1, 5.0), "the trainer failed with exit code 1: nothing"),
    ],
)  # fmt: skip
def test_why_a_run_failed(run: Run, message: str) -> None:
    problem = explain(run, "the trainer")
    assert problem.message.startswith(message)
    assert problem.fix
    assert "\n" not in problem.message + problem.fix


def test_the_loss_is_compared_over_five_of_each_end_or_fewer() -> None:
    assert falling([5, 4, 3], [2, 1, 0]) == {"first": 4.0, "last": 1.0}
    assert falling([9] * 5 + [5] * 90, [1] * 5) == {"first": 9.0, "last": 1.0}
    assert falling([2], [1]) == {"first": 2.0, "last": 1.0}
    assert falling([2], []) is None
    assert falling([math.nan, 1], [1, 1]) is None


def test_a_program_that_swallows_its_failure_is_not_proven() -> None:
    swallowed = Run(0, 2.0, tail=("Traceback (most recent call last):", "ValueError: no records"))
    defect = judge_failing(swallowed)
    assert defect and "without records the image ends with exit code 0" in defect.message
    assert defect.message.endswith("its log says: ValueError: no records")
    assert judge_failing(Run(3, 2.0)) is None
    defect = judge_first(swallowed, 100)
    assert defect and defect.message == (
        "the image ended with exit code 0 and trained no step; its log says: ValueError: no records"
    )
