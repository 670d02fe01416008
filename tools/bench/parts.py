"""Where the processor time of a `builder` command goes, on this machine and in its engine.

    python -m tools.bench.parts RESULT.json build v100     # the bench `image` runs it, too

The command runs in this process. What takes time in it is wrapped by a clock of its thread's
processor time, which costs microseconds for a piece of 256 KiB. zstd packs in threads of its own:
it has what the process took beside Python's threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builder import cli
from builder.image import bytecode, download, loading, tarball, wheel, wheel_layers

ENGINE, OTHER, IDLE = "engine: take, unpack, hash", "everything else", "idle, or other programs"


@dataclass
class Clock:
    """Processor seconds of parts, and when they ran."""

    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By part. Of all threads."""
    threads: float = 0.0
    """Of Python's threads that have ended."""
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """What ran, with its begin and end in seconds since the start."""
    began: float = field(default_factory=time.monotonic)
    adding: threading.Lock = field(default_factory=threading.Lock)
    inner: threading.local = field(default_factory=threading.local)

    def add(self, part: str, seconds: float) -> None:
        """Count seconds for a part, and not again for the part around it."""
        self.inner.seconds = getattr(self.inner, "seconds", 0.0) + seconds
        with self.adding:
            self.spent[part] += seconds

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, which counts for a part without the parts that it calls."""

        def run(*words: Any, **more: Any) -> Any:
            before, begin = getattr(self.inner, "seconds", 0.0), time.thread_time()
            try:
                return work(*words, **more)
            finally:
                within = getattr(self.inner, "seconds", 0.0) - before
                self.add(part, time.thread_time() - begin - within)

        return run

    def generator(self, part: str, work: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
        """Return a generator's function, of which each step counts for a part."""

        def run(*words: Any, **more: Any) -> Iterator[Any]:
            end, step = object(), self.timed(part, next)
            made = work(*words, **more)
            while (piece := step(made, end)) is not end:
                yield piece

        return run

    def spanned(self, name: Callable[..., str], work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose begin and end are kept."""

        def run(*words: Any, **more: Any) -> Any:
            begin = time.monotonic() - self.began
            try:
                return work(*words, **more)
            finally:
                self.spans.append((name(*words), begin, time.monotonic() - self.began))

        return run


def watch(clock: Clock) -> None:
    """Wrap what takes time."""

    class Hash:
        def __init__(self, *words: bytes) -> None:
            self.made = hashlib.sha256(*words)
            self.update = clock.timed("SHA-256 of layers", self.made.update)
            self.digest, self.hexdigest = self.made.digest, self.made.hexdigest

    def packer(compression: Any) -> Any:
        made = plain_packer(compression)
        calls = {name: clock.timed("zstd", getattr(made, name)) for name in ("compress", "flush")}
        return SimpleNamespace(**calls)

    def run(thread: threading.Thread) -> None:
        plain_run(thread)
        with clock.adding:
            clock.threads += time.thread_time()

    threads: Any = threading.Thread
    making: Any = wheel_layers
    plain_packer, plain_run = tarball._packer, threads.run
    timed: Any = SimpleNamespace(sha256=Hash, file_digest=hashlib.file_digest)
    tarball.hashlib = making.hashlib = timed  # type: ignore[attr-defined]
    tarball._packer = packer
    threads.run = run
    wheel._unpacked = clock.generator("unpack wheels", wheel._unpacked)
    making.prune_file = clock.timed("prune", making.prune_file)
    wheels: Any = download.Wheels
    wheels.fetch = clock.timed("download, and its SHA-256", wheels.fetch)
    compiler: Any = bytecode.BytecodeCompiler
    compiler._run = clock.timed("bytecode, and uv", compiler._run)
    wheel_layers.write = clock.spanned(lambda layer, *_: f"pack {layer.plan.name}",
                                       wheel_layers.write)  # fmt: skip
    loading._send = clock.spanned(
        lambda _, archive, *__: f"load {len(archive.layers)} layers", loading._send
    )


def tree_seconds(root: int) -> float:
    """Processor seconds of a process, of those below it, and of those that these waited for."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(values[1])
        spent[int(path.parent.name)] = sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")

    def below(process: int) -> bool:
        return process == root or (process in parents and below(parents[process]))

    return sum(seconds for process, seconds in spent.items() if below(process))


def processor(who: int) -> float:
    """User and system seconds of `resource.getrusage`."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Run the command; write its parts and its spans, also where it fails."""
    result = Path(sys.argv.pop(1))
    clock = Clock()
    watch(clock)
    try:
        cli.main()
    finally:
        python = clock.threads + time.thread_time()
        spent = dict(clock.spent)
        own, children = processor(resource.RUSAGE_SELF), processor(resource.RUSAGE_CHILDREN)
        spent["zstd"] = spent.get("zstd", 0.0) + own - python
        spent["bytecode, and uv"] = spent.get("bytecode, and uv", 0.0) + children
        spent[OTHER] = own + children - sum(spent.values())
        wall = time.monotonic() - clock.began
        result.write_text(json.dumps({"wall": wall, "spent": spent, "spans": clock.spans}))


def table(taken: dict[str, Any], engine: float, cores: int) -> str:
    """The parts of a command as a Markdown table, and below it the critical path.

    taken: what `main` wrote. engine: the processor seconds of the engine meanwhile.
    """
    wall = taken["wall"]
    parts = {**taken["spent"], ENGINE: engine}
    order = sorted(parts, key=lambda part: -parts[part])
    rows = [(part, parts[part]) for part in order]
    rows += [("all of it", sum(parts.values())), (IDLE, cores * wall - sum(parts.values()))]
    lines = ["| processor time of our cold build | s | of the cores |", "|---|---|---|"]
    lines += [f"| {part} | {s:.1f} | {s / cores / wall:.0%} |" for part, s in rows]
    lines += ["", f"The critical path, of {wall:.1f} s on {cores} cores:", ""]
    spans = sorted(taken["spans"], key=lambda span: span[1])
    lines += [f"- {begin:6.1f} s to {end:6.1f} s  {name}" for name, begin, end in spans
              if end - begin >= wall / 50]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
