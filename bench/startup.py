"""How long a person waits before a build begins: the command line, and rendering all targets.

Compared with hpccm (a recipe for each target), `docker buildx bake --print` (a file with the same
images) and repo2docker --no-build (a folder with one requirement). They do less: none of them
checks a combination of versions, reads a lock, or compares with the committed files.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import Row, bytecode, command, load, median_seconds, report
from builder.config import image_yaml
from builder.core.errors import OutsideError
from builder.core.project import find_root
from builder.engine import private

RUNS = 10
PROCESSES = 5
WARM = 20

# Each program runs in a process of its own. TIMES is appended: it calls `work` after the imports.
OURS = """
import json, sys, time
from pathlib import Path
from builder.image import dockerfile
root = Path(sys.argv[1])
def work():
    dockerfile.load_all(root)
"""
HPCCM = """
import json, sys, time
import hpccm
files = sys.argv[1:]
def work():
    for file in files:
        str(hpccm.recipe(file, ctype=hpccm.container_type.DOCKER))
"""
TIMES = f"""
spent = []
for _ in range(1 + {WARM}):
    began = time.perf_counter()
    work()
    spent.append(time.perf_counter() - began)
print(json.dumps(spent))
"""

RECIPE = """
Stage0 += baseimage(image='debian:bookworm-slim')
Stage0 += apt_get(ospackages=['python3', 'python3-venv', 'ca-certificates'])
Stage0 += shell(commands=['python3 -m venv /opt/venv',
                          '/opt/venv/bin/pip install tensorflow[and-cuda]==2.21.0'])
Stage0 += environment(variables={{'PATH': '/opt/venv/bin:$PATH'}})
Stage0 += copy(src='trainer', dest='/app/trainer')
Stage0 += workdir(directory='/app')
Stage0 += label(metadata={{'target': '{target}'}})
Stage0 += runscript(commands=['python3 -m trainer.task'])
"""


def main() -> int:
    """Measure, print, write results/startup.json."""
    root = find_root(Path(__file__).parent)
    targets = image_yaml.targets(root)
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        scratch = Path(name)
        recipes = [scratch / f"{target}.py" for target in targets]
        for target, recipe in zip(targets, recipes, strict=True):
            recipe.write_text(RECIPE.format(target=target))
        # Each program runs once before it is measured: that run compiles the bytecode.
        environment = bytecode(scratch / "bytecode")

        def python(*words: str | Path) -> str:
            return command(*words, cwd=root, env=environment)

        rows = whole_processes(python, scratch, targets, recipes)
        rows += in_one_process(python, root, recipes)
    caches = "file system warm, bytecode compiled by an earlier run"
    report("startup", rows, {"load": load(), "caches": caches})
    return 0


def whole_processes(
    python: Callable[..., str], scratch: Path, targets: tuple[str, ...], recipes: list[Path]
) -> list[Row]:
    """`builder --help` and `builder render --check`, beside what the other programs can do."""
    programs = Path(sys.executable).parent
    bake = scratch / "docker-bake.json"
    bake.write_text(json.dumps(bake_file(targets)))
    folder = scratch / "folder"
    folder.mkdir()
    (folder / "requirements.txt").write_text("tensorflow==2.21.0\n")
    builder, hpccm = programs / "builder", programs / "hpccm"
    repo2docker = (programs / "jupyter-repo2docker", "--no-build")
    user = ("--user-id", "1000", "--user-name", "someone")

    how = f"median of {RUNS} whole processes, after one that does not count"
    help_ = timed(lambda: python(builder, "--help"))
    check = timed(lambda: python(builder, "render", "--check"))
    what = f"builder render --check, {len(targets)} targets"
    others: tuple[tuple[str, Callable[[], str]], ...] = (
        ("hpccm --recipe, 1 target", lambda: python(hpccm, "--recipe", recipes[0])),
        (f"buildx bake --print, {len(targets)} targets", lambda: baked(bake)),
        ("repo2docker --no-build, 1 folder", lambda: python(*repo2docker, *user, folder)),
    )
    hpccm_help = partial(python, hpccm, "--help")
    return [
        row("builder --help", help_, "hpccm --help", hpccm_help, how, bar=0.2),
        *(row(what, check, name, work, how) for name, work in others),
    ]


def in_one_process(python: Callable[..., str], root: Path, recipes: list[Path]) -> list[Row]:
    """Rendering every target in one process, beside hpccm: the first call, and later ones."""
    ours = in_process(python, OURS, root)
    try:
        theirs = in_process(python, HPCCM, *recipes)
    except RuntimeError:
        theirs = None
    what = f"load, resolve, read the lock, render {len(recipes)} targets, in one process"
    beside = f"hpccm, {len(recipes)} recipes" + ("" if theirs else ": not installed")
    calls = (
        ("first call", f"after all imports but Jinja's; median of {PROCESSES} processes"),
        ("later calls", f"median of {WARM} calls in each of {PROCESSES} processes"),
    )
    return [
        Row(f"{what}: {name}", ours[index] * 1e3, theirs[index] * 1e3 if theirs else None,
            beside, how, unit="ms", bar=100, bar_of="ours")
        for index, (name, how) in enumerate(calls)
    ]  # fmt: skip


def bake_file(targets: tuple[str, ...]) -> dict[str, object]:
    """The same images for `docker buildx bake`: a base and a training image for each target."""
    found: dict[str, object] = {}
    for target in targets:
        place = f"images/{target}"
        found[f"{target}-base"] = {"context": place, "dockerfile": "base.Dockerfile"}
        found[target] = {
            "context": place,
            "contexts": {"base": f"target:{target}-base"},
            "tags": [f"training:{target}"],
        }
    return {"group": {"default": {"targets": list(targets)}}, "target": found}


def baked(file: Path) -> str:
    """`buildx bake --print`, with the private engine's own buildx."""
    engine = private.status().engine
    if engine is None:
        raise OutsideError("the private engine does not run", "builder engine start")
    environment = {"HOME": str(file.parent), **engine.environment}
    return command(engine.buildx[0], "bake", "--print", "--file", file, env=environment)


def timed(work: Callable[[], object]) -> float:
    """Median seconds of a call; the first one fills the caches and does not count."""
    work()
    return median_seconds(work, RUNS)


def row(
    what: str,
    ours: float,
    theirs_is: str,
    work: Callable[[], object],
    how: str,
    bar: float | None = None,
) -> Row:
    """Ours beside another program; if that one is missing, the row says so."""
    try:
        theirs: float | None = timed(work)
    except (OSError, RuntimeError, OutsideError) as error:
        theirs = None
        how += f"; {theirs_is} not measured: {str(error).splitlines()[0]}"
    return Row(what, ours, theirs, theirs_is, how, bar=bar, bar_of="ours")


def in_process(python: Callable[..., str], program: str, *arguments: Path) -> tuple[float, float]:
    """Seconds of the first call and of later calls, each the median over new processes."""
    first, later = [], []
    python(sys.executable, "-c", program + TIMES, *arguments)
    for _ in range(PROCESSES):
        spent = json.loads(python(sys.executable, "-c", program + TIMES, *arguments))
        first.append(spent[0])
        later += spent[1:]
    return statistics.median(first), statistics.median(later)
