"""The main job, build to push, compared with the usual Dockerfile.

The usual Dockerfile is the one that a well-known blog post shows: Debian's Python and pip, one
`pip install` layer without a cache, then the program; `docker build` and `docker push` with their
defaults (gzip). Both ways have the same rootfs, engine software, framework, program and network.

Each way gets private engines and an empty registry on loopback of its own. An engine is empty when
its step begins, and is removed afterwards. Ours runs first: a cache between this machine and the
package index can then only help the other way.

Times are those of whole commands. Both ways have the rootfs before the clock starts: Debian's
required packages, apt, Python and certificates, one layer. Theirs has it as an image in its engine,
ours in its store of layers. Ours has a cache of its own, which is empty but for that layer.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

from builder import contract
from builder.config import compatibility, debian, image_yaml, lockfile
from builder.core.errors import FactoryError
from builder.core.project import find_root
from builder.core.settings import Settings
from builder.engine import Engine, private
from builder.engine.discovery import connect
from builder.facts import frameworks
from builder.image import content_store, plan, rootfs
from builder.image.content_store import ContentStore
from builder.image.layer import Layer, assemble
from builder.image.loading import load as load_image
from builder.prove.smoke import RECORDS
from builder.registry import Registry
from tests.registry.server import registry
from tools.bench import Row, bytecode, command, enough_disk, load, parts, report, seconds

CHANGES = 5
"""Code changes on a warm engine; the median counts."""
NEW_ENGINES = 3
"""Engines without the base, for our way. The other way is measured on one: it builds everything."""
ROOT_IMAGE = "training-rootfs:bench"
"""The rootfs in the engine of the other way."""
NEEDED, NEEDED_ALL, NEEDED_EVERY = 25e9, 45e9, 90e9
"""Free disk in bytes for an engine with one image and for the registry; with all targets of the
framework; with every target."""
NETWORK = frozenset(
    {"cold build", "all targets", "every target", "new release", "new release, its lock"}
)
"""What is downloaded while the clock runs."""

DOCKERFILE = """\
FROM {root}
RUN {secrets} \\
    [ ! -f /run/secrets/network ] || . /run/secrets/network; \\
    apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip \\
    && rm -rf /var/lib/apt/lists/*
RUN {secrets} \\
    [ ! -f /run/secrets/network ] || . /run/secrets/network; \\
    pip install --no-cache-dir --break-system-packages {requirements}
WORKDIR /app
COPY {folder} {place}
ENTRYPOINT ["python3", "-m", "{module}"]
"""


@dataclass
class Taken:
    """What was measured of one way, in seconds or bytes by name; `stopped`: why it ended early."""

    values: dict[str, float] = field(default_factory=dict)
    stopped: str = ""
    parts: str = ""
    """Where the processor time of the cold build went, a table."""

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Time one piece of work."""
        self.put(name, seconds(work))

    def put(self, name: str, value: float) -> None:
        """Keep a number and print it at once, because the whole run takes half an hour."""
        self.values[name] = value
        print(f"{time.strftime('%H:%M:%S')}  {name}: {value:,.2f}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Setting:
    """What both ways share; `host` is the registry of the measured way."""

    target: str
    spec: image_yaml.ImageSpec
    plan: plan.BasePlan
    root: Layer
    """In this machine's store."""
    project: Path
    """A copy of the project, whose program is changed."""
    scratch: Path
    host: str
    every: bool = False
    """Whether those of other frameworks are built at the end, too."""

    @property
    def cache(self) -> Path:
        """What our way has for XDG_CACHE_HOME."""
        return self.scratch / "cache"

    def change(self, number: int) -> None:
        """Change one line of the program, differently each time."""
        *_, name = self.spec.program.module.split(".")
        file = self.project / self.spec.program.folder / f"{name}.py"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("# Change ")]
        file.write_text("\n".join([*lines, f"# Change {number} at {time.time()}"]) + "\n")


def main(target: str, folder: Path, every: bool = False) -> int:
    """Measure, print, write results/image.json; 1 if a way could not be measured to its end.

    every: build the targets of all frameworks at the end, too.
    """
    root = find_root(Path(__file__).parent)
    if not enough_disk("image", folder, NEEDED):
        return 1
    if not image_yaml.load(root, target).has_own_base:
        print(f"image: {target} stands on a published base: nothing to compare", file=sys.stderr)
        return 1
    before = load()
    taken: dict[str, Taken] = {}
    for name, way in (("ours", ours), ("theirs", theirs)):
        taken[name] = Taken()
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=folder) as scratch:
            place = Path(scratch)
            place.chmod(0o755)  # the user in an image reads the records in it
            with registry(place / "registry") as server:
                try:
                    setting = prepared(root, target, place, server.host, every)
                    way(setting, taken[name])
                except (RuntimeError, OSError, FactoryError) as error:
                    taken[name].stopped = str(error)
                    print(f"{name}: {error}", file=sys.stderr)
    facts = {
        "target": f"{target}, {requirements(root, target)}",
        "load": f"{before} before, {load()} after",
        "order": "ours first, then theirs; each engine or store held only the rootfs",
        "network": "the package index that this machine is set up for; the registry is on loopback",
    }
    for name, way_taken in taken.items():
        if way_taken.stopped:
            facts[f"{name} stopped"] = way_taken.stopped.splitlines()[-1]
    name = "image" if target == "v100" else f"image-{target}"
    report(name, rows(taken), facts, parts=taken["ours"].parts)
    print(f"\n{taken['ours'].parts}")
    return int(any(way_taken.stopped for way_taken in taken.values()))


def requirements(root: Path, target: str) -> str:
    """The framework, and what the program needs, as pip takes them."""
    spec = image_yaml.load(root, target)
    program = lockfile.read(root, target).configuration.get(lockfile.PROGRAM_REQUIREMENTS, ())
    return shlex.join([compatibility.resolve(spec).requirement, *program])


def prepared(root: Path, target: str, place: Path, host: str, every: bool = False) -> Setting:
    """A copy of the project in `place`, and the rootfs of the target in this machine's store."""
    spec = image_yaml.load(root, target)
    stack = compatibility.resolve(spec)
    base = plan.plan(spec, stack, lockfile.read(root, target))
    settings = Settings(engine="private")
    scratch = place / "maker"

    def made() -> Layer:
        archives = debian.archives(settings)
        return rootfs.make(base.rootfs, connect(settings), archives, kept, base.compression)

    kept = content_store.of_this_machine()
    layer = kept.find(base.rootfs.plan(base.compression).key)
    if layer is None:
        with patch.dict(os.environ, {private.ENVIRONMENT: str(scratch)}):
            try:
                layer = made()
            finally:
                private.remove(scratch)
    place.mkdir(exist_ok=True)
    project = copy(root, place / "project")
    return Setting(target, spec, base, layer, project, place, host, every)


# --- the two ways ---------------------------------------------------------------------------------


def ours(setting: Setting, taken: Taken) -> None:
    """`builder`'s own commands, as a person types them."""
    program = Path(sys.executable).parent / "builder"
    environment = builder_environment(setting)
    changes = iter(range(1000))

    def builder(*words: str) -> str:
        return command(program, *words, setting.target, cwd=setting.project, env=environment)

    def changed(*words: str) -> float:
        setting.change(next(changes))
        return seconds(lambda: builder(*words))

    builder("explain")  # compiles bytecode
    give_root(setting)
    with engine(setting, with_root=False):
        cold_build(setting, taken, environment)
        taken.measure("proof", lambda: builder("smoke"))
        taken.measure("push", lambda: builder("push"))
        taken.put("bytes", pull_bytes(setting.host, "ours", setting.target))
        taken.put("disk", used(setting.scratch / "engine"))
        spent = [changed("build", "--to-registry") for _ in range(CHANGES)]
        taken.put("change", statistics.median(spent))
        taken.put("change, proven", changed("image", "--push"))
        other_release(setting)
        taken.measure("new release, its lock", lambda: builder("lock"))
        builder("render")
        taken.measure("new release", lambda: builder("build"))
    shutil.rmtree(setting.project)
    copy(find_root(Path(__file__).parent), setting.project)
    spent = []
    for _ in range(NEW_ENGINES):
        with engine(setting, with_root=False):
            spent.append(changed("build", "--to-registry"))
    taken.put("change, new engine", statistics.median(spent))
    started(setting, taken, f"{setting.host}/ours:{setting.target}")
    forget(setting)
    with engine(setting, with_root=False):
        taken.measure("second machine", lambda: builder("build"))
    forget(setting)
    give_root(setting)
    alone = {**environment, "BUILDER_REGISTRY": f"{setting.host}/empty"}
    specs = image_yaml.load_all(setting.project)
    ones = [spec for spec in specs if spec.framework == setting.spec.framework]
    for name, needed, chosen in (
        ("all targets", NEEDED_ALL, ones),
        ("every target", NEEDED_EVERY, specs if setting.every else ()),
    ):
        if chosen and enough_disk(name, setting.scratch, needed):
            names = (spec.name for spec in chosen)
            build_all = partial(command, program, "build", *names, cwd=setting.project, env=alone)
            with engine(setting, with_root=False):
                taken.measure(name, build_all)
            forget(setting)
            give_root(setting)


def cold_build(setting: Setting, taken: Taken, environment: Mapping[str, str]) -> None:
    """`builder build` with clocks in it (tools/bench/parts.py)."""
    result, before = setting.scratch / "parts.json", engine_seconds(setting)
    build = ("-m", "tools.bench.parts", result, "build", setting.target)
    clocked = {**environment, "PYTHONPATH": str(find_root(Path(__file__).parent))}
    taken.measure(
        "cold build",
        lambda: command(sys.executable, *build, cwd=setting.project, env=clocked),
    )
    spent, own = engine_seconds(setting) - before, json.loads(result.read_text())
    taken.put("processor", spent + sum(own["spent"].values()))
    taken.parts = parts.table(own, spent, os.cpu_count() or 1)


def engine_seconds(setting: Setting) -> float:
    """The processor seconds that the engine of a way took so far."""
    process = private.status(setting.scratch / "engine").pid
    return parts.tree_seconds(process) if process else 0.0


def theirs(setting: Setting, taken: Taken) -> None:
    """The usual Dockerfile, `docker build`, `docker push`."""
    image = f"{setting.host}/theirs:{setting.target}"
    build = usual_dockerfile(setting, image)

    def push(docker: Engine) -> None:
        command(docker.cli, "push", image, env=client(docker))

    def both(docker: Engine, number: int) -> float:
        setting.change(number)
        began = time.perf_counter()
        build(docker)
        push(docker)
        return time.perf_counter() - began

    with engine(setting) as docker:
        before = engine_seconds(setting)
        taken.measure("cold build", lambda: build(docker))
        taken.put("processor", engine_seconds(setting) - before)
        taken.measure("push", lambda: push(docker))
        taken.put("bytes", pull_bytes(setting.host, "theirs", setting.target))
        taken.put("disk", used(setting.scratch / "engine"))
        taken.put("change", statistics.median(both(docker, n) for n in range(CHANGES)))
        other_release(setting)
        build_newer = usual_dockerfile(setting, image)
        taken.measure("new release", lambda: build_newer(docker))
    started(setting, taken, image)
    with engine(setting) as docker:
        taken.put("change, new engine", both(docker, CHANGES))


def usual_dockerfile(setting: Setting, image: str) -> Callable[[Engine], None]:
    """A function that builds the usual image; writes its Dockerfile and the network secrets."""
    folder = setting.scratch / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    sources = debian.archives(Settings()).sources(setting.plan.rootfs.suite)
    secrets = debian.build_secrets("".join(sources))
    for name, content in secrets.items():
        (folder / name).write_bytes(content)
    mounts = " ".join(f"--mount=type=secret,id={name}" for name in secrets)
    program = setting.spec.program
    is_package = program.module.startswith(f"{program.folder}.")
    text = DOCKERFILE.format(
        root=ROOT_IMAGE,
        secrets=mounts,
        requirements=requirements(setting.project, setting.target),
        folder=program.folder,
        place=program.folder if is_package else ".",
        module=program.module,
    )
    (setting.project / "Dockerfile").write_text(text)

    def build(docker: Engine) -> None:
        command(
            docker.cli, "build", "--network=host", f"--tag={image}",
            *(f"--secret=id={name},src={folder / name}" for name in secrets),
            setting.project, env=client(docker),
        )  # fmt: skip

    return build


def started(setting: Setting, taken: Taken, image: str) -> None:
    """Pull onto an empty engine, then run to the first training step."""
    records = setting.project / "records"
    shutil.copytree(RECORDS, records, dirs_exist_ok=True)
    with engine(setting, with_root=False) as docker:
        taken.measure("pull", lambda: command(docker.cli, "pull", image, env=client(docker)))
        taken.put("first step", first_step(docker, image, records))


def first_step(docker: Engine, image: str, records: Path) -> float:
    """Seconds until the trainer reports its first step. Raises RuntimeError if it makes none."""
    arguments = ["--records=/records", "--job-dir=/tmp/job", "--steps=1000", "--batch=16"]
    run = [
        str(docker.cli),
        "run",
        "--rm",
        "--name=first-step",
        f"--env={contract.ACCELERATOR}={contract.CPU}",
        f"--volume={records}:/records:ro",
    ]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*run, image, *arguments],
            env=client(docker), stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout
        made_one = any('"event": "step"' in line for line in process.stdout)
        spent = time.perf_counter() - began
        if not made_one:
            errors.seek(0)
            raise RuntimeError(f"the trainer ended before its first step\n{errors.read()[-2000:]}")
    command(docker.cli, "kill", "first-step", env=client(docker))
    process.wait()
    return spent


# --- engines, registry, disk ----------------------------------------------------------------------


@contextmanager
def engine(setting: Setting, with_root: bool = True) -> Iterator[Engine]:
    """An empty engine, with the rootfs unless told otherwise; removed afterwards with its data."""
    data = setting.scratch / "engine"
    own = private.start(data)
    try:
        if with_root:
            with patch.dict(os.environ, {private.ENVIRONMENT: str(data)}):
                docker = connect(Settings(engine="private"))
            image = assemble([(setting.root, "rootfs")], {"Cmd": ["bash"]})
            load_image(docker, image, content_store.of_this_machine(), ROOT_IMAGE)
        yield own
    finally:
        private.remove(data)
        shutil.rmtree(data, ignore_errors=True)


def give_root(setting: Setting) -> None:
    """Put the rootfs's layer into the store of our way."""
    with (
        content_store.of_this_machine().path(setting.root).open("rb") as source,
        own_store(setting).writing() as file,
    ):
        shutil.copyfileobj(source, file)
        own_store(setting).keep(file, setting.root)


def own_store(setting: Setting) -> ContentStore:
    """The store of our way."""
    with patch.dict(os.environ, {"XDG_CACHE_HOME": str(setting.cache)}):
        return content_store.of_this_machine()


def forget(setting: Setting) -> None:
    """Empty the cache of our way."""
    shutil.rmtree(setting.cache, ignore_errors=True)


def other_release(setting: Setting) -> None:
    """Give the target the release of its framework before the one that it has."""
    key, spec = setting.spec.framework, setting.spec
    releases = frameworks.of(key).releases()
    older = releases[releases.index(compatibility.resolve(spec).release) - 1]
    file = setting.project / image_yaml.IMAGES / setting.target / "image.yaml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith(f"{key}:")]
    file.write_text("\n".join([*kept, f"{key}: {older}"]) + "\n")


def builder_environment(setting: Setting) -> dict[str, str]:
    """The environment of `builder`: an engine, registry, cache and bytecode of its own."""
    return bytecode(setting.scratch / "bytecode") | {
        "XDG_CACHE_HOME": str(setting.cache),
        "BUILDER_ENGINE": "private",
        "BUILDER_REGISTRY": f"{setting.host}/ours",
        private.ENVIRONMENT: str(setting.scratch / "engine"),
    }


def client(docker: Engine) -> Mapping[str, str]:
    """The environment of docker's own client."""
    return {**os.environ, **docker.environment}


def copy(root: Path, folder: Path) -> Path:
    """A copy of the project, without its build results."""
    folder.mkdir()
    shutil.copy(root / "builder.toml", folder)
    for name in ("images", "trainer", "examples"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def pull_bytes(host: str, repository: str, tag: str) -> int:
    """Compressed bytes that a pull of this image transfers, by its manifest in the registry."""
    with Registry(host) as client:
        manifest = client.manifest(repository, tag)
        image = manifest.of_platform("linux", "amd64") if manifest and manifest.is_index else None
        manifest = client.manifest(repository, image.digest) if image else manifest
    assert manifest
    blobs = {blob.digest: blob.size for blob in (manifest.config, *manifest.layers)}
    return sum(blobs.values())


def used(folder: Path) -> int:
    """Bytes on disk of a folder, without file systems mounted in it."""
    done = command("du", "--summarize", "--one-file-system", "--block-size=1", folder)
    return int(done.split()[0])


# --- rows -----------------------------------------------------------------------------------------


def rows(taken: Mapping[str, Taken]) -> list[Row]:
    """The comparisons; None stands for what was not measured."""
    once = "one run"
    warm = f"median of {CHANGES} changes"
    whole = "docker build + docker push"
    plan: Sequence[tuple[str, str, str, str, str, float | None]] = (
        ("cold build", "cold build", "cold build", "docker build", "one run, builder build; "
         "no cache but the rootfs", 0.20),
        ("processor time of the cold build", "processor", "processor", "docker build",
         "the engine's processes, and ours the builder's", None),
        ("bytes to pull", "bytes", "bytes", "its layers", "manifest in the registry", 0.70),
        ("all targets of the framework cold, against one", "all targets", "", "ours, one target",
         "one run each, builder build; no cache but the rootfs of the one", 2.0),
        ("every target cold, against one", "every target", "", "ours, one target",
         "one run each, builder build; no cache but the rootfs of the one", None),
        ("another release on a warm machine", "new release", "new release", "docker build",
         "one run, builder build with the release before; builder lock before it is not counted",
         0.10),
        ("lock of that release", "new release, its lock", "", "none",
         "one run, builder lock", None),
        ("second machine with a full registry", "second machine", "cold build", "docker build",
         f"{once}, builder build; an empty engine and cache, the registry has base and layers",
         0.05),
        ("push of everything", "push", "push", "docker push",
         "one run, builder push: base, image and receipt, to an empty registry", None),
        ("proof", "proof", "", "none", "one run, builder smoke", None),
        ("code change to pushed image, warm engine, not proven", "change", "change", whole,
         f"{warm}, builder build --to-registry: under a tag of its own until it is proven", 1.0),
        ("code change to pushed image, warm engine, proof included", "change, proven", "change",
         f"{whole}, no proof", f"{once}, builder image --push; theirs {warm}", 1.0),
        ("code change to pushed image, engine without the base", "change, new engine",
         "change, new engine", whole,
         f"builder build --to-registry, median of {NEW_ENGINES} empty engines, not proven; theirs "
         f"{once} on an engine with the rootfs", 0.05),
        ("pull onto an empty engine", "pull", "pull", "docker pull",
         f"{once}, docker pull from loopback: decompress and unpack, no network", None),
        ("first training step after the pull", "first step", "first step", "docker run",
         f"{once}, docker run until the trainer reports a step; no accelerator", None),
        ("engine's disk after build and push", "disk", "disk", "its engine",
         "du of the engine's data, build caches included", None),
    )  # fmt: skip
    comparisons = []
    for what, mine, other, is_, how, bar in plan:
        a, b = taken["ours"].values.get(mine), taken["theirs"].values.get(other)
        if mine == "every target" and a is None:
            continue  # nobody asked for it
        if mine in ("all targets", "every target"):
            b = taken["ours"].values.get("cold build")
        if a is None or (b is None and other):
            how = f"not measured whole: {how}"
        in_bytes = mine in ("bytes", "disk")
        scale = 1e-6 if in_bytes else 1.0
        comparisons.append(
            Row(what, None if a is None else a * scale, None if b is None else b * scale, is_, how,
                unit="MB" if in_bytes else "s", bar=bar,
                network=mine in NETWORK or (other in NETWORK | {"change, new engine"}))
        )  # fmt: skip
    return comparisons
