"""Exit statuses in a log, as what started the process words them."""

import pytest

from builder.jobs.why import exits, table


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("failed (exitcode: -11) local_rank: 1 (pid: 5528)", 139),
        ("process 1 terminated with signal SIGABRT", 134),
        ("died with <Signals.SIGKILL: 9>", 137),
        ("_job_complete: JobId=127441 WTERMSIG 9", 137),
        ("  Exit Code:    132", 132),
        ("Command [...] returned non-zero exit status 3221225477.", 139),
        ("exited on signal 8 (Floating point exception)", 136),
        ("bus error: exited with code 135", 135),
    ],
)
def test_a_fatal_signal_is_read_in_any_words(line: str, code: int) -> None:
    assert [each[2] for each in exits.codes(["step 1", line])] == [code]
    assert [each[0] for each in exits.codes(["step 1", line])] == [1]


@pytest.mark.parametrize(
    "line",
    [
        "exited with code 1",
        "exits with a connection error code 2",
        "exited with exit code 143",
        "closing signal SIGTERM",
        "process terminated with signal SIGTERM",
        "exit code: -15",
        "returned status 200",
        "terminated with signal SIGNIFICANT",
    ],
)
def test_what_is_no_fatal_signal_tells_nothing(line: str) -> None:
    assert list(exits.codes([line])) == []


def test_the_table_tells_the_ending_of_a_signal_unless_the_line_says_otherwise() -> None:
    matches = table.load().find(["process 1 terminated with signal SIGFPE"])
    assert [(each.ending.name, each.index) for each in matches] == [("crash", 0)]
    causes = "potential root causes: process exited with signal SIGFPE"
    assert table.load().find([causes]) == ()
