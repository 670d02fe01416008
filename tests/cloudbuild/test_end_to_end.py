"""`builder cloud build` all the way: a commit is staged, carried out on the engine of a worker
(Docker 20.10.24, in the memory of E2_HIGHCPU_8), proven and pushed; a stranger pulls it and trains.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud.devtools import cloudbuild_v1 as api
from google.protobuf import json_format

from builder.cloudbuild import rendered as cloudbuild
from builder.config import debian, debian_packages, lockfile
from builder.config.lockfile import LockedRootfs
from builder.core import files, system
from builder.core.events import ignore
from builder.core.project import tag_of
from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, buildx, discovery
from builder.image import content_store, loading, rootfs
from builder.image.layer import Compression, assemble
from builder.image.plan import Rootfs
from builder.prove import smoke
from tests import ROOT, commands, containers
from tests.emulators.cloud_build import (
    PROJECT,
    Job,
    LoopbackCloud,
    Outcome,
    Status,
    loopback_cloud,
)
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.long,
    pytest.mark.root,
]

GZIP = "--output=type=image,compression=gzip,force-compression=true,store=true,unpack=true"
TARGET = "cloud-test"
"""The CPU target under a name of its own: no tag of the person whose engine this is moves."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The factory with one target, in git, its files rendered."""
    root = tmp_path_factory.mktemp("project")
    for name in ("builder", "trainer", "templates", "requirements"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    shutil.copytree(ROOT / "images" / "cpu", root / "images" / TARGET)
    for lock in [*(ROOT / "images").glob("os-*.lock"), ROOT / "images" / "layers.lock"]:
        shutil.copy(lock, root / "images")
    for name in ("builder.toml", ".gitignore"):
        shutil.copy(ROOT / name, root)
    done = builder(root, "render")
    assert done.returncode == 0, done.stderr
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        commands.git(root, *words)
    return root


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def engine() -> Engine:
    return discovery.connect(Settings())


@dataclass
class HostedRunner:
    """An executor that carries a submitted build out as a worker would, in containers on Docker
    20.10.24: `builder cloud run-local --engine-profile hosted`.

    images: what stands in for a builder that cannot be pulled.
    """

    images: dict[str, str]

    def __call__(self, job: Job) -> Outcome:
        value = json_format.MessageToDict(api.Build.pb(job.build))
        fields = ("steps", "timeout", "images", "options", "tags", "serviceAccount", "logsBucket")
        written = {name: value[name] for name in fields if name in value}
        for step in written["steps"]:
            step.pop("status", None)
        own = value.get("substitutions", {})  # the sender's, and built-in ones
        written["substitutions"] = {k: v for k, v in own.items() if k.startswith("_")}
        words = [f"--substitutions={k}={v}" for k, v in own.items() if not k.startswith("_")]
        words += [f"--map={name}={local}" for name, local in self.images.items()]
        with tempfile.TemporaryDirectory(prefix="submitted-") as folder:
            file = Path(folder) / "build.json"
            file.write_text(json.dumps(written))
            command = [*commands.COMMAND, "cloud", "run-local", str(file), *words]
            command += ["--engine-profile", "hosted", "--project", PROJECT, "--json"]
            command += ["--source", str(job.workspace), "--host-network", "--host-configuration"]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                env=commands.environment(),
            ) as running:  # fmt: skip
                assert running.stderr and running.stdout
                for line in running.stderr:
                    job.log(line.rstrip("\n"))
                answer = json.loads(running.stdout.read())
        for step, done in zip(job.build.steps, answer["steps"], strict=True):
            step.status = Status[done["status"]]
        results = answer["results"]
        return Outcome(
            ok=answer["status"] == "SUCCESS",
            images=[api.BuiltImage(**image) for image in results["images"]],
            outputs=[base64.b64decode(output) for output in results["buildStepOutputs"]],
        )


@dataclass(frozen=True)
class Cloud:
    """The loopback service, the variables that lead to it, and what carries its builds out."""

    service: LoopbackCloud
    environment: dict[str, str]
    runner: HostedRunner


@pytest.fixture(scope="module")
def cloud(project: Path, registry: RegistryServer, engine: Engine) -> Iterator[Cloud]:
    """The loopback service. As after an earlier build, the registry has the builder image, which
    the first step pulls, and the layers of the base. The image of that step cannot be had here: the
    builder image stands in."""
    settings = Settings(registry=f"{registry.host}/team/training")
    image = builder_image(project, settings, engine)
    api: Any = engine.client.api
    lines = list(api.push(image, stream=True, decode=True))
    assert not [line for line in lines if "error" in line]
    words = ("build", TARGET, "--base-only", "--to-registry")
    done = builder(project, *words, BUILDER_REGISTRY=str(settings.registry))
    assert done.returncode == 0, done.stderr
    runner = HostedRunner({"gcr.io/cloud-builders/docker": image})
    with loopback_cloud(runner) as running:
        environment = {**running.environment, "BUILDER_REGISTRY": str(settings.registry)}
        yield Cloud(running, environment, runner)
    engine.client.images.remove(image, force=True)


