"""Change one line of the trainer and bring the image to a registry: ours and the usual Dockerfile.

Ours is `builder build --to-registry`. Theirs is `docker build` and `docker push` of the usual
Dockerfile (bench/image.py), with TensorFlow in its layer and all caches warm. Both have the same OS
root, engine, trainer and kind of registry.

`python -m bench image` measures these rows too, but one way after the other. Here the two ways take
turns, change by change, so that other work on the machine slows down both alike.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import Row, command, enough_disk, load, report, seconds
from bench.image import (
    NEEDED,
    NEEDED_GPU,
    Setting,
    builder_environment,
    client,
    engine,
    give_root,
    prepared,
    usual_dockerfile,
)
from builder.config import image_yaml
from builder.core.project import BUILD, find_root
from builder.engine import Engine
from tests.registry.server import registry

CHANGES = 15
"""Measured changes of each way; the median counts."""
UNCHECKED = 5
"""Measured changes in a checkout in which nothing was built or checked before."""


def main(target: str, folder: Path) -> int:
    """Measure, print, write results/change.json."""
    root = find_root(Path(__file__).parent)
    needed = NEEDED.get(target, NEEDED_GPU)
    if not image_yaml.load(root, target).has_own_base:
        print(f"change: {target} stands on a published base: nothing to compare", file=sys.stderr)
        return 1
    if not enough_disk("change", folder, needed):
        return 1
    with tempfile.TemporaryDirectory(prefix="bench-change-", dir=folder) as scratch:
        place = Path(scratch)
        place.chmod(0o755)
        with registry(place / "mine") as mine, registry(place / "other") as other:
            first, second = (
                prepared(root, target, place / name, host)
                for name, host in (("ours", mine.host), ("theirs", other.host))
            )
            with engine(second) as docker:
                ours = our_way(first)
                theirs = their_way(second, docker)
                for way in (ours, theirs):  # compile bytecode, fill the caches
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
        Row(what, a, b, is_, f"{how}; ours needs no engine, the engine of theirs is warm", bar=1.0),
        Row(
            f"{what}, the first in a checkout", statistics.median(unchecked), b, is_,
            f"median of {UNCHECKED}, each after build/ was removed; theirs as above", bar=1.0,
        ),
    ]  # fmt: skip
    facts = {
        "target": f"{target}, {second.requirement}",
        "load": f"{before} before, {after} after",
        "network": "the registries are on loopback",
    }
    report("change", rows, facts, turns=turns, unchecked=unchecked)
    return 0


def our_way(setting: Setting) -> Callable[[], float]:
    """A function that makes a change, brings it to the registry, and returns the seconds.

    The registry holds the base already.
    """
    program = Path(sys.executable).parent / "builder"
    environment = builder_environment(setting)

    def builder(*words: str) -> str:
        return command(program, *words, setting.target, cwd=setting.project, env=environment)

    give_root(setting)
    builder("build", "--base-only", "--to-registry")
    return changing(setting, lambda: builder("build", "--to-registry"))


def their_way(setting: Setting, docker: Engine) -> Callable[[], float]:
    """The same with the usual Dockerfile, which was built and pushed once already."""
    image = f"{setting.host}/theirs:{setting.target}"
    build = usual_dockerfile(setting, image)

    def both() -> None:
        build(docker)
        command(docker.cli, "push", image, env=client(docker))

    both()
    return changing(setting, both)


def changing(setting: Setting, work: Callable[[], object]) -> Callable[[], float]:
    """A function that changes the trainer in a new way, then times `work`."""

    def change() -> float:
        setting.change(time.time_ns())
        return seconds(work)

    return change
