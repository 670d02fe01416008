"""Benchmarks: the factory and the trainer compared with the alternatives.

`make bench` runs those that `tools/bench/__main__.py` lists. Each measures both sides in one run on
one machine. real_data.py measures what the trainer learns (`python -m tools.bench.real_data`).

"The usual Dockerfile" is the alternative of several benches: Debian's Python, one `pip install`
layer with TensorFlow, then the program, as a well-known blog post shows it (tools/bench/image.py).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One comparison.

    ours, theirs: the two measurements, in `unit`. None says that there is nothing to compare, or
    that the measurement failed; `how` then says why. theirs_is: the alternative. bar: the largest
    allowed value of the ratio ours / theirs, or of ours alone (`bar_of`).
    """

    what: str
    ours: float | None
    theirs: float | None
    theirs_is: str
    how: str
    unit: Literal["s", "ms", "MB"] = "s"
    bar: float | None = None
    bar_of: Literal["ratio", "ours"] = "ratio"
    network: bool = False
    """Whether it depends on the network, which the table then says."""

    @property
    def ratio(self) -> float | None:
        """ours / theirs; below 1, ours is better."""
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without a bar or without a measurement."""
        value = self.ratio if self.bar_of == "ratio" else self.ours
        return None if self.bar is None or value is None else value <= self.bar


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, to read on a terminal and to copy into the documents."""
    head = ("what", "ours", "theirs", "ratio", "bar", "theirs is")
    lines = [
        (
            f"{row.what} (network)" if row.network else row.what,
            quantity(row.ours, row.unit),
            quantity(row.theirs, row.unit),
            number(row.ratio),
            _bar(row),
            row.theirs_is,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    shape = [head, tuple("-" * width for width in widths), *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in shape
    )


def _bar(row: Row) -> str:
    if row.bar is None:
        return ""
    bar = number(row.bar) if row.bar_of == "ratio" else quantity(row.bar, row.unit)
    verdict = {True: "met", False: "MISSED", None: "not measured"}[row.met]
    return f"<= {bar} {verdict}"


def quantity(value: float | None, unit: str) -> str:
    """1234.5, "MB" -> "1,234 MB": three significant digits; "-" for None."""
    return "-" if value is None else f"{number(value)} {unit}"


def number(value: float | None) -> str:
    """Three significant digits: 0.0123, 0.45, 12.3, 3,643."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def report(name: str, rows: Sequence[Row], facts: Mapping[str, Any], **more: Any) -> None:
    """Print the table and how each row was measured; write results/<name>.json.

    more: further values of the file, beside the rows.
    """
    print(f"\n## {name}\n\n{table(rows)}\n")
    for how in dict.fromkeys(row.how for row in rows):
        whats = dict.fromkeys(row.what for row in rows if row.how == how)
        print(f"- {'; '.join(whats)}: {how}")
    for key, value in facts.items():
        print(f"- {key}: {value}")
    content = {
        "name": name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "facts": dict(facts),
        "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in rows],
        **more,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def load() -> str:
    """How busy the machine is; a measurement on a busy machine is worth less."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_seconds(work: Callable[[], object], runs: int) -> float:
    """Median wall time of `runs` calls."""
    return statistics.median(seconds(work) for _ in range(runs))


def command(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a program; its stdout. Raises RuntimeError with the last lines of its output."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        shown = shlex.join(str(word) for word in words)
        raise RuntimeError(f"{shown}: exit code {done.returncode}\n{output}")
    return done.stdout


def bytecode(folder: Path) -> dict[str, str]:
    """An environment in which Python keeps its bytecode in `folder`, as after an installation."""
    kept = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


def enough_disk(name: str, folder: Path, needed: float) -> bool:
    """Whether `folder` has `needed` bytes free; says so on stderr if it has not."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        print(
            f"{name}: {folder} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} GB are needed; "
            "free some, or name another folder with --folder",
            file=sys.stderr,
        )
    return free >= needed
