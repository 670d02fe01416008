"""What an image of any other program has to show at its start."""

from types import SimpleNamespace

import pytest

from builder.prove.checks import starts
from builder.prove.run import Run


def messages(code: int, *tail: str, timed_out: bool = False) -> list[str]:
    run = Run(code, 1.0, tail=tail, timed_out=timed_out)
    defects, _ = starts.run(SimpleNamespace(start=lambda *_, **__: run))  # type: ignore[misc,arg-type]
    return [defect.message for defect in defects]


OWN = ("Traceback (most recent call last):", '  File "/app/train.py", line 3, in main', "KeyError")


@pytest.mark.parametrize("code", [0, 2])
def test_help_or_usage_is_an_answer(code: int) -> None:
    assert messages(code, "usage: train.py DATA") == []


def test_a_program_that_lacks_its_data_has_reached_its_own_code() -> None:
    assert messages(1, *OWN) == []
    assert messages(137, timed_out=True) == [], "it began to train"


def test_an_end_before_its_own_code_is_no_proof() -> None:
    (message,) = messages(3)
    assert message == "the program ends before it says why: exit code 3; it said last: nothing"
    (message,) = messages(127, 'exec: "train": executable file not found in $PATH')
    assert message.startswith("the program cannot be executed: exit code 127; it said last: exec:")
    (message,) = messages(1, "ModuleNotFoundError: No module named 'pandas'")
    assert message == "the program does not start: ModuleNotFoundError: No module named 'pandas'"
