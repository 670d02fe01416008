"""How long a person waits before a build begins: the command line, and rendering all targets.

Compared with `docker buildx bake --print` of a file with the same images. It does less: it neither
checks a combination of versions, nor reads a lock, nor compares with the committed files.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from builder.config import image_yaml
from builder.core.errors import OutsideError
from builder.core.project import find_root
from builder.engine import private
from tools.bench import Row, bytecode, command, load, median_seconds, report

RUNS = 10
PROCESSES = 5
WARM = 20
RENDER = f"""
import json, sys, time
from pathlib import Path
from builder.image import dockerfile
spent = []
for _ in range(1 + {WARM}):
    began = time.perf_counter()
    dockerfile.load_all(Path(sys.argv[1]))
    spent.append(time.perf_counter() - began)
print(json.dumps(spent))
"""
"""Runs in a process of its own."""


def main() -> int:
    """Measure, print, write results/startup.json."""
    root = find_root(Path(__file__).parent)
    targets = image_yaml.targets(root)
    builder = Path(sys.executable).parent / "builder"
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        environment = bytecode(Path(name) / "bytecode")

        def python(*words: str | Path) -> str:
            return command(*words, cwd=root, env=environment)

        help_ = timed(lambda: python(builder, "--help"))
        check = timed(lambda: python(builder, "render", "--check"))
        made = timed(lambda: python(builder, "render", "--check", *targets))
        first, later = in_process(lambda: python(sys.executable, "-c", RENDER, root))
        theirs, problem = baked(Path(name) / "docker-bake.json", targets)
    how = f"median of {RUNS} whole processes, after one that does not count"
    what = f"load, resolve, read the lock, render {len(targets)} targets, in one process"
    calls = (
        (first, "first call", f"after all imports but Jinja's; median of {PROCESSES} processes"),
        (later, "later calls", f"median of {WARM} calls in each of {PROCESSES} processes"),
    )
    rows = [
        Row("builder --help", help_, None, "", how, bar=0.2, bar_of="ours"),
        Row("builder render --check, no file changed since", check, None, "", how),
        Row(
            f"builder render --check, {len(targets)} targets",
            made,
            theirs,
            f"buildx bake --print, {len(targets)} targets",
            how + problem,
        ),
        *(
            Row(f"{what}: {call}", spent * 1e3, None, "", how, "ms", bar=100, bar_of="ours")
            for spent, call, how in calls
        ),
    ]
    caches = "file system warm, bytecode compiled by an earlier run"
    report("startup", rows, {"load": load(), "caches": caches})
    return 0


def baked(file: Path, targets: tuple[str, ...]) -> tuple[float | None, str]:
    """The seconds of `buildx bake --print` with the private engine's buildx, or why there are none.

    The file has a base and a training image for each target.
    """
    images: dict[str, object] = {}
    for target in targets:
        images[f"{target}-base"] = {"context": target, "dockerfile": "base.Dockerfile"}
        images[target] = {"context": target, "contexts": {"base": f"target:{target}-base"}}
    file.write_text(json.dumps({"group": {"default": {"targets": targets}}, "target": images}))
    try:
        engine = private.status().engine
        if engine is None:
            raise OutsideError("the private engine does not run", "builder engine start")
        environment = {"HOME": str(file.parent), **engine.environment}
        words = (engine.buildx[0], "bake", "--print", "--file", file)
        return timed(lambda: command(*words, env=environment)), ""
    except (OSError, RuntimeError, OutsideError) as error:
        return None, f"; buildx not measured: {str(error).splitlines()[0]}"


def timed(work: Callable[[], object]) -> float:
    """Median seconds of a call; the first one fills the caches and does not count."""
    work()
    return median_seconds(work, RUNS)


def in_process(program: Callable[[], str]) -> tuple[float, float]:
    """Seconds of the first call and of later calls, each the median over new processes."""
    program()
    runs = [json.loads(program()) for _ in range(PROCESSES)]
    later = [spent for run in runs for spent in run[1:]]
    return statistics.median(run[0] for run in runs), statistics.median(later)
