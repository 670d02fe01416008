"""What `prune:` saves: `off`, `tensorflow` and `all` of each GPU target, and the usual Dockerfile.

    python -m bench prune [--targets v100,h100] [--folder DIR]

`builder image --push` builds every image on one private engine, so each has passed the smoke test
and the audit for its own GPU. An empty engine then pulls it from a registry on loopback. There it
imports TensorFlow, opens every library with dlopen, and makes a training step. Variants with the
same base are pulled once. Our images have the locked versions. The usual Dockerfile, which
bench/image.py explains, takes today's versions from the index.

Needs 40 GB of free disk, and an hour on two idle cores.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import bench
from bench import Row, command, enough_disk, load, seconds
from bench.image import (
    Setting,
    builder_environment,
    client,
    engine,
    first_step,
    give_root,
    prepared,
    pull_bytes,
    usual_dockerfile,
)
from builder import contract
from builder.config import image_yaml
from builder.core.errors import FactoryError
from builder.core.project import find_root
from builder.engine import Engine
from builder.pipeline.make import prepare
from builder.prove.smoke import RECORDS
from tests.registry.server import registry

TARGETS = ("v100", "t4", "a100", "l4", "h100")
MODES = ("off", "all", "tensorflow")
POST = "post"
NEEDED = 40e9
"""Bytes of free disk to start with, for the engine, the registry and the store of layers.
RESERVE: bytes to have free before each further image."""
RESERVE = 18e9
SHARED = ("pull", "first_step", "import", "apparent_bytes")
"""The values that are measured once for all images of a base."""
BAR = 0.30
"""The most that `all` may have to pull, as a part of what the usual Dockerfile has."""

LOADS = """
import ctypes, importlib.util, json, os, pathlib, re
site = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parents[1]
opened, failed = 0, []
for top in ("nvidia", "tensorflow"):
    for path in sorted(site.joinpath(top).rglob("*.so*")):
        if re.search(r"[.]so([.][0-9]+)*$", path.name) and not path.is_symlink():
            child = os.fork()
            if not child:
                try:
                    ctypes.CDLL(str(path))
                    os._exit(0)
                except OSError as error:
                    print(error, flush=True)
                    os._exit(1)
            if os.waitpid(child, 0)[1]:
                failed.append(path.name)
            opened += 1
