"""What stands in for every builder, and what stands in for Google Cloud."""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from builder.cloudbuild import clients, runner
from builder.cloudbuild.clients import Clients
from builder.cloudbuild.reader import buildfile
from builder.cloudbuild.runner import BuildPlan, Result
from builder.cloudbuild.runner.sandbox import LABEL
from builder.core import files, mirrors
from builder.core.settings import CloudSettings
from builder.engine import Engine
from builder.engine.private.packages import Packages, unpack
from builder.engine.private.programs import install
from tests.emulators.cloud_build import PROJECT, LoopbackCloud, loopback_cloud

REPOSITORY = "cloudbuild-steps"
BASE = f"{REPOSITORY}:base"
"""What the Dockerfiles of the projects start from."""
LIBC = (Path("/lib64/ld-linux-x86-64.so.2"), Path("/lib/x86_64-linux-gnu/libc.so.6"))


@pytest.fixture(scope="session")
def steps_image(engine: Engine, busybox: Path) -> Iterator[str]:
    """busybox, bash, and docker with buildx: what the steps of small builds need."""
    folder = files.cache_home() / "bash-static"
    with files.locked(folder.parent / ".bash-static.lock"):
        if not (folder / "bin/bash-static").exists():
            packages = Packages(mirrors.host_suite())
            unpack(packages.download(packages.candidates(["bash-static"])), folder)
    docker = install(lambda event: None).folder / "root/usr"
    programs = {
        "bin/busybox": busybox,
        "bin/bash": folder / "bin/bash-static",
        "bin/docker": docker / "bin/docker",
        "usr/libexec/docker/cli-plugins/docker-buildx": (
            docker / "libexec/docker/cli-plugins/docker-buildx"
        ),
        **{str(path).lstrip("/"): path for path in LIBC},
    }
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, path in programs.items():
            tar.add(path.resolve(), name, filter=_plain)
        for name in sorted(set(applets) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, target in (("var/run", "/run"), ("usr/bin", "../bin")):
            link = tarfile.TarInfo(name)  # as in most images
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, mode in (("tmp", 0o1777), ("run", 0o755), ("etc", 0o755), ("proc", 0o755)):
            made = tarfile.TarInfo(name)
            made.type, made.mode = tarfile.DIRTYPE, mode
            tar.addfile(made)
    name, tag = REPOSITORY, uuid.uuid4().hex[:12]  # of this session: another may end before it
    api: Any = engine.client.api
    api.import_image_from_data(data.getvalue(), repository=name, tag=tag)
    reference = f"{name}:{tag}"
    image = engine.client.images.get(reference)
    image.tag(BASE)
    yield reference
    with contextlib.suppress(ImageNotFound):
        if engine.client.images.get(BASE).id == image.id:
            engine.client.images.remove(BASE, force=True)
        engine.client.images.remove(reference, force=True)
        engine.client.images.remove(str(image.id), force=True)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


@dataclass
class Ran:
    """A build that was carried out: how it went, and its log."""

    result: Result
    log: list[str]

    def said(self, step: int | str, line: str) -> bool:
        """Whether a step printed exactly this line."""
        prefixes = (f"Step #{step}", f' - "{step}": ')
        return any(one.endswith(line) and any(p in one for p in prefixes) for one in self.log)

    def step(self, name: str) -> runner.StepResult:
        return next(one for one in self.result.steps if one.id == name)


Carry = Callable[..., Ran]


@pytest.fixture
def carry_out(engine: Engine, steps_image: str, tmp_path: Path) -> Iterator[Carry]:
    """Carries out a build from its text; afterwards nothing of it may be left on the engine."""
    began: list[BuildPlan] = []

    def carry(text: str, files: dict[str, str] | None = None, **how: Any) -> Ran:
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        ways = ("push", "with_socket", "artifacts", "workspace", "host")
        running = {name: how.pop(name) for name in ways if name in how}
        read = buildfile.parse(text, tmp_path / "cloudbuild.yaml")
        how.setdefault("images", {"*": steps_image})
        how.setdefault("builds_in", {"PROJECT_ID": "project"})
        plan = runner.prepare(read, source=folder if files else None, **how)
        began.append(plan)
        log: list[str] = []
        return Ran(runner.run(plan, engine, log.append, **running), log)

    yield carry
    for plan in began:
        assert left_of(engine, plan.build_id) == []


def left_of(engine: Engine, build_id: str) -> list[str]:
    """What a build has on the engine."""
    api: Any = engine.client.api
    filters = {"label": f"{LABEL}={build_id}"}
    return [
        *(str(one["Names"]) for one in api.containers(all=True, filters=filters)),
        *(one["Name"] for one in api.networks(filters=filters)),
        *(one["Name"] for one in api.volumes(filters=filters).get("Volumes") or []),
    ]


# --- Google Cloud on loopback --------------------------------------------------------------------


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackCloud]:
    with loopback_cloud() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(params=["rest", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connected(cloud: LoopbackCloud) -> Callable[..., Clients]:
    """Clients for the loopback service, over REST unless said otherwise."""

    def connect(transport: str = "rest", **settings: str) -> Clients:
        endpoint = cloud.grpc_url if transport == "grpc" else cloud.url
        return clients.connect(
            CloudSettings(
                **{"project": PROJECT, **settings},  # type: ignore[arg-type]
                endpoint=endpoint,
                transport=transport,
            )
        )

    return connect
