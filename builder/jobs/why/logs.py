"""The log of any program, from a file, a pipe or stdin, as a run to be diagnosed."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from builder import contract
from builder.core.errors import InputError
from builder.jobs.why import text
from builder.jobs.why.diagnose import JobLog, Said
from builder.jobs.why.text import Text

STDIN = "-"
FIX = "name a log, or - for stdin"


def of_log(name: str) -> JobLog:
    """The log in a file, a pipe or, as "-", on stdin. Reads its beginning and its end.

    Raises InputError where there is no such file, or where it cannot be read as one.
    """
    if name == STDIN:
        return _run(text.read(sys.stdin.buffer), "stdin")
    path = Path(name)
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise InputError(f"{name}: is not a file", FIX)
        with path.open("rb") as file:
            return _run(text.read(file), path.name)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{text.harmless(name)}: {why}", FIX) from None


def of_lines(lines: Sequence[str], name: str) -> JobLog:
    """A run of which nothing is known but these lines."""
    numbered = enumerate(text.harmless("\n".join(lines)).split("\n"), 1)
    return _run(Text(tuple((number, line) for number, line in numbered if line.strip())), name)


def _run(found: Text, name: str) -> JobLog:
    name = text.harmless(name)
    said = tuple(spoken(((line, f"{name}:{number}") for number, line in found.lines)))
    return JobLog(name, said, ours=by_our_trainer(said), notes=tuple(_notes(found)))


def _notes(found: Text) -> Iterator[str]:
    if found.skipped:
        yield f"lines in the middle that were not read: {found.skipped:,}"
    if found.binary:
        yield f"lines that are not text: {found.binary:,}"


def spoken(lines: Iterable[tuple[str, str]], replica: str = "") -> Iterator[Said]:
    """Lines as they were meant: the message of a line of JSON, and each line in that message.

    lines: the text and where it stands.
    """
    for line, where in lines:
        found = contract.fields(line.strip())
        payload = found.get("jsonPayload")
        inner = payload if isinstance(payload, Mapping) else found
        words = inner.get("message", inner.get("textPayload", found.get("textPayload")))
        event = inner.get("event", "")
        for part in text.harmless(line if words is None else str(words)).split("\n"):
            if part.strip():
                yield Said(part, where, replica, event if isinstance(event, str) else "")


def by_our_trainer(said: Iterable[Said]) -> bool:
    """Whether our trainer speaks: its lines name their event."""
    return any(one.event in (contract.STEP, contract.CHECKPOINT, "start", "error") for one in said)
