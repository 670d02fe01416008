"""The progress of a build: buildx's reports (`--progress=rawjson`) as the factory's own events.

Each line is one SolveStatus of BuildKit's client (moby/buildkit, client/graph.go): vertexes (the
steps), statuses (transfers and phases inside a step) and logs, each in base64. A line that is not
JSON is a message of buildx itself at the end of a build that failed.

BuildKit may report a vertex as completed and start it again a moment later: first its cache key,
then its work. It also splits a `COPY --link` into two vertexes. Here, a step is everything with the
same name, and its seconds are the sum. A step has ended when all its vertexes are completed and the
next report does not mention them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted

TAIL: Final = 20
"""Number of a step's last log lines that are kept for the report of its failure."""

_NAME_LENGTH: Final = 140
_HIDDEN: Final = re.compile(
    r"^\[internal\] load (build definition|\.dockerignore)|^resolving provenance|^\[auth\]"
)
"""Steps that take no time and tell a person nothing."""
_FLAGS: Final = re.compile(r"(?:--(?:mount|network|link|chown|chmod|security|from)(?:=\S+)?\s+)")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_PHASES: Final = re.compile(
    r"^(exporting layers|unpacking|pushing layers|loading layers|sending tarball)"
)


@dataclass(frozen=True)
class Failure:
    """The step that made a build fail. log: its last lines. line: in the Dockerfile, from 1."""

    step: str
    error: str
    log: tuple[str, ...] = ()
    line: int | None = None


@dataclass
class _Vertex:
    """A part of a step. counted: the start of the run whose seconds are counted already."""

    running: bool = False
    completed: bool = False
    counted: datetime | None = None
    seconds: float = 0.0

    def report(self, item: Mapping[str, Any]) -> None:
        """Take over the times of a vertex or of a phase of it."""
        started, completed = _time(item.get("started")), _time(item.get("completed"))
        self.running = started is not None and completed is None
        self.completed = completed is not None
        if started and completed and self.counted != started:
            self.counted = started
            self.seconds += (completed - started).total_seconds()


@dataclass
class _Step:
    name: str
    vertexes: dict[str, _Vertex] = field(default_factory=dict)
    amounts: dict[str, tuple[int, int]] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)
    unfinished_line: str = ""
    cached: bool = False
    error: str | None = None
    open: bool = False

    @property
    def completed(self) -> bool:
        return all(vertex.completed for vertex in self.vertexes.values())

    def vertex(self, digest: str) -> _Vertex:
        return self.vertexes.setdefault(digest, _Vertex())

    def start(self) -> Iterator[Event]:
        if not self.open:
            self.open = True
            yield StepStarted(self.name)

    def done(self) -> StepDone:
        self.open = False
        seconds = round(sum(vertex.seconds for vertex in self.vertexes.values()), 3)
        return StepDone(self.name, seconds, self.cached and seconds < 0.01, error=self.error)


