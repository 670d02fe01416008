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

_SAYS_OF_SIGNAL = 128
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


def codes(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Line, column and exit code (128 + signal) of each line that tells of a fatal signal."""
    for index, line in enumerate(lines):
        if found := _WORDS.search(line):
            code = _code(found)
            if code - _SAYS_OF_SIGNAL in _FATAL:
                yield index, found.start(), code


def _code(found: re.Match[str]) -> int:
    """The exit code that these words mean; 0 where they mean no signal."""
    if found["term"]:
        return _SAYS_OF_SIGNAL + int(found["term"])
    value = found["code"] or found["value"] or found["windows"]
    if value.lower().startswith("sig"):
        return _SAYS_OF_SIGNAL + getattr(signal, value.upper(), 0)
    number = int(value)
    if number in _WINDOWS:
        return _SAYS_OF_SIGNAL + signal.SIGSEGV
    if number < 0 or (found["kind"] or "").lower().startswith("signal"):
        return _SAYS_OF_SIGNAL + abs(number)
    return number
