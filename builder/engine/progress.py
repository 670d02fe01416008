"""The progress of a build: buildx's reports (`--progress=rawjson`) as the factory's own events.

Each line is one SolveStatus of BuildKit's client (moby/buildkit, client/graph.go): vertexes (the
steps), statuses (transfers and phases inside a step) and logs, each in base64. A line that is not
JSON is a message of buildx itself at the end of a build that failed.

BuildKit may report a vertex as completed and start it again a moment later: first its cache key,
then its work. It also splits a `COPY --link` into two vertexes. Here, a step is everything with the
same name, and its seconds are the sum.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from builder.core.events import Event, StepDone, StepLog, StepProgress, StepStarted

TAIL = 20
"""Number of a step's last log lines that are kept for the report of its failure."""

_NAME_LENGTH = 140
# Steps that take no time and tell a person nothing.
_HIDDEN = re.compile(
    r"^\[internal\] load (build definition|\.dockerignore)|^resolving provenance|^\[auth\]"
)
_FLAGS = re.compile(r"(?:--(?:mount|network|link|chown|chmod|security|from)(?:=\S+)?\s+)")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")
_PHASES = re.compile(r"^(exporting layers|unpacking|pushing layers|loading layers|sending tarball)")


@dataclass(frozen=True)
class BuildStep:
    """One step of a finished build."""

    name: str
    seconds: float
    cached: bool = False


@dataclass(frozen=True)
class Failure:
    """The step that made a build fail. log: its last lines. line: in the Dockerfile, from 1."""

    step: str
    error: str
    log: tuple[str, ...] = ()
    line: int | None = None


@dataclass
class _Vertex:
    started: datetime | None = None
    counted: datetime | None = None
    seconds: float = 0.0
    cached: bool = False
    error: str | None = None
    completed: bool = False


@dataclass
class _Step:
    name: str
    vertexes: dict[str, _Vertex] = field(default_factory=dict)
    statuses: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)
    partial: str = ""
    began: bool = False
    open: bool = False
    progress: tuple[int, int | None] = (0, None)

    @property
    def completed(self) -> bool:
        return all(vertex.completed for vertex in self.vertexes.values())

    @property
    def seconds(self) -> float:
        return sum(vertex.seconds for vertex in self.vertexes.values())

    @property
    def cached(self) -> bool:
        return any(v.cached for v in self.vertexes.values()) and self.seconds < 0.01

    @property
    def error(self) -> str | None:
        return next((v.error for v in self.vertexes.values() if v.error), None)