def builder_image(root: Path, settings: Settings, engine: Engine) -> str:
    """Return the name of the image that the steps run in, built if the engine does not have it.

    In the cloud, the first step builds it with docker's own client. Here the image of that step and
    Docker Hub may be out of reach, so the root is made from locked packages, as that of a base is
    (images/os-<suite>.lock). Its layers are packed with gzip: a worker of Cloud Build pulls no
    others.
    """
    text = cloudbuild.cloud_files(root)[cloudbuild.BUILDER_DOCKERFILE]
    name = f"{settings.repository}:{cloudbuild.builder_tag(root, text)}"
    if engine.image(name):
        return name
    lock = lockfile.os_lock(root, cloudbuild.BUILDER_SUITE).read_text()
    locked = LockedRootfs(cloudbuild.BUILDER_SUITE, debian_packages.parse(lock))
    store, compression = content_store.of_this_machine(), Compression.of("gzip")
    packages, archives = Rootfs(locked.suite, locked.packages), debian.archives(settings)
    layer = rootfs.make(packages, engine, archives, store, compression, ignore)
    start = f"{rootfs.REPOSITORY}:{locked.suite}-{layer.key[:12]}"
    image = assemble([(layer, locked.origin)], {"Cmd": ["bash"]})
    loading.load(engine, image, store, start, ignore)
    dockerfile = root / "build" / "cloud" / cloudbuild.BUILDER_DOCKERFILE
    files.write(dockerfile, text)
    context = root / Path(cloudbuild.BUILDER_REQUIREMENTS).parent
    request = BuildRequest(dockerfile, context, (name,), build_args={"ROOT": start})
    contents = debian.build_secrets("".join(archives.sources(locked.suite)))
    metadata = root / "build" / "cloud" / "metadata.json"
    with system.secret_files(contents) as (paths, descriptors):
        command = buildx.command(engine, request, metadata, paths)
        command = [GZIP if word.startswith("--output=") else word for word in command]
        environment = dict(engine.environment)
        subprocess.run(
            command, env=environment, pass_fds=descriptors, check=True, capture_output=True
        )
    return name


def builder(root: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return commands.builder(*words, root=root, **more)


def test_a_target_is_built_proven_and_pushed_in_the_cloud_and_a_stranger_trains_in_it(
    project: Path,
    registry: RegistryServer,
    engine: Engine,
    cloud: Cloud,
) -> None:
    environment = cloud.environment
    done = builder(project, "cloud", "build", TARGET, "--json", **environment)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    repository = f"{registry.host}/team/training"
    pushed = {image["name"]: image for image in answer["images"]}
    commit = commands.git(project, "rev-parse", "HEAD")
    assert f"{repository}:{TARGET}-{commit[:7]}" in pushed
    assert "Docker 20.10.24" in done.stderr
    verified = builder(project, "verify", f"{repository}:{TARGET}", **environment)
    assert verified.returncode == 0, verified.stderr
    assert f'"smoke":   = {TARGET}: training' in done.stderr, "its log was shown"
    assert cloud.service.storage.objects("loopback-project_cloudbuild/") == [], (
        "nothing staged is left"
    )

    # a commit that touches only documents builds nothing; one of the trainer rebuilds no base
    (project / "README.md").write_text("# words\n")
    again = builder(project, "cloud", "changed", **environment)
    assert again.stdout == "", again.stderr
    with (project / "trainer" / "task.py").open("a") as file:
        file.write("\n# one more line\n")
    changed = builder(project, "cloud", "changed", **environment)
    assert changed.stdout == f"{TARGET}\n"
    assert "made from other files" in changed.stderr

    digest = pushed[f"{repository}:{TARGET}"]["digest"]
    for tag in (f"training:{tag_of(project, TARGET)}", f"{repository}:{TARGET}"):
        if engine.image(tag):
            engine.client.images.remove(tag, force=True)
    engine.client.images.pull(f"{repository}@{digest}")
    log = containers.output(
        engine.client,
        f"{repository}@{digest}",
        ["--records", "/records", "--job-dir", "/tmp/job", "--steps", "40"],
        volumes={str(smoke.RECORDS): {"bind": "/records", "mode": "ro"}},
        network_mode="none",
    )
    events = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    assert events[-1]["event"] == "done"
    engine.client.images.remove(f"{repository}@{digest}", force=True)
