"""What a JobSet's pods print, and what they use: each line once, with its replica's name.

The API server returns a log from a whole second on. So each read begins at the second of the last
line, and skips what it has told of that second. A pod that a restart deleted takes its log along;
lines that were not read before are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from builder import contract
from builder.core import web
from builder.jobs.places.kubernetes import status
from builder.jobs.places.kubernetes.api import Api, ClusterRefused
from builder.jobs.places.kubernetes.jobset import CONTAINER
from builder.jobs.places.protocol import LogLine, Sample

METRICS: Final = "metrics.k8s.io/v1beta1"
_SECOND: Final = len("2026-11-22T03:52:29")
_UNITS: Final = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12},
    **{"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40},
}
"""Source: kubernetes, apimachinery, resource.Quantity."""


@dataclass
class _Read:
    """How far a pod's log was read: the lines of its last second; ended: nothing will follow."""

    told: list[str] = field(default_factory=list)
    ended: bool = False


@dataclass
class ClusterLog:
    """One job's log, read piece by piece; with `replica` only that one's lines."""

    api: Api
    namespace: str
    name: str
    replica: str | None = None
    _read: dict[str, _Read] = field(default_factory=dict)

    def new(self) -> tuple[LogLine, ...]:
        """The lines since the last call, by time. Raises OutsideError."""
        wanted = [
            one
            for one in _pods(self.api, self.namespace, self.name)
            if self.replica in (None, status.replica_of(one)) and status.has_begun(one)
        ]
        with ThreadPoolExecutor(web.THREADS) as pool:
            found = [line for lines in pool.map(self._of_pod, wanted) for line in lines]
        return tuple(sorted(found, key=lambda one: one.time))

    def _of_pod(self, pod: dict[str, Any]) -> list[LogLine]:
        read = self._read.setdefault(pod["metadata"]["uid"], _Read())
        if read.ended:
            return []
        name, replica = pod["metadata"]["name"], status.replica_of(pod)
        query = {"container": CONTAINER, "timestamps": "true"}
        if read.told:
            query["sinceTime"] = f"{read.told[-1][:_SECOND]}Z"
        try:
            path = self.api.path("v1", "pods", f"{name}/log", self.namespace)
            lines = list(self.api.lines(path, **query))
        except ClusterRefused as error:
            if error.code in (400, 404):  # it does not run yet, or it was deleted meanwhile
                return []
            raise
        known = next((n for n, one in enumerate(read.told) if lines[n : n + 1] != [one]), None)
        new = [one for one in lines[len(read.told) if known is None else known :] if one]
        if new:
            second = new[-1][:_SECOND]
            before = read.told if read.told and read.told[-1][:_SECOND] == second else []
            read.told = [*before, *(one for one in new if one[:_SECOND] == second)]
        read.ended = status.has_ended(pod)
        return list(_lines(new, replica))


def _lines(lines: list[str], replica: str) -> Iterator[LogLine]:
    for line in lines:
        stamp, _, text = line.partition(" ")
        with contextlib.suppress(ValueError):
            fields = contract.fields(text)
            severity = str(fields.get("severity", "DEFAULT"))
            when = datetime.fromisoformat(stamp)
            yield LogLine(when, replica, severity, contract.words(text), fields=fields)


@dataclass
class ClusterUsage:
    """CPU and memory of a job's pods, from the metrics server; nothing where there is none."""

    api: Api
    namespace: str
    name: str
    _told: set[tuple[str, str]] = field(default_factory=set)

    def new(self) -> tuple[Sample, ...]:
        """The newest sample of each replica, unless it was told before. Raises OutsideError."""
        path = self.api.path(METRICS, "pods", namespace=self.namespace)
        try:
            measured = self.api.items(path, labelSelector=f"{status.JOBSET}={self.name}")
        except ClusterRefused as error:
            if error.code in (403, 404, 503):  # no metrics server, none that may be asked
                return ()
            raise
        found = []
        for one in measured:
            key = (one["metadata"]["name"], str(one.get("timestamp")))
            if key in self._told:
                continue
            self._told.add(key)
            used = [container.get("usage") or {} for container in one.get("containers") or []]
            found.append(
                Sample(
                    datetime.fromisoformat(str(one["timestamp"])),
                    status.replica_of(one),
                    sum(_quantity(item.get("cpu")) for item in used),
                    sum(_quantity(item.get("memory")) for item in used),
                )
            )
        return tuple(sorted(found, key=lambda sample: sample.time))


def _pods(api: Api, namespace: str, name: str) -> list[dict[str, Any]]:
    path = api.path("v1", "pods", namespace=namespace)
    return api.items(path, labelSelector=f"{status.JOBSET}={name}")


def _quantity(text: object) -> float:
    """`250m` is 0.25, `64Mi` is 67108864; 0 for what is none."""
    number = str(text or "0").rstrip("numkMGTi")
    with contextlib.suppress(ValueError):
        return float(number) * _UNITS.get(str(text or "")[len(number) :], 0.0)
    return 0.0
