"""What several tests of jobs share: a project with jobs, `builder` in it, a loopback cluster, an
image with a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config import image_yaml
from builder.engine import BuildRequest, Engine, buildx
from builder.jobs.backends.kubernetes.backend import Kubernetes
from builder.jobs.backends.kubernetes.settings import KubernetesSettings as Cluster
from builder.jobs.backends.local.replicas import LocalJob
from tests import ROOT
from tests.conftest import Run
from tests.emulators import kubernetes as server

JOB = """\
image: v100
region: us-central1
machine: n1-standard-8
accelerators: 2 x V100
job_dir: gs://my-bucket/jobs/{job}
arguments: {steps: 100, batch-size: 32}
"""
STUDY = """\
study: {metric: accuracy, trials: 2, algorithm: random, parameters: {rate: {min: 0.1, max: 0.9}}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one target and one job."""
    (tmp_path / "builder.toml").write_text('registry = "us-central1-docker.pkg.dev/p-1/t/i"\n')
    for target in ("v100", "cpu"):
        folder = tmp_path / "images" / target
        folder.mkdir(parents=True)
        source = ROOT / "images" / target / image_yaml.FILE
        (folder / image_yaml.FILE).write_text(source.read_text())
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "task.py").write_text("")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "cats.yaml").write_text(JOB)
    (tmp_path / "jobs" / "tuned.yaml").write_text(JOB + STUDY)
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST", "BUILDER_JOB_REGION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def run(here: Path, builder: Run) -> Run:
    """Run `builder` in the project."""
    return builder


# --- a cluster ---


@pytest.fixture
def loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[server.Cluster]:
    """Run a cluster, which kubeconfig names."""
    with server.running(tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
        yield cluster


@pytest.fixture
def backend(loopback: server.Cluster) -> Kubernetes:
    """Return the cluster as a backend."""
    return Kubernetes(Cluster())


# --- containers ---


@pytest.fixture(scope="module")
def shell(engine: Engine, busybox: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a shell and nothing else: `sh -c ARGUMENT`."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "busybox").write_bytes(busybox.read_bytes())
    dockerfile = (
        "FROM scratch\nCOPY --chmod=755 busybox /bin/busybox\n"
        'RUN ["/bin/busybox", "--install", "/bin"]\nRUN mkdir -m 1777 /tmp\n'
        'ENTRYPOINT ["/bin/sh", "-c"]\n'
    )
    (folder / "Dockerfile").write_text(dockerfile)
    tag = f"job-test:{os.getpid()}"
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (tag,)))
    yield tag
    engine.client.images.remove(tag, force=True)


@pytest.fixture
def job(shell: str, tmp_path: Path) -> Callable[..., LocalJob]:
    def make(script: str, **more: Any) -> LocalJob:
        more = {"shm": 1 << 26, "grace": 5.0, **more}
        return LocalJob("t", shell, tmp_path / "job", arguments=(script,), **more)

    return make
