"""What a JobSet's pods print: each line once, with its replica's name.

The API server returns a log from a whole second on. So each read begins at the second of the last
line, and skips the lines of that second that were read before. A pod that a restart deleted takes
its log along: lines that were not read before are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from builder.core import web
from builder.jobs.backends.kubernetes import status
from builder.jobs.backends.kubernetes.client import Client, ClusterRefused, Object
from builder.jobs.backends.kubernetes.pod import CONTAINER
from builder.jobs.backends.protocol import LogLine

_SECOND: Final = len("2026-11-22T03:52:29")


@dataclass
class _PodLog:
    """How far a pod's log was read: the lines of its last second; ended: nothing will follow."""

    last: list[str] = field(default_factory=list)
    ended: bool = False

    def new(self, lines: list[str]) -> list[str]:
        """Return the lines that were not read before, and remember those of the last second.

        lines: the log from the second of the last line that was read.
        """
        lines = lines[len(self.last) :] if lines[: len(self.last)] == self.last else lines
        if lines:
            second = lines[-1][:_SECOND]
            same = self.last if self.last and self.last[-1][:_SECOND] == second else []
            self.last = [*same, *(line for line in lines if line[:_SECOND] == second)]
        return lines


@dataclass
class JobLog:
    """One job's log, read piece by piece; with `replica` only that one's lines."""

    client: Client
    namespace: str
    name: str
    replica: str | None = None
    _pods: dict[str, _PodLog] = field(default_factory=dict)

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time. Raises OutsideError."""
        path = self.client.path("v1", "pods", namespace=self.namespace)
        pods = [
            pod
            for pod in self.client.items(path, labelSelector=f"{status.JOBSET}={self.name}")
            if self.replica in (None, status.replica_of(pod)) and status.has_started(pod)
        ]
        with ThreadPoolExecutor(web.THREADS) as threads:
            merged = [line for lines in threads.map(self._of_pod, pods) for line in lines]
        return tuple(sorted(merged, key=lambda line: line.time))

    def _of_pod(self, pod: Object) -> list[LogLine]:
        read = self._pods.setdefault(pod["metadata"]["uid"], _PodLog())
        if read.ended:
            return []
        query = {"container": CONTAINER, "timestamps": "true"}
        if read.last:
            query["sinceTime"] = f"{read.last[-1][:_SECOND]}Z"
        name = f"{pod['metadata']['name']}/log"
        path = self.client.path("v1", "pods", name, self.namespace)
        try:
            text = self.client.text(path, **query)
        except ClusterRefused as error:
            if error.code in (400, 404):  # it does not run yet, or was deleted meanwhile
                return []
            raise
        read.ended = status.has_ended(pod)
        return list(
            _lines(read.new([line for line in text.split("\n") if line]), status.replica_of(pod))
        )


def _lines(lines: list[str], replica: str) -> Iterator[LogLine]:
    for line in lines:
        stamp, _, text = line.partition(" ")
        with contextlib.suppress(ValueError):
            yield LogLine.printed(datetime.fromisoformat(stamp), replica, text)
