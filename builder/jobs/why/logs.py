"""The log of any program, from a file, a pipe or stdin, as a run to be diagnosed."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from builder import contract
from builder.core.errors import InputError
from builder.jobs.why import text
from builder.jobs.why.diagnose import JobLog, Line

STDIN = "-"
FIX = "name a log, or - for stdin"
_REPLICA = re.compile(
    r"\[(?P<rank>rank\d+)\]: ?"  # torch
    r"|\[(?P<default>default\d+)\]: ?"  # torchrun --tee
    r"|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?"  # mpirun --tag-output
    r"|\[pod/(?P<pod>[^/\]]+)/[^\]]+\] "  # kubectl logs --prefix
    r"|\((?P<ray>\w+ pid=\d+)[^)]*\) "
    r"|(?P<compose>[a-zA-Z][\w.-]*-\d+) +\| ?"  # docker compose, builder job local
    r"|(?P<role>(?:chief|worker|ps|evaluator|workerpool\d)-\d+) +"  # builder job logs
    r"|(?P<task>\d{1,4}): "  # srun --label
)
"""What launchers write in front of a replica's line."""


def of_log(name: str) -> JobLog:
    """Return the log in a file, a pipe or, as "-", on stdin. Reads its beginning and its end.

    Raises InputError where there is no such file, or where it cannot be read as one.
    """
    if name == STDIN:
        return of_stream(sys.stdin.buffer, "stdin")
    path = Path(name)
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise InputError(f"{name}: is not a file", FIX)
        with path.open("rb") as file:
            return of_stream(file, path.name)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{text.harmless(name)}: {why}", FIX) from None


def of_stream(stream: IO[bytes], name: str) -> JobLog:
    """Return a run of which nothing is known but the lines of this stream."""
    log, name = text.read(stream), text.harmless(name)
    lines = tuple(meant((line, f"{name}:{number}") for number, line in log.lines))
    notes = []
    if log.skipped:
        notes.append(f"lines in the middle that were not read: {log.skipped:,}")
    if log.binary:
        notes.append(f"lines that are not text: {log.binary:,}")
    return JobLog(name, _by_replica(lines), ours=by_our_trainer(lines), notes=tuple(notes))


def meant(lines: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Yield lines as they were meant: the message of a line of JSON, and each line in that message.

    lines: the text and where it stands.
    """
    for line, where in lines:
        fields = contract.fields(line.strip())
        payload = fields.get("jsonPayload")
        inner = payload if isinstance(payload, Mapping) else fields
        words = inner.get("message", inner.get("textPayload", fields.get("textPayload")))
        event = inner.get("event", "")
        for part in text.parts(line if words is None else str(words)):
            yield Line(part, where, event=event if isinstance(event, str) else "")


def _by_replica(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the lines with the replica that a launcher wrote in front of them; a kind of prefix
    counts where it tells at least two replicas apart."""
    prefixes = [_REPLICA.match(line.text) for line in lines]
    names: dict[str, set[str]] = {}
    for prefix in filter(None, prefixes):
        names.setdefault(str(prefix.lastgroup), set()).add(prefix[str(prefix.lastgroup)])
    return tuple(
        Line(line.text[prefix.end() :], line.where, prefix[prefix.lastgroup], line.event)
        if prefix and prefix.lastgroup and len(names[prefix.lastgroup]) > 1
        else line
        for line, prefix in zip(lines, prefixes, strict=True)
    )


def by_our_trainer(lines: Iterable[Line]) -> bool:
    """Tell whether our trainer speaks: its lines name their event."""
    events = (contract.STEP, contract.CHECKPOINT, "start", "error")
    return any(line.event in events for line in lines)
