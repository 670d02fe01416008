"""The project's own cloudbuild.yaml on the engine of a Cloud Build worker, from a commit to a push.

    python -m bench.worker [--folder DIR] [TARGET ...]

`builder cloud run-local --engine-profile hosted` carries the file out, with Docker 20.10.24 and the
memory of the machine that the file names. The registry is Debian's docker-registry on loopback.
No public registry is needed: the root of the builder image comes from that registry, and so does
the stand-in for the image of the build's first step, which is the same root with Docker's client of
that version. The builder image itself is built by that first step.

Prints and writes results/worker.json: what was pushed, minutes, the memory of all containers
together, and the most that the engine had on its disk.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import enough_disk, keep, load
from builder.cloudbuild import buildfile
from builder.core.project import find_root
from builder.core.settings import Settings
from builder.engine import Engine, hosted
from builder.engine.private.instance import data_home
from builder.engine.private.programs import WORKER, install
from builder.pipeline import builder_image
from tests.registry.server import RegistryServer, registry

NEEDED = 20e9
"""Bytes of disk that a GPU target takes, its registry included."""


@dataclass(frozen=True)
class Carried:
    """A build of one target that succeeded. digest: of its image. peak, limit, disk: in bytes."""

    target: str
    digest: str
    seconds: float
    peak: int
    limit: int
    disk: int


@dataclass(frozen=True)
class Supplies:
    """What the build finds in the registry. repository: HOST/PATH. root, client: images."""

    repository: str
    root: str
    client: str


def supplied(root: Path, server: RegistryServer, engine: Engine) -> Supplies:
    """Push the root of the builder image and the stand-in for Docker's client.

    engine: makes them.
    """
    supplies = Supplies(
        f"{server.host}/team/training", f"{server.host}/root:slim", f"{server.host}/docker:20.10"
    )
    start, _ = builder_image.root_image(root, Settings(), engine)
    api: Any = engine.client.api
    api.tag(start, *supplies.root.rsplit(":", 1))
    program = install(lambda _: None, WORKER).folder / "root/usr/bin/docker"
    dockerfile = f"FROM {start}\nCOPY docker /usr/bin/docker\n".encode()
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        tar.add(program, "docker")
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(dockerfile)
        tar.addfile(info, io.BytesIO(dockerfile))
    context.seek(0)
    engine.client.images.build(
        fileobj=context, custom_context=True, tag=supplies.client, rm=True, forcerm=True
    )
    for name in (supplies.root, supplies.client):
        for line in api.push(name, stream=True, decode=True):
            if "error" in line:
                raise RuntimeError(f"{name}: {line['error']}")
    return supplies


def carry_out(root: Path, target: str, supplies: Supplies, folder: Path) -> Carried:
    """Clone the commit of `root`, carry its build out, and judge what it pushed.

    Raises RuntimeError with the end of the log if the build fails or its image is not proven.
    """
    project = folder / f"project-{target}"
    subprocess.run(["git", "clone", "--quiet", str(root), str(project)], check=True)
    values = f"_GPU={target},_REGISTRY={supplies.repository},_ROOT={supplies.root}"
    arguments = ["cloudbuild.yaml", "--engine-profile", "hosted", "--substitutions", values]
    first = buildfile.load(project / "cloudbuild.yaml").steps[0].name
    arguments += ["--map", f"{first}={supplies.client}", "--host-network", "--host-configuration"]
    with disk_of_engines() as disk:
        done = _builder(project, "cloud", "run-local", *arguments, "--json")
    answer = json.loads(done.stdout)
    began, ended = (_seconds(answer[name]) for name in ("startTime", "finishTime"))
    tag = f"{supplies.repository}:{target}"
    verified = json.loads(_builder(project, "verify", tag, "--json").stdout)
    return Carried(
        target, verified["digest"], ended - began,
        answer["memory"]["peak"], answer["memory"]["limit"], max(disk, default=0),
    )  # fmt: skip


def _builder(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the project's own `builder`. Its stderr, the log of a build, is shown as it comes."""
    environment = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"builder {' '.join(arguments)}: exit code {done.returncode}")
    return done


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


@contextmanager
def disk_of_engines() -> Iterator[list[int]]:
    """What the throwaway engines had on their disk in bytes, looked at every 20 seconds."""
    over, sizes = threading.Event(), list[int]()

    def look() -> None:
        while not over.wait(20):
            folders = [str(path) for path in data_home().glob("worker_*")]
            command = ["du", "--summarize", "--total", "--block-size=1", *folders]
            words = subprocess.run(command, capture_output=True, text=True).stdout.split()
            if folders and len(words) > 1:
                sizes.append(int(words[-2]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=["cpu", "v100"])
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="for the registry")
    chosen = parser.parse_args()
    root = find_root(Path(__file__).parent)
    if not enough_disk("worker", chosen.folder, NEEDED):
        return 1
    builds, before = [], load()
    with (
        tempfile.TemporaryDirectory(prefix="bench-worker-", dir=chosen.folder) as scratch,
        registry(Path(scratch) / "registry") as server,
    ):
        with hosted.worker(int(7e9)) as maker:  # a newer engine pushes what this one cannot pull
            supplies = supplied(root, server, maker.engine)
        for target in chosen.targets:
            done = carry_out(root, target, supplies, Path(scratch))
            builds.append(done)
            print(
                f"{target}: {done.digest}, {done.seconds / 60:.1f} min, "
                f"memory {done.peak / 1e9:.2f} of {done.limit / 1e9:.1f} GB, "
                f"disk {done.disk / 1e9:.1f} GB",
                flush=True,
            )
    facts = {"load": f"{before} before, {load()} after", "engine": "Docker 20.10.24"}
    keep("worker", [], facts, builds=[vars(done) for done in builds])
    return 0


if __name__ == "__main__":
    sys.exit(main())