class Progress:
    """Reads buildx's reports line by line. `feed` gives the events of each line."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}
        self._names: dict[str, str] = {}
        self._ending: list[_Step] = []
        self._words: list[str] = []

    def feed(self, line: str) -> tuple[Event, ...]:
        """The events of one line of buildx's standard error."""
        try:
            status = json.loads(line)
        except ValueError:
            status = None
        if not isinstance(status, dict):
            if line.strip():
                self._words.append(line.rstrip())
            return ()
        return tuple(self._events(status))

    def finish(self) -> tuple[Event, ...]:
        """The ends of the steps that are open when the reports end. Unfinished ones are errors."""
        ended = []
        for step in [step for step in self._steps.values() if step.open]:
            if any(v.started and not v.completed for v in step.vertexes.values()):
                step.vertexes[""] = _Vertex(error="the build ended")
            ended.append(self._done(step))
        return tuple(ended)

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        """All steps, in the order in which they began."""
        began = (step for step in self._steps.values() if step.began)
        return tuple(BuildStep(s.name, round(s.seconds, 3), s.cached) for s in began)

    @property
    def words(self) -> tuple[str, ...]:
        """Lines of buildx that are no report: warnings, the excerpt, the closing error."""
        return tuple(self._words)

    @property
    def error(self) -> str:
        """buildx's closing error without its prefixes; "" if there is none."""
        said = next((w for w in reversed(self._words) if w.startswith("ERROR: ")), "")
        while prefix := re.match(r"(ERROR|failed to build|failed to solve): ", said):
            said = said[prefix.end() :]
        return _reason(said)

    @property
    def failure(self) -> Failure | None:
        """The step that failed by itself, not those that were cancelled because of it."""
        failed = [step for step in self._steps.values() if step.error]
        failed.sort(key=lambda step: "canceled" in (step.error or ""))
        if not failed:
            return None
        step = failed[0]
        place = next((m for w in self._words if (m := re.match(r"^\S.*:(\d+)$", w))), None)
        marked = [m for w in self._words if (m := re.match(r"^\s*(\d+) \| >>> ", w))]
        line = int(marked[0][1]) if marked else int(place[1]) if place else None
        return Failure(step.name, step.error or "", tuple(step.tail[-TAIL:]), line)

    # --- one line ---------------------------------------------------------------------------------

    def _events(self, status: Mapping[str, Any]) -> Iterator[Event]:
        here = {self._name(vertex) for vertex in _items(status, "vertexes")}
        for step in [step for step in self._ending if step.name not in here]:
            self._ending.remove(step)
            if step.open and step.completed:
                yield self._done(step)
        for vertex in _items(status, "vertexes"):
            yield from self._vertex(vertex)
        for item in _items(status, "statuses"):
            yield from self._status(item)
        for log in _items(status, "logs"):
            yield from self._log(log)

    def _name(self, vertex: Mapping[str, Any]) -> str:
        group = vertex.get("progressGroup") or {}
        return short(str(group.get("name") or vertex.get("name") or ""))

    def _vertex(self, vertex: Mapping[str, Any]) -> Iterator[Event]:
        name, digest = self._name(vertex), str(vertex.get("digest"))
        self._names[digest] = name
        if _HIDDEN.match(name) and not vertex.get("error"):
            return
        step = self._steps.setdefault(name, _Step(name))
        known = step.vertexes.setdefault(digest, _Vertex())
        if not (vertex.get("started") or vertex.get("error")):
            return  # announced only: the step lasts until this vertex is completed
        started, completed = _time(vertex.get("started")), _time(vertex.get("completed"))
        known.cached = known.cached or bool(vertex.get("cached"))
        known.error = _reason(vertex.get("error") or "") or known.error
        known.completed = completed is not None
        yield from self._open(step)
        if completed is not None and step not in self._ending:
            self._ending.append(step)
        if started is not None and completed is not None and known.counted != started:
            known.seconds += (completed - started).total_seconds()
            known.counted = started
        known.started = started

    def _open(self, step: _Step) -> Iterator[Event]:
        if not step.began:
            # keep the steps in the order in which they begin, not that of their announcement
            self._steps[step.name] = self._steps.pop(step.name)
        if not step.open:
            step.began = step.open = True
            yield StepStarted(step.name)

    def _done(self, step: _Step) -> StepDone:
        step.open = False
        return StepDone(step.name, round(step.seconds, 3), step.cached, error=step.error)

    def _status(self, item: Mapping[str, Any]) -> Iterator[Event]:
        step = self._steps.get(self._names.get(str(item.get("vertex")), ""))
        if step is None:
            return
        identity = str(item.get("id"))
        if phase := _PHASES.match(identity):
            yield from self._phase(f"{step.name}: {phase[1]}", identity, item)
            return
        if identity.startswith(("extracting ", "resolve ")):
            return
        total = int(item.get("total") or 0)
        current = int(item.get("current") or 0)
        if not (current or total):
            return
        step.statuses[identity] = (current, total or None)
        totals = [t for _, t in step.statuses.values()]
        known = None if None in totals else sum(t for t in totals if t is not None)
        progress = (sum(c for c, _ in step.statuses.values()), known)
        if progress != step.progress:
            step.progress = progress
            yield StepProgress(step.name, *progress)

    def _phase(self, name: str, identity: str, item: Mapping[str, Any]) -> Iterator[Event]:
        """A part of the export as a step of its own: with a large image, it takes minutes."""
        step = self._steps.setdefault(name, _Step(name))
        part = step.vertexes.setdefault(identity, _Vertex())
        yield from self._open(step)
        started, completed = _time(item.get("started")), _time(item.get("completed"))
        part.completed = completed is not None
        if started and completed and part.counted != started:
            part.counted = started
            part.seconds += (completed - started).total_seconds()
            if step.completed:
                yield self._done(step)

    def _log(self, log: Mapping[str, Any]) -> Iterator[Event]:
        step = self._steps.get(self._names.get(str(log.get("vertex")), ""))
        if step is None:
            return
        data = base64.b64decode(log.get("data") or "").decode(errors="replace")
        *lines, step.partial = (step.partial + data).split("\n")
        for line in lines:
            # a progress bar overwrites its line: keep its last state
            text = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip()
            if text:
                step.tail = [*step.tail[-TAIL + 1 :], text]
                yield StepLog(step.name, text)


def short(name: str) -> str:
    """A step's name without its flags, on one line, at most 140 characters."""
    name = re.sub(r"\[stage-\d+ +", "[", name)
    bare = " ".join(_FLAGS.sub("", name).split())
    return bare if len(bare) <= _NAME_LENGTH else bare[: _NAME_LENGTH - 1] + "…"


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def first_line(text: str) -> str:
    """The first line that is not empty, at most 400 characters of it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:400]


def events(lines: Iterable[str]) -> Iterator[Event]:
    """All events of a recorded stream."""
    progress = Progress()
    for line in lines:
        yield from progress.feed(line)
    yield from progress.finish()


def _items(status: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [item for item in status.get(key) or [] if isinstance(item, dict)]


def _time(text: object) -> datetime | None:
    # datetime takes microseconds, not nanoseconds
    return (
        datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        if isinstance(text, str)
        else None
    )


def _reason(error: str) -> str:
    """The reason of a failure, without the script of the step."""
    return re.sub(r'^process ".*" did not complete successfully: ', "", error, flags=re.DOTALL)
