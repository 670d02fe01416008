"""The engine of a Cloud Build worker: its version, its memory, and that nothing of it stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.engine import hosted, memory
from builder.engine.private.instance import EngineInstance, data_home
from builder.engine.private.programs import NEWEST, WORKER, Software
from tests.clock import until

ROOT = Path(__file__).resolve().parents[2]
INSTANCE = EngineInstance(Path("/data"), "0badcafe")
needs_engine = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.root,
]


@pytest.mark.parametrize(
    ("machine", "size"), [("E2_HIGHCPU_8", 7e9), ("", 7e9), ("E2_HIGHCPU_32", 31e9)]
)
def test_a_worker_s_containers_get_what_its_system_leaves(machine: str, size: float) -> None:
    assert hosted.memory_of(machine) == size


def test_a_worker_s_docker_is_one_of_its_own() -> None:
    assert WORKER.folder != NEWEST.folder, "the newest of a folder is taken"
    old = Software(Path("/programs"), {"docker.io": "20.10.24+dfsg1-1+deb12u1"})
    assert not old.has_containerd_store


# --- the memory of a control group, as the kernel tells it ----------------------------------------


def mounts(tmp_path: Path, line: str) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text(f"30 20 0:1 / / rw - ext4 /dev/vda rw\n{line}\n")
    return file


def test_memory_in_version_1_of_control_groups(tmp_path: Path) -> None:
    line = f"31 30 0:2 / {tmp_path} rw - cgroup cgroup rw,memory"
    group = memory.group(INSTANCE, mounts(tmp_path, line))
    assert group.folder == tmp_path / "training-image-factory-0badcafe"
    assert group.used() == 0, "no container ran yet"
    group.limit(7_000_000_000)
    assert (group.folder / "memory.limit_in_bytes").read_text() == "7000000000"
    stat = "cache 9\nrss 1\ntotal_cache 900\ntotal_rss 300\ntotal_shmem 20\n"
    (group.folder / "memory.stat").write_text(stat)
    assert group.used() == 320, "copies of files on disk are left out"


def test_memory_in_version_2_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    line = f"31 30 0:2 / {tmp_path} rw - cgroup2 cgroup2 rw"
    group = memory.group(INSTANCE, mounts(tmp_path, line))
    group.limit(5)
    assert (group.folder / "memory.max").read_text() == "5"
    (group.folder / "memory.stat").write_text("anon 300\nfile 900\nshmem 20\n")
    assert group.used() == 320


def test_a_kernel_without_a_memory_controller(tmp_path: Path) -> None:
    line = f"31 30 0:2 / {tmp_path} rw - cgroup2 cgroup2 rw"
    with pytest.raises(OutsideError, match="no memory controller"):
        memory.group(INSTANCE, mounts(tmp_path, line))
    group = memory.MemoryGroup(tmp_path / "none" / "group", "memory.max", ())
    with pytest.raises(OutsideError, match="cannot be limited"):
        group.limit(5)


# --- a real one -----------------------------------------------------------------------------------


def left() -> set[str]:
    return {path.name for path in data_home().glob("worker_*")}


class TestWorker:
    pytestmark = needs_engine

    def test_it_is_docker_20_10_with_a_worker_s_memory_and_goes_afterwards(
        self, busybox: Path, tmp_path: Path
    ) -> None:
        before = left()
        with hosted.worker(100_000_000) as worker:
            engine = worker.engine
            version = engine.client.version()
            assert (version["Version"][:8], version["ApiVersion"]) == ("20.10.24", "1.41")
            assert (engine.buildx_version, engine.containerd_store) == ("", False)
            context = tmp_path / "context"
            context.mkdir()
            shutil.copy(busybox, context)
            (context / "Dockerfile").write_text("FROM scratch\nCOPY busybox /bin/busybox\n")
            engine.client.images.build(path=str(context), tag="tiny")
            take = "x=$(/bin/busybox head -c {0} /dev/zero | /bin/busybox tr '\\0' x); echo ${{#x}}"
            shell = ["/bin/busybox", "sh", "-c"]
            # The last ":" keeps the shell, which would become its last command.
            fits = engine.client.containers.run(
                "tiny", [*shell, f"{take.format(2_000_000)}; /bin/busybox sleep 99; :"], detach=True
            )
            until(lambda: fits.logs().split() == [b"2000000"])
            until(lambda: worker.memory.peak >= 2_000_000)
            fits.kill()
            greedy = engine.client.containers.run(
                "tiny", [*shell, take.format(300_000_000)], detach=True
            )
            assert greedy.wait()["StatusCode"] == 137, "the kernel ended it"
            assert worker.memory.peak <= 100_000_000
            assert left() > before
        assert left() == before

    def test_the_engine_of_a_killed_run_goes_with_the_next(self) -> None:
        program = "from builder.engine import hosted\nimport time\n"
        program += "with hosted.worker(10**9): print('up', flush=True); time.sleep(99)"
        before = left()
        process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (folder,) = left() - before
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert folder in left()
        with hosted.worker(10**9):
            assert folder not in left()
        assert left() == before