print(json.dumps({"opened": opened - len(failed), "failed": failed}))
"""
"""Runs inside an image. Opens each library of NVIDIA and TensorFlow in a process of its own: two
libraries that register the same operations would end one process."""


@dataclass
class Measured:
    """One image.

    values: names that end in _bytes are bytes, the others seconds. pulled_as: the variant of the
    same base whose pull was measured for this one. stopped: why a measurement is missing.
    """

    mode: str
    target: str
    base: str = ""
    values: dict[str, float] = field(default_factory=dict)
    smoke: str = ""
    opened: int = 0
    failed: list[str] = field(default_factory=list)
    pulled_as: str = ""
    load: str = ""
    stopped: str = ""

    @property
    def name(self) -> str:
        return self.mode if self.mode == POST else f"{self.target} {self.mode}"

    @property
    def whole(self) -> bool:
        """Everything was measured."""
        return not self.stopped and "first_step" in self.values


def main(targets: Sequence[str], folder: Path) -> int:
    """Measure, print, write results/prune.json; 1 if something could not be measured."""
    root = find_root(Path(__file__).parent)
    unknown = [name for name in targets if name not in image_yaml.targets(root)]
    if unknown:
        print(f"prune: no such target: {', '.join(unknown)}", file=sys.stderr)
        return 1
    if not enough_disk("prune", folder, NEEDED):
        return 1
    done: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="bench-prune-", dir=folder) as scratch:
        here = Path(scratch)
        here.chmod(0o755)  # the user in an image reads the records in it
        setting = prepared(root, targets[0], here, "")
        give_root(setting)
        with engine(setting) as docker:
            for group in groups(setting.project, targets):
                measure(setting, docker, group, done)
    found = list(done.values())
    bench.report("prune", rows(found), facts(found), measured=[asdict(one) for one in found])
    print(f"\n{matrix(found)}")
    for name, libraries in lost(found).items():
        print(f"{name}: cannot be opened, while `off` can: {', '.join(libraries)}")
    return int(not all(one.whole for one in found) or bool(lost(found)))


def lost(found: Sequence[Measured]) -> dict[str, list[str]]:
    """Libraries that dlopen opens with `off` and refuses in the pruned image."""
    off = {one.target: set(one.failed) for one in found if one.mode == "off"}
    worse = {one.name: sorted(set(one.failed) - off.get(one.target, set())) for one in found}
    return {name: libraries for name, libraries in worse.items() if libraries and name != POST}


@dataclass(frozen=True)
class Group:
    """Variants with the same base, in build order; no variant stands for the usual Dockerfile."""

    base: str
    variants: tuple[tuple[str, str], ...] = ()


def groups(project: Path, targets: Sequence[str]) -> list[Group]:
    """What to build, in order.

    `off` comes first, because `tensorflow` shares its layer of NVIDIA's libraries. The usual
    Dockerfile comes last, when nothing else takes disk.
    """
    bases: dict[str, list[tuple[str, str]]] = {}
    for mode in MODES:
        for target in targets:
            write(project, mode, target)
            base = prepare(project, target).base
            assert base
            bases.setdefault(base.hash, []).append((mode, target))
    made = [Group(base, tuple(variants)) for base, variants in bases.items()]
    return [*made, Group("")]


def write(project: Path, mode: str, target: str) -> None:
    """Set `prune:` of a target in the copy of the project, and render it."""
    from builder.image import dockerfile

    file = project / "images" / target / "image.yaml"
    kept = [
        line for line in file.read_text().splitlines() if not re.match("prune|size_budget", line)
    ]
    file.write_text("\n".join([*kept, "size_budget: 9 GB", f"prune: {mode}"]) + "\n")
    dockerfile.write(project, dockerfile.texts(project, dockerfile.load_all(project, [target])))


# --- one base -------------------------------------------------------------------------------------


def measure(setting: Setting, docker: Engine, group: Group, done: dict[str, Measured]) -> None:
    """Build and push the images of one base, remove them, then pull and start them elsewhere."""
    variants = group.variants or ((POST, ""),)
    made = [Measured(mode, target, base=group.base) for mode, target in variants]
    free = shutil.disk_usage(setting.scratch).free
    if free < RESERVE:
        note(f"{made[0].name} and the others of its base left out: {free / 1e9:.0f} GB free")
        return
    done |= {one.name: one for one in made}
    before = set() if made[0].mode == POST else cache(docker)
    with registry(setting.scratch / "registry") as server:
        setting = replace(setting, host=server.host)
        for one in made:
            with kept(one):
                image = build(setting, docker, one)
                repository, _, tag = image.removeprefix(f"{server.host}/").partition(":")
                one.values["pull_bytes"] = pull_bytes(server.host, repository, tag)
        # Keep the layers of `off`, on which `tensorflow` builds.
        remove(docker, () if made[0].mode == "off" else cache(docker) - before)
        whole = [one for one in made if not one.stopped]
        for one in whole[:1]:
            with kept(one):
                start(setting, one, f"{server.host}/{place(one)}")
        for one in whole[1:]:
            with kept(one):
                first = whole[0]
                one.pulled_as, one.stopped = first.name, first.stopped
                one.opened, one.failed = first.opened, first.failed
                one.values |= {n: first.values[n] for n in SHARED if n in first.values}
    shutil.rmtree(setting.scratch / "registry", ignore_errors=True)


@contextmanager
def kept(one: Measured) -> Iterator[None]:
    """Print the result of one step of an image, also of one that stopped."""
    one.load = load()
    try:
        yield
    except (RuntimeError, OSError, ValueError, FactoryError) as error:
        one.stopped = str(error)
    seen = ", ".join(f"{name} {value:,.1f}" for name, value in one.values.items())
    note(f"{one.name}: {seen} {one.opened} opened {one.failed or ''} {one.stopped}")


def build(setting: Setting, docker: Engine, one: Measured) -> str:
    """Build and push one image; its reference. Ours is proven before the push."""
    if one.mode == POST:
        remove(docker, cache(docker))
        image = f"{setting.host}/{place(one)}"
        made = usual_dockerfile(setting, image)
        one.values["build"] = seconds(lambda: made(docker))
        one.values["push"] = seconds(lambda: command(docker.cli, "push", image, env=client(docker)))
        return image
    write(setting.project, one.mode, one.target)
    environment = builder_environment(setting)
    environment["PYTHONPATH"] = str(Path(bench.__file__).parents[1])
    words = ("-m", "builder", "image", one.target, "--push", "--json")
    (record,) = json.loads(command(sys.executable, *words, cwd=setting.project, env=environment))
    checks = record["receipt"]["checks"]
    one.smoke = ", ".join(f"{c['name']} {'passed' if c['passed'] else 'FAILED'}" for c in checks)
    one.values |= {f"build: {name}": spent for name, spent in record["phases"].items()}
    one.values["smoke"] = sum(check["seconds"] for check in checks)
    return f"{setting.host}/{place(one)}"


def place(one: Measured) -> str:
    """Repository and tag of an image in its registry."""
    return f"ours:{one.target}" if one.target else f"{POST}:latest"


def start(setting: Setting, one: Measured, image: str) -> None:
    """On an empty engine: pull, make the first step, open every library, take its sizes."""
    there = replace(setting, scratch=setting.scratch / "pulls")
    there.scratch.mkdir(exist_ok=True)
    there.scratch.chmod(0o755)
    records = there.scratch / "records"
    shutil.copytree(RECORDS, records, dirs_exist_ok=True)
    with engine(there, with_root=False) as docker:
        environment = client(docker)
        one.values["pull"] = seconds(lambda: command(docker.cli, "pull", image, env=environment))
        one.values["first_step"] = first_step(docker, image, records)
        run = [str(docker.cli), "run", "--rm", "--network=none", "--user=0:0"]
        run.append(f"--env={contract.ACCELERATOR}={contract.CPU}")
        words = ("--entrypoint=du", image, "-sx", "--block-size=1", "--apparent-size", "/")
        one.values["apparent_bytes"] = int(command(*run, *words, env=environment).split()[0])
        python = ("--entrypoint=python3", image, "-c")
        one.values["import"] = seconds(
            lambda: command(*run, *python, "import tensorflow", env=environment)
        )
        answer = json.loads(command(*run, *python, LOADS, env=environment).splitlines()[-1])
        one.opened, one.failed = answer["opened"], answer["failed"]


def cache(docker: Engine) -> set[str]:
    """The ids of the engine's build cache, without the mounts that hold downloads."""
    listed = command(docker.cli, "buildx", "du", "--format=json", env=client(docker))
    records = (json.loads(line) for line in listed.splitlines() if line.startswith("{"))
    return {record["ID"] for record in records if record["Type"] == "regular"}