class Progress:
    """Reads buildx's reports line by line.

    messages: the lines that are no report: warnings, the excerpt of the Dockerfile, the last error.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._steps: dict[str, _Step] = {}
        self._by_digest: dict[str, _Step] = {}

    def feed(self, line: str) -> tuple[Event, ...]:
        """Return the events of one line of buildx's standard error."""
        try:
            report = json.loads(line)
        except ValueError:
            report = None
        if not isinstance(report, dict):
            if line.strip():
                self.messages.append(line.rstrip())
            return ()
        return tuple(self._events(report))

    def finish(self) -> tuple[Event, ...]:
        """Return the ends of the steps that are open when the reports end.

        A step that is not completed by then has failed.
        """
        steps = [step for step in self._steps.values() if step.open]
        for step in steps:
            if any(vertex.running for vertex in step.vertexes.values()):
                step.error = step.error or "the build ended"
        return tuple(step.done() for step in steps)

    @property
    def error(self) -> str:
        """buildx's last error without its prefixes; "" if there is none."""
        errors = (line for line in reversed(self.messages) if line.startswith("ERROR: "))
        text = next(errors, "")
        while prefix := re.match(r"(ERROR|failed to build|failed to solve): ", text):
            text = text[prefix.end() :]
        return _reason(text)

    @property
    def failure(self) -> Failure | None:
        """The step that failed by itself, not those that were cancelled because of it."""
        failed = [step for step in self._steps.values() if step.error]
        failed.sort(key=lambda step: "canceled" in (step.error or ""))
        if not failed:
            return None
        step, text = failed[0], "\n".join(self.messages)
        marked = re.search(r"^\s*(\d+) \| >>> ", text, re.MULTILINE)
        place = marked or re.search(r"^\S.*:(\d+)$", text, re.MULTILINE)
        line = int(place[1]) if place else None
        return Failure(step.name, step.error or "", tuple(step.tail), line)

    # --- one report -------------------------------------------------------------------------------

    def _events(self, report: Mapping[str, Any]) -> Iterator[Event]:
        vertexes = _items(report, "vertexes")
        mentioned = {_name(vertex) for vertex in vertexes}
        for step in self._steps.values():
            if step.open and step.completed and step.name not in mentioned:
                yield step.done()
        for vertex in vertexes:
            yield from self._vertex(vertex)
        for item in _items(report, "statuses"):
            yield from self._status(item)
        for log in _items(report, "logs"):
            yield from self._log(log)

    def _vertex(self, item: Mapping[str, Any]) -> Iterator[Event]:
        name, digest = _name(item), str(item.get("digest"))
        if _HIDDEN.match(name) and not item.get("error"):
            return
        step = self._by_digest[digest] = self._steps.setdefault(name, _Step(name))
        vertex = step.vertex(digest)
        if not (item.get("started") or item.get("error")):
            return  # only announced: the step lasts until this vertex is completed
        vertex.report(item)
        step.cached = step.cached or bool(item.get("cached"))
        step.error = _reason(item.get("error") or "") or step.error
        yield from step.start()

    def _status(self, item: Mapping[str, Any]) -> Iterator[Event]:
        step = self._by_digest.get(str(item.get("vertex")))
        if step is None:
            return
        identity = str(item.get("id"))
        if phase := _PHASES.match(identity):
            yield from self._phase(f"{step.name}: {phase[1]}", identity, item)
            return
        amount = int(item.get("current") or 0), int(item.get("total") or 0)
        if identity.startswith(("extracting ", "resolve ")) or not any(amount):
            return
        if step.amounts.get(identity) != amount:
            step.amounts[identity] = amount
            current, total = (sum(column) for column in zip(*step.amounts.values(), strict=True))
            known = all(whole for _, whole in step.amounts.values())
            yield StepProgress(step.name, current, total if known else None)

    def _phase(self, name: str, identity: str, item: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events of a phase of the export: with a large image, it takes minutes."""
        step = self._steps.setdefault(name, _Step(name))
        step.vertex(identity).report(item)
        yield from step.start()
        if step.completed:
            yield step.done()

    def _log(self, item: Mapping[str, Any]) -> Iterator[Event]:
        step = self._by_digest.get(str(item.get("vertex")))
        if step is None:
            return
        data = base64.b64decode(item.get("data") or "").decode(errors="replace")
        *lines, step.unfinished_line = (step.unfinished_line + data).split("\n")
        for line in lines:
            # a progress bar overwrites its line: keep its last state
            text = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip()
            if text:
                step.tail = [*step.tail[-TAIL + 1 :], text]
                yield StepLog(step.name, text)


def short(name: str) -> str:
    """Return a step's name without its flags, on one line, at most 140 characters of it."""
    name = re.sub(r"\[stage-\d+ +", "[", name)
    bare = " ".join(_FLAGS.sub("", name).split())
    return bare if len(bare) <= _NAME_LENGTH else bare[: _NAME_LENGTH - 1] + "…"


def _name(vertex: Mapping[str, Any]) -> str:
    group = vertex.get("progressGroup") or {}
    return short(str(group.get("name") or vertex.get("name") or ""))


def _items(report: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [item for item in report.get(key) or [] if isinstance(item, dict)]


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))  # no nanoseconds


def _reason(error: str) -> str:
    """Return the reason of a failure, without the script of the step."""
    return re.sub(r'^process ".*" did not complete successfully: ', "", error, flags=re.DOTALL)
