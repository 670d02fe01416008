"""The lines in a local job's folder, read while the runner writes them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from builder.jobs.backends.local.folder import LOCAL, NOTES
from builder.jobs.backends.protocol import SERVICE, LogLine


@dataclass
class LocalLog:
    """The lines of a job's replicas and of its runner; with `replica` only that one's."""

    folder: Path
    replica: str | None = None
    _positions: defaultdict[Path, int] = field(default_factory=lambda: defaultdict(int))

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call, by time."""
        lines = []
        for path in sorted((self.folder / LOCAL).glob("*.log")):
            name = SERVICE if path.name == NOTES else path.stem
            if self.replica not in (None, name):
                continue
            for written in self._new(path):
                stamp, _, text = written.partition(" ")
                with contextlib.suppress(ValueError):
                    lines.append(LogLine.printed(datetime.fromisoformat(stamp), name, text))
        return tuple(sorted(lines, key=lambda line: line.time))

    def _new(self, path: Path) -> list[str]:
        """Return the whole lines that a file has grown by; a shorter file begins again."""
        position = self._positions[path]
        try:
            if path.stat().st_size < position:
                position = 0
            with path.open("rb") as file:
                file.seek(position)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._positions[path] = position + len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n") if newline else []
