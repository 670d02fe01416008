"""The table of endings: complete rows, no row that can never win, words found as they are meant."""

from __future__ import annotations

import re

import pytest

from builder import contract
from builder.jobs.why import table


def test_every_row_tells_what_happened_what_to_do_and_where_that_was_read() -> None:
    for ending in table.endings():
        if ending.states:  # of a job that did not fail
            continue
        assert ending.happened.endswith(".") and ending.do.endswith("."), ending.name
        assert ending.source.startswith(("https://", "docs/")), ending.name
        assert ending.level in table.LEVELS, ending.name
        assert ending.again in ("yes", "later", "no"), ending.name
        words = ending.says or ending.warns
        assert words or ending.exit_codes or ending.trainer_codes, ending.name
        assert all(len(needle.split(table.GAP)[0]) >= 3 for needle in ending.says), ending.name


def test_names_are_unique_over_names_others_and_a_code_has_one_ending() -> None:
    names = [ending.name for ending in table.endings()]
    assert len(set(names)) == len(names)
    for ending in table.endings():
        assert set(ending.over) < set(names) - {ending.name}, ending.name
        for other in ending.over:
            assert ending.name not in table.named(other).over, (ending.name, other)
    codes = [code for ending in table.endings() for code in ending.exit_codes]
    assert len(set(codes)) == len(codes)


def test_a_kind_is_of_lower_case_and_of_no_healthy_line() -> None:
    for ending in table.endings():
        assert not re.search(r"(?<!\\)(?<!\(\?)[A-Z]", "|".join(ending.kind)), ending.name
    for line in ("", "error", "epoch 3: loss 0.1, 12/40 [00:03<00:05]", "training failed"):
        assert not list(table.of_kind(line)), line


def test_every_exit_code_of_our_trainer_that_is_no_fault_has_an_ending() -> None:
    for code in (contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE, contract.RESTART):
        assert table.of_code(code, ours=True) is not None
    assert table.of_code(contract.FAULT, ours=True) is None
    assert table.of_code(contract.USAGE, ours=False) is None


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["NO SPACE LEFT on device"], [("disk-full", 0)]),
        (["manifest for a/b:1", "was not found"], []),
        (["manifest, then: manifest unknown"], [("image-pull", 0)]),
        (["ran out of memory trying to allocate. This is not a failure"], []),
        (["RuntimeWarning: numpy.dtype size changed"], []),
        # letters that change their length in lower case do not shift lines
        (["İİİİİİİİİ", "x", "no space left on device"], [("disk-full", 2)]),
        (["process 1 terminated with signal SIGFPE"], [("crash", 0)]),
        (["potential root causes: process exited with signal SIGFPE"], []),
    ],
)
def test_words_are_found_in_one_line_unless_it_says_otherwise(
    lines: list[str], found: list[tuple[str, int]]
) -> None:
    assert [(match.ending.name, match.index) for match in table.find(lines)] == found


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("failed (exitcode: -11) local_rank: 1 (pid: 5528)", 139),
        ("process 1 terminated with signal SIGABRT", 134),
        ("died with <Signals.SIGKILL: 9>", 137),
        ("_job_complete: JobId=127441 WTERMSIG 9", 137),
        ("  Exit Code:    132", 132),
        ("Killed", 137),
        ("train.sh: line 27:   318 Killed                  python train.py", 137),
        ("[1,3]<stderr>:*** Received signal 7 ***", 135),
        ("the job exited with 137", 137),
        ("a status of 139", 139),
        ("received signal 15", None),
        ("exited on signal 8 (Floating point exception)", 136),
        ("exited with code 1", None),
        ("exits with a connection error code 2", None),
        ("closing signal SIGTERM", None),
        ("exit code: -15", None),
        ("returned status 200", None),
        ("terminated with signal SIGNIFICANT", None),
    ],
)
def test_a_fatal_signal_is_read_in_any_words(line: str, code: int | None) -> None:
    found = [(index, code) for index, _, code in table.signalled(["step 1", line])]
    assert found == ([] if code is None else [(1, code)])
