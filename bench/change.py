"""One line of the trainer changed: `builder build --to-registry`, `docker build` and `docker push`.

`python -m bench image` measures these rows too, each way by itself. Here both ways stand ready side
by side, and each change is made by one and then by the other: what else the machine does falls on
both. Theirs is the post's way (bench/image.py), with TensorFlow in its layer and all caches warm.
The same root, engine, trainer and kind of registry for both.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import Row, bytecode, command, load, report, seconds
from bench.image import NEEDED, NEEDED_GPU, Setting, client, copy, engine, one_layer
from builder.core.project import BUILD, find_root
from builder.core.templates import DOCKERFILE
from builder.engine import private
from builder.lock import lock
from builder.pipeline.append import read
from builder.spec import catalogue, compatibility
from tests.registry.server import registry

CHANGES = 15
"""Of each way; the median counts."""
UNCHECKED = 5
"""Changes in a checkout in which nothing was built or checked before."""


def main(target: str, folder: Path) -> int:
    """Measure, print, write results/change.json."""
    root = find_root(Path(__file__).parent)
    spec = catalogue.load(root, target)
    held = lock.read(root, target).root
    needed = NEEDED.get(target, NEEDED_GPU)
    if held is None or shutil.disk_usage(folder).free < needed:
        print(f"change: needs an own base, and {needed / 1e9:.0f} GB in {folder}", file=sys.stderr)
        return 1
    stack = compatibility.resolve(spec)
    with tempfile.TemporaryDirectory(prefix="bench-change-", dir=folder) as scratch:
        place = Path(scratch)
        place.chmod(0o755)
        with registry(place / "ours") as mine, registry(place / "theirs") as other:
            first, second = (
                Setting(target, spec, stack.tensorflow_requirement, held,
                        copy(root, place / f"project-{name}"), place, host)
                for name, host in (("ours", mine.host), ("theirs", other.host))
            )  # fmt: skip
            with engine(first) as docker:
                ours = our_way(first, docker)
                theirs = their_way(second, docker)
                for way in (ours, theirs):  # compiles, fills caches
                    way()
                before = load()
                turns = [(ours(), theirs()) for _ in range(CHANGES)]
                after = load()
                unchecked = []
                for _ in range(UNCHECKED):
                    shutil.rmtree(first.project / BUILD)
                    unchecked.append(ours())
    a, b = (statistics.median(way) for way in zip(*turns, strict=True))
    is_, how = "docker build + docker push", f"median of {CHANGES} changes, in turns"
    what = "code change to pushed image, not proven"
    rows = [
        Row(what, a, b, is_, f"{how}; ours needs no engine, theirs is warm", bar=1.0),
        Row(
            f"{what}, the first in a checkout", statistics.median(unchecked), b, is_,
            f"median of {UNCHECKED}, each after build/ was removed; theirs as above", bar=1.0,
        ),
    ]  # fmt: skip
    facts = {
        "target": f"{target}, {stack.tensorflow_requirement}",
        "load": f"{before} before, {after} after",
        "network": "the registries are on loopback",
    }
    report("change", rows, facts, turns=turns, unchecked=unchecked)
    return 0


def our_way(setting: Setting, docker: private.Endpoint) -> Callable[[], float]:
    """What makes a change and brings it to the registry, in seconds; the base lies there."""
    program = Path(sys.executable).parent / "builder"
    environment = bytecode(setting.scratch / "bytecode") | {
        "BUILDER_ENGINE": "private",
        "BUILDER_REGISTRY": f"{setting.host}/ours",
        private.ENVIRONMENT: str(setting.scratch / "engine"),
    }

    def builder(*words: str) -> str:
        return command(program, *words, setting.target, cwd=setting.project, env=environment)

    builder("build", "--base-only")
    reading = read((setting.project / catalogue.IMAGES / setting.target / DOCKERFILE).read_text())
    assert reading, "the target's Dockerfile only copies"
    name = f"{setting.host}/ours:{reading.base}"
    command(docker.docker, "tag", f"training:{reading.base}", name, env=client(docker))
    command(docker.docker, "push", name, env=client(docker))
    return changing(setting, lambda: builder("build", "--to-registry"))


def their_way(setting: Setting, docker: private.Endpoint) -> Callable[[], float]:
    """The same with one Dockerfile, built and pushed once already."""
    image = f"{setting.host}/theirs:{setting.target}"
    build = one_layer(setting, image)

    def both() -> None:
        build(docker)
        command(docker.docker, "push", image, env=client(docker))

    both()
    return changing(setting, both)


def changing(setting: Setting, work: Callable[[], object]) -> Callable[[], float]:
    """Times `work` on a change that it has not seen."""

    def change() -> float:
        setting.change(time.time_ns())
        return seconds(work)

    return change
