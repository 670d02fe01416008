"""What is known of a run that is to be diagnosed: a job of any backend, or any program's log.

A log becomes lines that are safe to search and to show: bounded in size, without control codes.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import IO

from builder import contract
from builder.core.errors import InputError, OutsideError
from builder.jobs.backends.protocol import SERVICE, Backend, JobStatus, LogLine

MOST = 100_000
"""Lines of a job that are looked at: the newest."""
STDIN = "-"
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


@dataclass(frozen=True)
class Line:
    text: str
    where: str
    """Its file and number, or its time."""
    replica: str = ""
    event: str = ""
    """Of our trainer's lines."""
    now: bool = False
    """The backend's own word on how the job stands."""


@dataclass(frozen=True)
class JobLog:
    name: str
    lines: tuple[Line, ...]
    """In the order of their times."""
    state: str = ""
    """The backend's word, "" where only a log is known."""
    exit_code: int | None = None
    """The job's, None where it is not known."""
    out_of_memory: str = ""
    """The replica of which the engine says that it was ended for its memory."""
    ours: bool = False
    """The program is our trainer."""
    notes: tuple[str, ...] = ()


def of_job(backend: Backend, status: JobStatus) -> JobLog:
    """Return what a backend knows of a job. A log that may not be read is a note of the run."""
    notes = []
    lines: tuple[LogLine, ...] = ()
    try:
        lines = backend.logs(status).read()
    except OutsideError as error:
        notes.append(f"its log cannot be read: {error.message}")
    if len(lines) > MOST:
        notes.append(f"older lines that were not read: {len(lines) - MOST:,}")
    all_lines = [part for line in lines[-MOST:] for part in _meant(line)]
    all_lines += [
        replace(line, now=True)
        for line in _parts(status.error, f"what {backend.title} says", SERVICE)
    ]
    if status.state == "expired":
        all_lines += _parts("the job exceeded its timeout", "the job's state", SERVICE)
    names = (replica.name for replica in status.replicas)
    return JobLog(
        name=harmless(status.display_name),
        lines=tuple(all_lines),
        state=status.state,
        exit_code=_exit_code(status),
        out_of_memory=next(
            (name for name in names if status.error.startswith(f"{name} ran out of memory")), ""
        ),
        ours=by_our_trainer(all_lines),
        notes=tuple(harmless(note) for note in notes),
    )


def _meant(line: LogLine) -> Iterator[Line]:
    event = line.fields.get("event", "")
    replica = f"trial {line.trial}, {line.replica}" if line.trial else line.replica
    when = f"{line.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return _parts(line.text, f"{replica}, {when}", replica, event if isinstance(event, str) else "")


def _parts(words: str, where: str, replica: str, event: str = "") -> Iterator[Line]:
    for part in parts(words):
        yield Line(part, harmless(where), replica, event)


def _exit_code(status: JobStatus) -> int | None:
    if status.state not in ("failed", "lost"):
        return None
    failed = (each.exit_code for each in status.replicas if each.state == "failed")
    return next(filter(None, (status.failed_code, *failed)), None)


# --- any program's log ----------------------------------------------------------------------------


def of_log(name: str) -> JobLog:
    """Return the log in a file, a pipe or, as "-", on stdin. Reads its beginning and its end.

    Raises InputError where there is no such file, or where it cannot be read as one.
    """
    if name == STDIN:
        return of_stream(sys.stdin.buffer, "stdin")
    try:
        with Path(name).open("rb") as file:
            return of_stream(file, Path(name).name)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{harmless(name)}: {why}", "name a log, or - for stdin") from None


def of_stream(stream: IO[bytes], name: str) -> JobLog:
    """Return a run of which nothing is known but the lines of this stream."""
    (numbered, skipped), name = read(stream), harmless(name)
    lines = tuple(meant((line, f"{name}:{number}") for number, line in numbered))
    notes = (f"lines in the middle that were not read: {skipped:,}",) if skipped else ()
    return JobLog(name, _by_replica(lines), ours=by_our_trainer(lines), notes=notes)


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
        for part in parts(line if words is None else str(words)):
            yield Line(part, where, event=event if isinstance(event, str) else "")


def _by_replica(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Return the lines with the replica that a launcher wrote in front of them; a kind of prefix
    counts where it tells at least two replicas apart."""
    prefixes = [_REPLICA.match(line.text) for line in lines]
    names: dict[str, set[str]] = {}
    for prefix in filter(None, prefixes):
        names.setdefault(str(prefix.lastgroup), set()).add(prefix[str(prefix.lastgroup)])
    return tuple(
        replace(
            line,
            text=line.text[prefix.end() :],
            where=f"{line.where}, {prefix[prefix.lastgroup]}",
            replica=prefix[prefix.lastgroup],
        )
        if prefix and prefix.lastgroup and len(names[prefix.lastgroup]) > 1
        else line
        for line, prefix in zip(lines, prefixes, strict=True)
    )


def by_our_trainer(lines: Iterable[Line]) -> bool:
    """Tell whether our trainer speaks: its lines name their event."""
    events = (contract.STEP, contract.CHECKPOINT, "start", "error")
    return any(line.event in events for line in lines)


# --- text -----------------------------------------------------------------------------------------

HEAD = 10_000
"""Lines that are kept of a log's beginning: what a program finds when it starts."""
TAIL = 50_000
"""Lines that are kept of its end."""
LONGEST = 1 << 16
"""Bytes of one line."""
LONG = 8000
"""Characters that are kept of each end of a line."""
WIDTH = 240
"""Characters of an excerpt."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]?"  # all others
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
"""Control characters, those without width and those that turn the direction of writing."""
_BLANKS = re.compile(r"[\t\r\u2028\u2029]")


def harmless(text: str) -> str:
    """Return the text without terminal escapes and control characters; line breaks stay."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _BLANKS.sub(" ", _CONTROLS.sub("", text))


def read(file: IO[bytes]) -> tuple[list[tuple[int, str]], int]:
    """Return the first HEAD and the last TAIL lines of a stream with their numbers from 1, and how
    many lines between them were skipped. Blank lines are left out.

    Reads it to its end, and holds no more than that in memory. Bytes that are not UTF-8 become
    question marks. A line of more than LONGEST bytes counts as several.
    """
    head: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque(maxlen=TAIL)
    count = 0
    for number, content in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
        if content.strip():
            (head if len(head) < HEAD else tail).append((number, content))
            count += 1
    lines = [(number, _decoded(content)) for number, content in (*head, *tail)]
    return [line for line in lines if line[1]], count - len(lines)


def _decoded(content: bytes) -> str:
    text = harmless(content.decode("utf-8", errors="replace"))
    return shortened(text.replace("\n", " ")).rstrip()


def parts(words: str) -> Iterator[str]:
    """Yield each line of a message that is not blank, harmless and not too long."""
    for part in harmless(words).split("\n"):
        if part.strip():
            yield shortened(part)


def shortened(line: str) -> str:
    return line if len(line) <= 2 * LONG else f"{line[:LONG]} … {line[-LONG:]}"


def excerpt(line: str, column: int) -> str:
    """Return the part of a line around a column, for a person to read."""
    line = " ".join(line.split()) if len(line) <= WIDTH else line
    if len(line) <= WIDTH:
        return line.strip()
    begin = max(0, min(column - WIDTH // 4, len(line) - WIDTH))
    part = " ".join(line[begin : begin + WIDTH].split())
    return f"{'… ' if begin else ''}{part}{' …' if begin + WIDTH < len(line) else ''}"
