"""The cluster that the tests here run in: KUBECONFIG's, or one made on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.cluster import images, programs
from tests.cluster.access import Access, Gate
from tests.commands import environment
from tests.registry.server import registry


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kueue comes last: where it has to be built first, no other test waits for it."""
    items.sort(key=lambda item: "queues" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """A namespace of its own in a cluster, and what may be done to the cluster's machines."""
    folder = tmp_path_factory.mktemp("cluster")
    if os.environ.get("KUBECONFIG"):
        assert os.environ.get("REGISTRY"), "REGISTRY=HOST/PATH: where the cluster pulls from"
        yield from _namespace(Access(os.environ["KUBECONFIG"], os.environ["REGISTRY"]), folder)
        return
    if os.geteuid() != 0:
        pytest.skip("no cluster can be made here without root; KUBECONFIG and REGISTRY name one")
    try:
        programs.programs()
    except programs.NotBuilt as missing:
        pytest.skip(str(missing))
    with registry(folder / "registry") as server:
        images.push(folder, f"{server.host}/pause:1", images.PAUSE)
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.keeper", server.host],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert keeper.stdin and keeper.stdout
        try:
            kubeconfig = keeper.stdout.readline().strip()
            assert kubeconfig, "the cluster did not start: see above"
            yield from _namespace(Access(kubeconfig, server.host, own=True), folder)
        finally:
            keeper.stdin.close()
            keeper.wait()


def _namespace(access: Access, folder: Path) -> Iterator[Access]:
    images.push(folder, access.image)
    with access.within() as inside:
        yield inside


@pytest.fixture(scope="session")
def ours(access: Access, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Returns the name in the cluster's registry of a target's image (`cpu for V100`: with a label
    that says so), or `torch`: of one with Debian's PyTorch."""
    pushed: dict[str, str] = {}

    def of(target: str) -> str:
        if target not in pushed:
            name = f"{access.registry}/builder-tests:{target.replace(' ', '-')}"
            folder = tmp_path_factory.mktemp(target.partition(" ")[0])
            if target == "torch":
                images.push_torch(folder, name)
            else:
                own, _, accelerator = target.partition(" for ")
                images.push_ours(folder, name, own, accelerator)
            pushed[target] = name
        return pushed[target]

    return of


@pytest.fixture
def own(access: Access) -> Access:
    """A cluster whose machines and servers a test may stop."""
    if not access.own:
        pytest.skip("no cluster whose servers a test may stop")
    return access


@pytest.fixture
def gate(access: Access) -> Gate:
    return Gate(access, f"gate-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def project(tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a job's file of a project of its own, and enters the project; returns its name."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "builder.toml").write_text("")
    monkeypatch.chdir(tmp_path)

    def write(shell: str, more: str = "", image: str = access.image) -> str:
        name = f"job-{uuid.uuid4().hex[:6]}"
        return access.describe(tmp_path / "jobs", name, shell, more, image)

    return write