def remove(docker: Engine, made: Iterable[str]) -> None:
    """Remove every image of the engine but the rootfs, and the layers `made` from its cache."""
    environment = client(docker)
    listed = command(docker.cli, "images", "--format={{.Repository}}:{{.Tag}}", env=environment)
    images = [
        name for name in listed.split() if "training-rootfs" not in name and "<none>" not in name
    ]
    if images:
        command(docker.cli, "image", "rm", "--force", *images, env=environment)
    left = set(made)
    for _ in range(8):  # a layer can be removed only after those on top of it
        for name in left:
            words = ("buildx", "prune", "--force", "--all", f"--filter=id={name}")
            command(docker.cli, *words, env=environment)
        left &= cache(docker)
        if not left:
            return
    note(f"{len(left)} layers stay in the build cache")


def note(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


# --- the report -----------------------------------------------------------------------------------


def rows(found: Sequence[Measured]) -> list[Row]:
    """Bytes to pull, bytes unpacked, time to the first step: each image beside the usual one."""
    post = next((one for one in found if one.mode == POST), Measured(POST, ""))
    made: list[Row] = []
    for one in found:
        if one.mode == POST:
            continue
        bar = BAR if one.mode == "all" else None
        same = f"; measured with {one.pulled_as}, the same base" if one.pulled_as else ""
        for what, value, how in (
            ("to pull", "pull_bytes", "manifest in the registry"),
            ("unpacked", "apparent_bytes", f"du --apparent-size / in a container{same}"),
            ("pull and first step", "", f"docker pull from loopback, docker run{same}"),
        ):
            made.append(Row(f"{one.name}: {what}", amount(one, value), amount(post, value),
                            "one pip layer", how, unit="MB" if value else "s",
                            bar=bar if value == "pull_bytes" else None))  # fmt: skip
    return made


def amount(one: Measured, name: str) -> float | None:
    """A value in MB; without a name, the seconds from an empty engine to the first step."""
    if name:
        value = one.values.get(name)
        return None if value is None else value / 1e6
    pull, step = one.values.get("pull"), one.values.get("first_step")
    return None if pull is None or step is None else pull + step


def facts(found: Sequence[Measured]) -> dict[str, Any]:
    """What each image did, and how busy the machine was."""
    told: dict[str, Any] = {"load": load()}
    for one in found:
        failed = f", NOT OPENED: {one.failed}" if one.failed else ""
        smoke = one.smoke or "no smoke run"
        told[one.name] = (
            f"stopped: {one.stopped.splitlines()[-1]}"
            if one.stopped
            else f"imports TensorFlow, {one.opened} libraries opened{failed}; {smoke}; {one.load}"
        )
    return told


def matrix(found: Sequence[Measured]) -> str:
    """Targets down, variants across, each as a part of the usual Dockerfile: for the documents."""
    by_name = {one.name: one for one in found}
    post = by_name.get(POST, Measured(POST, ""))
    lines = ["| to pull; first step | off | tensorflow | all | usual Dockerfile |",
             "|---|---|---|---|---|"]  # fmt: skip
    for target in dict.fromkeys(one.target for one in found if one.target):
        cells = [
            cell(by_name.get(f"{target} {mode}"), post) for mode in ("off", "tensorflow", "all")
        ]
        lines.append(f"| {target} | {' | '.join(cells)} | {cell(post, post)} |")
    return "\n".join(lines)


def cell(one: Measured | None, post: Measured) -> str:
    if one is None or (size := amount(one, "pull_bytes")) is None:
        return "not measured"
    whole = amount(post, "pull_bytes")
    part = f" ({size / whole:.2f})" if whole and one is not post else ""
    spent = amount(one, "")
    return f"{size:,.0f} MB{part}; " + (f"{spent:.0f} s" if spent else "not started")
