"""What a JobSet's pods print: each line once, with its replica's name.

The API server returns a log from a whole second on. So each read begins at the second of the last
line, whose time has nanoseconds, and skips what stands before it and the line itself. A pod that is
deleted takes its log along, and the controllers delete those that still run when a job ends. So who
follows a job holds a stream of each running pod, which ends when its container has.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Thread
from typing import Final

from builder.core import web
from builder.core.errors import OutsideError
from builder.jobs.backends.kubernetes.client import (
    QUIET,
    STREAMS,
    ClusterClient,
    ClusterRefused,
    Object,
)
from builder.jobs.backends.kubernetes.pod import CONTAINER
from builder.jobs.backends.kubernetes.status import PodStatus
from builder.jobs.backends.protocol import LogLine, LogReader
from builder.jobs.ready import TRIAL_LABEL

_FRACTION: Final = re.compile(r"[.,]\d+")
"""Of a stamp's second; behind it, containerd writes the offset of its node's clock."""
LATEST: Final = 200
"""The last lines of a pod among which a step is looked for."""
LAST: Final = 60.0
"""Seconds that an ended job's pods have for their last lines: Kubernetes' grace is 30 s."""


@dataclass
class ClusterLog(LogReader):
    """Of a pod whose node does not answer, that is said once; the others' lines come."""

    client: ClusterClient
    namespace: str
    selector: str
    """Of its pods' labels."""
    _last: dict[str, str] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)
    _streams: dict[str, Thread] = field(default_factory=dict)
    _streamed: deque[LogLine] = field(default_factory=deque)
    _holds: bool = False

    def hold(self) -> None:
        """Take the lines of running pods as they come, from the next read on."""
        self._holds = True

    def read(self) -> tuple[LogLine, ...]:
        listed = self._pods()
        self._streams = {uid: one for uid, one in self._streams.items() if one.is_alive()}
        pods = [
            pod
            for pod in listed
            if PodStatus.read(pod).started and pod["metadata"]["uid"] not in self._streams
        ]
        merged = self._of_pods(pods)
        for pod in pods if self._holds else ():
            uid, ended = pod["metadata"]["uid"], PodStatus.read(pod).end is not None
            if not (ended or uid in self._silent) and len(self._streams) < STREAMS:
                self._streams[uid] = Thread(target=self._stream, args=(pod,), daemon=True)
                self._streams[uid].start()
        merged += [self._streamed.popleft() for _ in range(len(self._streamed))]
        return tuple(sorted(merged, key=lambda line: line.time))

    def latest(self) -> tuple[LogLine, ...]:
        known = ((pod, PodStatus.read(pod)) for pod in self._pods())
        run = [pod for pod, now in known if now.started and now.end is None]
        return tuple(sorted(self._of_pods(run, LATEST), key=lambda line: line.time))

    def rest(self) -> tuple[LogLine, ...]:
        until = time.monotonic() + LAST
        for stream in self._streams.values():
            stream.join(max(0.0, until - time.monotonic()))
        return self.read()

    def _pods(self) -> list[Object]:
        path = self.client.path("v1", "pods", namespace=self.namespace)
        return self.client.items(path, labelSelector=self.selector)

    def _of_pods(self, pods: list[Object], last: int | None = None) -> list[LogLine]:
        read = functools.partial(self._of_pod, last=last)
        with ThreadPoolExecutor(web.THREADS) as threads:
            return [line for lines in threads.map(read, pods) for line in lines]

    def _of_pod(self, pod: Object, last: int | None) -> list[LogLine]:
        uid, replica = pod["metadata"]["uid"], PodStatus.read(pod).replica
        tail = {} if last is None else {"tailLines": str(last)}
        try:
            text = self.client.text(self._path(pod), **self._query(uid), **tail)
        except ClusterRefused as error:
            if error.code in (400, 404):  # it does not run yet, or was deleted meanwhile
                return []
            if error.code < 500:
                raise
            said = uid in self._silent
            self._silent.add(uid)
            text = f"its log cannot be read now: {error.message}"
            return [] if said else [LogLine(datetime.now(UTC), replica, "WARNING", text)]
        self._silent.discard(uid)
        return list(self._new(text.split("\n"), pod))

    def _stream(self, pod: Object) -> None:
        """Take a pod's lines as they come, until its container ends or the connection does. One
        that is given up because nothing came is opened again."""
        uid, quiet = pod["metadata"]["uid"], QUIET
        with contextlib.suppress(OutsideError):  # the next read asks, and says what is wrong
            while quiet >= QUIET:
                heard = time.monotonic()
                lines = self.client.lines(self._path(pod), **self._query(uid), follow="true")
                for line in self._new(lines, pod):
                    self._streamed.append(line)
                    heard = time.monotonic()
                quiet = time.monotonic() - heard

    def _path(self, pod: Object) -> str:
        return self.client.path("v1", "pods", f"{pod['metadata']['name']}/log", self.namespace)

    def _query(self, uid: str) -> dict[str, str]:
        query = {"container": CONTAINER, "timestamps": "true"}
        if uid in self._last:
            query["sinceTime"] = _FRACTION.sub("", self._last[uid].partition(" ")[0])
        return query

    def _new(self, lines: Iterable[str], pod: Object) -> Iterator[LogLine]:
        uid, replica = pod["metadata"]["uid"], PodStatus.read(pod).replica
        trial = pod["metadata"]["labels"].get(TRIAL_LABEL)
        last = self._last.get(uid, "")
        behind = not last
        for line in filter(None, lines):
            if behind or _time(line) > _time(last):
                behind, self._last[uid] = True, line
                for new in LogLine.stamped([line], replica):
                    yield replace(new, trial=trial)
            behind = behind or line == last


def _time(line: str) -> datetime:
    try:
        return datetime.fromisoformat(line.partition(" ")[0])
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
