"""The lines and samples in a local job's folder, read while the runner writes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from builder import contract
from builder.jobs.backends.local.folder import LOCAL, NOTES
from builder.jobs.backends.protocol import SERVICE, LogLine


@dataclass
class Tail:
    """A file that grows, read line by line. A file that became shorter is read from its start."""

    path: Path
    position: int = 0
    rest: str = ""

    def lines(self) -> Iterator[str]:
        """The whole lines since the last call."""
        try:
            if self.path.stat().st_size < self.position:
                self.position, self.rest = 0, ""
            with self.path.open(encoding="utf-8", errors="replace") as file:
                file.seek(self.position)
                text = self.rest + file.read()
                self.position = file.tell()
        except FileNotFoundError:
            return
        *whole, self.rest = text.split("\n")
        yield from whole


@dataclass
class LocalLog:
    """The lines of a job's replicas and of its runner; with `replica` only that one's."""

    folder: Path
    replica: str | None = None
    _tails: dict[Path, Tail] = field(default_factory=dict)

    def read(self) -> tuple[LogLine, ...]:
        """The lines since the last call, by time."""
        found = []
        for path in sorted((self.folder / LOCAL).glob("*.log")):
            name = SERVICE if path.name == NOTES else path.stem
            if self.replica not in (None, name):
                continue
            for line in self._tails.setdefault(path, Tail(path)).lines():
                stamp, _, text = line.partition(" ")
                with contextlib.suppress(ValueError):
                    found.append(_line(datetime.fromisoformat(stamp), name, text))
        return tuple(sorted(found, key=lambda one: one.time))


def _line(when: datetime, replica: str, text: str) -> LogLine:
    fields = contract.fields(text)
    severity = str(fields.get("severity", "DEFAULT"))
    return LogLine(when, replica, severity, contract.words(text), fields=fields)
