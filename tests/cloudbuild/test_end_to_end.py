"""`builder cloud build` all the way: a commit is staged, carried out on the engine of a worker
(Docker 20.10.24, in the memory of E2_HIGHCPU_8), proven and pushed; a stranger pulls it and trains.

`python -m bench.worker` does the same with nothing made before, and for v100.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder import engine as engines
from builder.core.settings import Settings
from builder.engine import Engine
from builder.pipeline import builder_image
from builder.prove import smoke
from tests.emulators.cloud_build import HostedRunner, LoopbackCloud, loopback_cloud
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a worker's engine needs root"),
]

ROOT = Path(__file__).resolve().parents[2]
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
    for lock in (ROOT / "images").glob("os-*.lock"):
        shutil.copy(lock, root / "images")
    for name in ("builder.toml", ".gitignore"):
        shutil.copy(ROOT / name, root)
    done = builder(root, "render", environment={})
    assert done.returncode == 0, done.stderr
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "--quiet"], cwd=root, check=True)
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "first"], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engines.connect(Settings())


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
    where = Settings(registry=f"{registry.host}/team/training")
    made = builder_image.build(project, where, engine)
    api: Any = engine.client.api
    said = list(api.push(made.reference, stream=True, decode=True))
    assert not [line for line in said if "error" in line]
    words = ("build", TARGET, "--base-only", "--to-registry")
    done = builder(project, *words, environment={"BUILDER_REGISTRY": str(where.registry)})
    assert done.returncode == 0, done.stderr
    runner = HostedRunner({"gcr.io/cloud-builders/docker": made.reference})
    with loopback_cloud(runner) as running:
        environment = {**running.environment, "BUILDER_REGISTRY": str(where.registry)}
        yield Cloud(running, environment, runner)
    engine.client.images.remove(made.reference, force=True)


def builder(
    root: Path, *arguments: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """The command line, as a person runs it in `root`."""
    command = [sys.executable, "-m", "builder", *arguments]
    whole = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=root, env=whole, capture_output=True, text=True)


def test_a_target_is_built_proven_and_pushed_in_the_cloud_and_a_stranger_trains_in_it(
    project: Path,
    registry: RegistryServer,
    engine: Engine,
    cloud: Cloud,
) -> None:
    environment = cloud.environment
    done = builder(project, "cloud", "build", TARGET, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    where = f"{registry.host}/team/training"
    pushed = {image["name"]: image for image in answer["images"]}
    assert pushed[f"{where}:{TARGET}"]["registry"] == pushed[f"{where}:{TARGET}"]["digest"]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert f"{where}:{TARGET}-{commit[:7]}" in pushed
    (memory,) = cloud.runner.memory
    assert memory["limit"] == 7_000_000_000, "the machine's 8 GB without its system's"
    assert 0 < memory["peak"] <= memory["limit"]
    assert "Docker 20.10.24" in done.stderr
    verified = builder(project, "verify", f"{where}:{TARGET}", environment=environment)
    assert verified.returncode == 0, verified.stderr
    assert f'"smoke-{TARGET}":   = {TARGET}: training' in done.stderr, "its log was shown"
    assert cloud.service.storage.objects("loopback-project_cloudbuild/") == [], (
        "nothing staged is left"
    )

    # a commit that touches only documents builds nothing; one of the trainer rebuilds no base
    (project / "README.md").write_text("# words\n")
    again = builder(project, "cloud", "changed", environment=environment)
    assert again.stdout == "", again.stderr
    with (project / "trainer" / "task.py").open("a") as file:
        file.write("\n# one more line\n")
    changed = builder(project, "cloud", "changed", environment=environment)
    assert changed.stdout == f"{TARGET}\n"
    assert "made from other files" in changed.stderr

    digest = pushed[f"{where}:{TARGET}"]["digest"]
    for tag in (f"training:{TARGET}", f"{where}:{TARGET}"):
        if engine.image(tag):
            engine.client.images.remove(tag, force=True)
    engine.client.images.pull(f"{where}@{digest}")
    log = engine.client.containers.run(
        f"{where}@{digest}",
        ["--records", "/records", "--job-dir", "/tmp/job", "--steps", "40"],
        volumes={str(smoke.RECORDS): {"bind": "/records", "mode": "ro"}},
        network_mode="none",
        remove=True,
    )
    events = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    assert events[-1]["event"] == "done"
    engine.client.images.remove(f"{where}@{digest}", force=True)
