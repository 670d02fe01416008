"""How a process ended, in the words of what started it: "exitcode: -11", "by signal SIGABRT".

A process that a signal ended has no words of its own. What started it tells the signal, each in its
own way: as 128 + signal (shells, Docker, Kubernetes: POSIX, "Exit Status for Commands"), as
-signal (Python's subprocess and multiprocessing: docs.python.org, Popen.returncode), by name, or as
an NTSTATUS value (Windows: MS-ERREF, 2.3.1).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence

SIGNALLED = 128
"""A shell tells a signal as this code and the signal's number."""
_FATAL = (
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
)
"""The signals that tell something. SIGTERM and SIGINT are also how launchers end the others."""
_WINDOWS = range(0xC0000005, 0xC0000500)
"""NTSTATUS values of a crash: access violation, division by zero, stack overrun."""

_WORDS = re.compile(
    r"(?:\bexit(?:s|ed|ing)?|\bterminated|\bdied|\bkilled|\breturn(?:s|ed)?|\bfailed)\b[^\n]{0,40}?"
    r"\b(?P<kind>code|status|signal|signals)\b[ :=.(<]*(?:signals\.)?(?P<value>-?\d+|sig[a-z]+)\b"
    r"|\bexit_?code[ '\"]*[:=]+ *(?P<code>-?\d+)\b"
    r"|\bwtermsig (?P<term>\d+)\b"
    r"|\bstatus (?P<windows>32212[0-9]{5})\b",
    re.IGNORECASE,
)
_ROOT = "root cause (first observed failure)"
_PROCESS = re.compile(r"\b(?:local_rank|rank|worker|process|replica|pid|task)\b", re.IGNORECASE)


def codes(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield line, column and exit code (128 + signal) of each line that tells of a fatal signal."""
    for index, line in enumerate(lines):
        if words := _WORDS.search(line):
            code = _code(words)
            if code - SIGNALLED in _FATAL:
                yield index, words.start(), code


def first_fault(lines: Sequence[str]) -> int | None:
    """Return the line of the first process that ended by itself with an error, where others were
    killed for it: what follows tells only how its launcher ended them.

    A launcher that names the root cause says it itself; else the first line about a process counts.
    """
    summary = next((i for i, line in enumerate(lines) if _ROOT in line.lower()), None)
    for index in range(summary or 0, len(lines)):
        words = _WORDS.search(lines[index])
        if words and (summary is not None or _PROCESS.search(lines[index])):
            code = _code(words)
            if 0 < code < SIGNALLED:
                return 0 if summary is not None else index
            if code:
                return None
    return None


def _code(words: re.Match[str]) -> int:
    """Return the exit code that these words mean."""
    if words["term"]:
        return SIGNALLED + int(words["term"])
    value = words["code"] or words["value"] or words["windows"]
    if value.lower().startswith("sig"):
        return SIGNALLED + getattr(signal, value.upper(), 0)
    number = int(value)
    if number in _WINDOWS:
        return SIGNALLED + signal.SIGSEGV
    if number < 0 or (words["kind"] or "").lower().startswith("signal"):
        return SIGNALLED + abs(number)
    return number
