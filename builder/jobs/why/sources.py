"""Where what is known of a run comes from: a job's folder here, Vertex AI, a log of any program."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from builder import contract
from builder.core.errors import InputError
from builder.jobs.places.local import run as local
from builder.jobs.places.vertex.logs import LogLine
from builder.jobs.places.vertex.status import RemoteJob
from builder.jobs.why import text
from builder.jobs.why.diagnose import JOB, SERVICE, Run, Said, State
from builder.jobs.why.text import Text

FAILED = "FAILED"
"""What our trainer leaves in its job folder when it gives up: {"code": ..., "message": ...}."""
STDIN = "-"
NEWEST = 200_000
"""Lines of Vertex AI's log that are looked at, the newest ones."""

_LOCAL: Mapping[str, State] = {
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
_REMOTE: Mapping[str, State] = {
    "queued": "waiting",
    "pending": "waiting",
    "paused": "waiting",
    "running": "running",
    "updating": "running",
    "cancelling": "running",
    "succeeded": "succeeded",
    "partially_succeeded": "succeeded",
    "cancelled": "cancelled",
}


# --- the log of any program -----------------------------------------------------------------------


def of_log(name: str) -> Run:
    """The log in a file, a pipe or, as "-", on stdin. Reads its beginning and its end.

    Raises InputError where there is no such file, or where it cannot be read as one.
    """
    if name == STDIN:
        return _of_text(text.read(sys.stdin.buffer), "stdin")
    path = Path(name)
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise InputError(f"{name}: is not a file", "name a log, or - for stdin")
        with path.open("rb") as file:
            return _of_text(text.read(file), path.name)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: {why}", "name a log, or - for stdin") from None


def of_lines(lines: Sequence[str], where: str) -> Run:
    """A run of which nothing is known but these lines."""
    numbered = enumerate(text.harmless("\n".join(lines)).split("\n"), 1)
    return _of_text(Text(tuple((number, line) for number, line in numbered if line)), where)


def _of_text(found: Text, name: str) -> Run:
    said = tuple(_said(((line, f"{name}:{number}") for number, line in found.lines), ""))
    return Run(name, said, ours=_ours(said), notes=_skipped(name, found))


def _skipped(name: str, found: Text) -> tuple[str, ...]:
    return (f"{name}: {found.skipped} lines in its middle were not read",) if found.skipped else ()


# --- a job of this machine ------------------------------------------------------------------------


def of_folder(folder: Path) -> Run:
    """A job that runs or ran on this machine. Raises InputError where its state cannot be read."""
    here = folder / local.LOCAL
    state = _object(here / local.STATE)
    if state is None:
        raise InputError(f"{here / local.STATE}: cannot be read", "builder job local JOB")
    replicas = [str(one.get("name", "")) for one in state.get("replicas", [])]
    stamped: list[tuple[str, Said]] = []
    notes: list[str] = []
    for name in (*replicas, JOB):
        path = here / (local.NOTES if name == JOB else f"{name}.log")
        read = _tail(path, text.TAIL // (len(replicas) + 1))
        notes += _skipped(path.name, read)
        stamped += _stamped(read, path.name, name)
    stamped.sort(key=lambda one: one[0])
    said = [one for _, one in stamped]
    marker = _object(folder / FAILED) or {}
    if "message" in marker:
        said.append(Said(_plain(marker["message"]), FAILED, JOB, "error"))
    message = _plain(state.get("message", ""))
    if state.get("state") == "failed":
        said.append(Said(message, f"{local.LOCAL}/{local.STATE}", JOB, "ended"))
    short = [name for name in replicas if message.startswith(f"{name} ran out of memory")]
    return Run(
        name=str(state.get("job", folder.name)),
        lines=tuple(said),
        state=_LOCAL.get(str(state.get("state")), "unknown"),
        exit_code=_exit_code(state),
        out_of_memory=short[0] if short else "",
        ours=bool(marker) or _ours(said),
        notes=tuple(notes),
    )


def _stamped(found: Text, file: str, replica: str) -> Iterator[tuple[str, Said]]:
    """The lines of a local log, each after its time."""
    for number, line in found.lines:
        stamp, _, words = line.partition(" ")
        for one in _said([(words, f"{file}:{number}")], replica):
            yield stamp, one


def _tail(path: Path, tail: int) -> Text:
    try:
        with path.open("rb") as file:
            return text.read(file, tail)
    except OSError:  # the replica never started
        return Text(())


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _exit_code(state: Mapping[str, Any]) -> int | None:
    """The job's: that of the outcome, else that of the replica that failed."""
    codes = [state.get("exit_code")]
    codes += [one.get("exit_code") for one in state.get("replicas", []) if one["state"] == "failed"]
    return next((code for code in codes if isinstance(code, int) and code), None)


# --- a job on Vertex AI ---------------------------------------------------------------------------


def of_remote(job: RemoteJob, lines: Iterable[LogLine]) -> Run:
    """A job on Vertex AI, with the lines of its log by time."""
    said: list[Said] = []
    for line in list(lines)[-NEWEST:]:
        where = f"{line.replica}, {line.time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        event = str(line.fields.get("event", ""))
        replica = SERVICE if line.replica == "service" else line.replica
        said += [
            Said(text.shortened(part), where, replica, event)
            for part in _plain(line.text).split("\n")
            if part.strip()
        ]
    for part in _plain(job.error).split("\n"):
        if part.strip():
            said.append(Said(text.shortened(part), "what the service says", SERVICE, "ended"))
    if job.state == "expired":
        said.append(Said("the job exceeded its timeout", "the job's state", SERVICE, "ended"))
    return Run(
        name=job.display_name,
        lines=tuple(said),
        state="failed" if job.state in ("failed", "expired") else _REMOTE.get(job.state, "unknown"),
        exit_code=job.exit_code if job.state == "failed" and "non-zero" in job.error else None,
        ours=_ours(said),
    )


# --- pieces ---------------------------------------------------------------------------------------


def _said(lines: Iterable[tuple[str, str]], replica: str) -> Iterator[Said]:
    """Lines as they were meant: the message of a line of JSON, and each line of that."""
    for line, where in lines:
        found = contract.fields(line.strip())
        payload = found.get("jsonPayload")
        inner = payload if isinstance(payload, Mapping) else found
        words = inner.get("message", inner.get("textPayload"))
        event = inner.get("event", "")
        for part in _plain(line if words is None else words).split("\n"):
            if part.strip():
                yield Said(part, where, replica, event if isinstance(event, str) else "")


def _ours(said: Iterable[Said]) -> bool:
    """Whether our trainer speaks: its lines name their event."""
    return any(one.event in (contract.STEP, contract.CHECKPOINT, "start", "error") for one in said)


def _plain(value: object) -> str:
    return text.harmless(str(value))
