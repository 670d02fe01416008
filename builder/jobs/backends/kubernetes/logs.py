"""What a JobSet's pods print: each line once, with its replica's name.

The API server returns a log from a whole second on. So each read begins at the second of the last
line, whose time has nanoseconds, and skips what stands before it and the line itself. A pod that
was deleted takes its log along: lines that were not read before are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from builder.core import web
from builder.jobs.backends.kubernetes.client import Client, ClusterRefused, Object
from builder.jobs.backends.kubernetes.pod import CONTAINER
from builder.jobs.backends.kubernetes.status import JOBSET, PodStatus
from builder.jobs.backends.protocol import LogLine

_SECOND: Final = len("2026-11-22T03:52:29")


@dataclass
class JobLog:
    """One job's log, read piece by piece."""

    client: Client
    namespace: str
    name: str
    _last: dict[str, str] = field(default_factory=dict)

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time. Raises OutsideError."""
        path = self.client.path("v1", "pods", namespace=self.namespace)
        pods = [
            pod
            for pod in self.client.items(path, labelSelector=f"{JOBSET}={self.name}")
            if PodStatus.read(pod).started
        ]
        with ThreadPoolExecutor(web.THREADS) as threads:
            merged = [line for lines in threads.map(self._of_pod, pods) for line in lines]
        return tuple(sorted(merged, key=lambda line: line.time))

    def _of_pod(self, pod: Object) -> list[LogLine]:
        query = {"container": CONTAINER, "timestamps": "true"}
        uid = pod["metadata"]["uid"]
        if last := self._last.get(uid):
            query["sinceTime"] = f"{last[:_SECOND]}Z"
        name = f"{pod['metadata']['name']}/log"
        path = self.client.path("v1", "pods", name, self.namespace)
        try:
            text = self.client.text(path, **query)
        except ClusterRefused as error:
            if error.code in (400, 404):  # it does not run yet, or was deleted meanwhile
                return []
            raise
        lines = [line for line in text.split("\n") if line]
        if last in lines:
            lines = lines[lines.index(last) + 1 :]
        if lines:
            self._last[uid] = lines[-1]
        return list(_lines(lines, PodStatus.read(pod).replica))


def _lines(lines: list[str], replica: str) -> Iterator[LogLine]:
    for line in lines:
        stamp, _, text = line.partition(" ")
        with contextlib.suppress(ValueError):
            yield LogLine.printed(datetime.fromisoformat(stamp), replica, text)
