"""A few cases of each kind; `make test-long` runs others for as long as LONG_SECONDS says."""

from __future__ import annotations

import pytest

from builder.core.errors import InputError
from tests.fuzz import cases as fuzz


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_no_case_fails(kind: str) -> None:
    assert fuzz.run(kind, 0, 20) == 20


def test_the_program_says_what_it_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "answers", "headers", "--cases", "3"])
    assert fuzz.main() == 0
    assert [line.rpartition(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "answers: 3 cases, none failed",
        "headers: 3 cases, none failed",
    ]


def test_a_case_that_fails_or_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(number: int) -> None:
        if number == 7:
            raise KeyError("x")
        while number == 8:
            pass
        raise InputError("the factory's own")

    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    monkeypatch.setitem(fuzz.KINDS, "answers", case)
    with pytest.raises(AssertionError, match="answers 7: KeyError"):
        fuzz.run("answers", 5, 10)
    with pytest.raises(AssertionError, match=r"answers 8: .*more than 0.1 s"):
        fuzz.run("answers", 8, 1)
    assert fuzz.run("answers", 9, 10) == 10
