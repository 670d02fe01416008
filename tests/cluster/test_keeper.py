"""A cluster leaves nothing behind, not even one whose keeper was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core import files
from builder.engine.private import daemon
from builder.engine.private.instance import load
from tests import ROOT
from tests.cluster import keeper, programs
from tests.cluster.access import Access
from tests.commands import environment

pytestmark = [pytest.mark.long, pytest.mark.network, pytest.mark.timeout(5400)]


def left(identity: str) -> list[str]:
    """Return what is there of a cluster: its bridge, its control groups."""
    groups = Path("/sys/fs/cgroup").glob(f"**/training-image-factory-{identity}")
    bridge = Path(f"/sys/class/net/tif-{identity}")
    return [str(path) for path in (*groups, bridge) if path.exists()]


def kernel() -> list[str]:
    return [(Path("/proc/sys") / name).read_text() for name in keeper.SYSCTLS]


@pytest.fixture
def started(own: Access, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two keepers of a second cluster: the first is killed before the second starts."""
    home = tmp_path / "training-image-factory"
    home.mkdir()
    (home / "docker").symlink_to(files.data_home() / "docker")
    keepers = []
    for killed in (True, False):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.keeper", own.registry],
            cwd=ROOT,
            env=environment(XDG_DATA_HOME=str(tmp_path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        keepers.append(process)
        assert process.stdout and process.stdout.readline().endswith("kubeconfig\n")
        if killed:
            first = load(home / "cluster")
            process.kill()
            process.wait()
            assert left(first.identity) and list(daemon.processes(first))
    assert not left(first.identity) and not list(daemon.processes(first))
    yield keepers
    keepers[-1].kill()


def test_what_a_killed_keeper_left_is_taken_down_and_the_kernel_is_as_before(
    started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    before, second = kernel(), load(tmp_path / "training-image-factory/cluster")
    assert left(second.identity)
    started[-1].communicate("")
    assert started[-1].returncode == 0
    assert not left(second.identity) and not list(daemon.processes(second))
    assert not (tmp_path / "training-image-factory/cluster").exists() and kernel() == before


def test_where_the_modules_cannot_be_had_one_line_says_what_would_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(programs.NotBuilt) as said:
        programs.programs()
    assert str(said.value).startswith("no cluster can be built here: ")
    assert "GOPROXY" in str(said.value) and "set KUBECONFIG" in str(said.value)
    assert not list((tmp_path / "training-image-factory/cluster").glob("*/*"))
