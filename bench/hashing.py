"""What it costs to hash everything that comes from the cache, in one run, beside not doing so.

Warm: the base lies in the cache and on the engine. Cold: every layer is made again; packages of
Debian come from the cache, wheels from the index. The two ways take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import Row, load, report
from builder.core.project import find_root

WARM = 7
PROGRAM = """
import sys
from builder.image import content_store, download
if sys.argv.pop(1) == "unhashed":
    content_store.ContentStore.has = lambda self, layer: self.path(layer).is_file()
    download._opened = lambda file: file.path.open("rb") if file.path.exists() else None
from builder.cli import main
main()
"""


def main(target: str) -> int:
    """Measure, print, write results/hashing.json."""
    root = find_root(Path(__file__).parent)
    build = ["build", target, "--base-only"]
    _timed(root, "hashed", build)  # afterwards everything is there
    rows = []
    for what, words, times in (("warm", build, WARM), ("cold", [*build, "--no-cache"], 1)):
        taken = [[_timed(root, way, words) for way in ("hashed", "unhashed")] for _ in range(times)]
        for number, unit in enumerate(("of the clock", "of the processor")):
            ours, theirs = (
                statistics.median(pair[way][number] for pair in taken) for way in (0, 1)
            )
            how = f"{what}: median of {times}, whole commands in turns"
            rows.append(Row(f"{what}, seconds {unit}", ours, theirs, "not hashed", how))
    report("hashing", rows, {"target": target, "load": load()})
    return 0


def _timed(root: Path, way: str, words: list[str]) -> tuple[float, float]:
    """Return the seconds that a command takes: of the clock, and of the processor."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, way, *words]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime
