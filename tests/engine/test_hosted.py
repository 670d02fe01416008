"""The engine of a Cloud Build worker: its version, its memory, and that nothing of it stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.core.files import data_home
from builder.engine import hosted
from builder.engine.private.instance import EngineInstance
from tests import ROOT
from tests.clock import until

INSTANCE = EngineInstance(Path("/data"), "0badcafe")
needs_engine = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.root,
]


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_limited_in_either_version_of_control_groups(
    tmp_path: Path, version: int
) -> None:
    sizes = {"E2_HIGHCPU_8": 7e9, "": 7e9, "E2_HIGHCPU_32": 31e9}
    assert {machine: hosted.memory_of(machine) for machine in sizes} == sizes
    controllers = [(tmp_path / "memory", "limit_in_bytes"), (tmp_path, "max")]
    folder, name = controllers[version - 1]
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.procs").touch()
    hosted.limit_memory(INSTANCE, 7_000_000_000, controllers)
    assert (folder / INSTANCE.name / name).read_text() == "7000000000"
    with pytest.raises(OutsideError, match="no control groups"):
        hosted.limit_memory(INSTANCE, 5, [])
    (folder / INSTANCE.name / name).unlink()
    (folder / INSTANCE.name / name).mkdir()
    with pytest.raises(OutsideError, match="cannot be limited"):
        hosted.limit_memory(INSTANCE, 5, controllers)


# --- a real one -----------------------------------------------------------------------------------


def left() -> set[str]:
    return {path.name for path in data_home().glob("worker_*")}


class TestWorker:
    pytestmark = needs_engine

    def test_it_is_docker_20_10_with_a_worker_s_memory_and_goes_afterwards(
        self, busybox: Path, tmp_path: Path
    ) -> None:
        before = left()
        with hosted.worker(100_000_000) as engine:
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
            fits.kill()
            greedy = engine.client.containers.run(
                "tiny", [*shell, take.format(300_000_000)], detach=True
            )
            assert greedy.wait()["StatusCode"] == 137, "the kernel ended it"
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
