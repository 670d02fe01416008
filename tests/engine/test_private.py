"""The private engine: started once, found again, survives its own death, ends without a trace.

Each test has an engine of its own, beside the one that may run for the others.
"""

import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.engine import Engine, private
from builder.engine.private import daemon, network
from builder.engine.private.instance import load
from tests import ROOT
from tests.clock import until

needs_engine = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.root,
]


def test_data_folder_is_the_one_given_then_the_environment_then_xdg(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    monkeypatch.delenv(private.ENVIRONMENT, raising=False)
    assert private.data_folder() == Path("/x/training-image-factory/engine")
    monkeypatch.setenv(private.ENVIRONMENT, "/y")
    assert private.data_folder() == Path("/y")
    assert private.data_folder(Path("/z")) == Path("/z")


def test_without_root_it_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OutsideError, match="needs root") as caught:
        private.start(tmp_path / "engine")
    assert "\n" not in caught.value.message
    assert "engine = machine" in caught.value.fix
    assert private.status(tmp_path / "engine").state == "stopped"
    assert private.stop(tmp_path / "engine") is False
    assert not (tmp_path / "engine").exists()


@pytest.mark.root
def test_an_overlay_cannot_lie_on_an_overlay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"  # temporary files may be on an overlay themselves
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    try:
        for name in ("lower", "upper", "work", "merged"):
            (disk / name).mkdir()
        options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
        merged = disk / "merged"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
        assert daemon.overlay_works(disk)
        assert not daemon.overlay_works(merged)
        assert list(disk.glob(".overlay*")) == []
        subprocess.run(["umount", merged], check=True)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


# --- with a real one ------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "engine"
    yield folder
    private.stop(folder)


def docker(engine: Engine, *arguments: str, stdin: bytes = b"") -> str:
    """Run a docker command: what it printed."""
    done = subprocess.run(
        [engine.cli, *arguments],
        env=dict(engine.environment),
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stderr.decode())
    return done.stdout.decode().strip()


def give_image(engine: Engine, busybox: Path) -> None:
    """An image named `tiny`: busybox and nothing else."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
    docker(engine, "import", "-", "tiny", stdin=packed.getvalue())


def begin_waiting(engine: Engine, *options: str) -> None:
    """Start a container that waits."""
    run = ("run", "--detach", "--stop-timeout=1", *options, "tiny", "/bin/busybox", "sleep", "99")
    docker(engine, *run)


def start_elsewhere(data: Path, *before: str) -> subprocess.Popen[str]:
    """`start` in a process of its own, as a second command would."""
    program = (
        f"from pathlib import Path; from builder.engine import private;"
        f"print(private.start(Path({str(data)!r})).host, flush=True)"
    )
    return subprocess.Popen(
        [*before, sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def daemons(data: Path) -> list[int]:
    return [pid for pid, name in daemon.processes(load(data)) if name == "dockerd"]


class TestEngine:
    pytestmark = needs_engine

    def test_whoever_starts_it_gets_the_same_engine_and_keeps_the_own_docker_folder(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busybox: Path
    ) -> None:
        both = [start_elsewhere(data), start_elsewhere(data)]
        hosts = {process.communicate(timeout=120)[0] for process in both}
        assert [process.returncode for process in both] == [0, 0]
        first = private.start(data)
        assert hosts == {f"{first.host}\n"}
        status = private.status(data)
        assert (status.state, status.engine) == ("running", first)
        assert daemons(data) == [status.pid]

        home, empty = tmp_path / "home", tmp_path / "context"
        for folder in (home / ".docker", empty):
            folder.mkdir(parents=True)
        (home / ".docker/config.json").write_text('{"auths": {"r.example": {"auth": "eDp5"}}}')
        monkeypatch.setenv("HOME", str(home))
        engine = private.start(data)
        give_image(engine, busybox)
        file = tmp_path / "Dockerfile"
        file.write_text('FROM tiny\nRUN ["/bin/busybox", "true"]\n')
        for command in (("build",), ("buildx", "build")):
            docker(engine, *command, "--quiet", "--tag", "made", "--file", str(file), str(empty))
        assert docker(engine, "buildx", "version").startswith("github.com/docker/buildx")
        assert [path.name for path in (home / ".docker").iterdir()] == ["config.json"]

    @pytest.mark.long
    def test_after_kill_9_the_next_start_goes_on_with_its_images(
        self, data: Path, busybox: Path
    ) -> None:
        engine = private.start(data)
        give_image(engine, busybox)
        begin_waiting(engine, "--name", "left")
        (pid,) = daemons(data)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not daemons(data))
        assert private.status(data).state == "stopped"
        left = [name for _, name in daemon.processes(load(data))]
        assert "busybox" in left, "the container outlives its engine, and start has to end it"

        engine = private.start(data)
        assert docker(engine, "image", "ls", "--quiet", "tiny")
        assert docker(engine, "ps", "--quiet") == ""
        run = ("run", "--rm", "tiny", "/bin/busybox")
        assert docker(engine, *run, "echo", "works") == "works"
        names = [name for _, name in daemon.processes(load(data))]
        assert "busybox" not in names
        private.stop(data)
        assert str(data) not in Path("/proc/self/mountinfo").read_text()

    def test_started_in_a_pid_namespace_that_is_gone(self, data: Path, busybox: Path) -> None:
        inside = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        process = start_elsewhere(data, *inside)
        assert process.communicate(timeout=120)[0].startswith("unix://")
        assert private.status(data).state == "stopped"
        bridge = Path("/sys/class/net") / load(data).bridge
        assert bridge.exists(), "the network namespace was the host's"
        engine = private.start(data)
        give_image(engine, busybox)
        run = ("run", "--rm", "tiny", "/bin/busybox")
        assert docker(engine, *run, "echo", "works") == "works"

    def test_stop_leaves_nothing_but_the_images_and_what_cannot_start_says_why(
        self, data: Path, busybox: Path
    ) -> None:
        engine = private.start(data)
        give_image(engine, busybox)
        docker(engine, "network", "create", "own")
        begin_waiting(engine, "--network", "own", "--publish", "127.0.0.1::80")
        instance = load(data)
        assert {name for _, name in daemon.processes(instance)} >= {"dockerd", "busybox"}
        assert str(instance.network) in rules(engine)

        assert private.stop(data) is True
        assert list(daemon.processes(instance)) == []
        assert not instance.run.exists()
        assert not list(Path("/sys/fs/cgroup").glob(f"**{instance.cgroup}"))
        assert str(data) not in Path("/proc/self/mountinfo").read_text()
        assert instance.network
        assert not any(route.subnet_of(instance.network) for _, route in network.routes())
        assert str(instance.network) not in rules(engine)
        assert private.stop(data) is False

        assert docker(private.start(data), "image", "ls", "--quiet", "tiny")
        private.stop(data)
        (data / "docker/network").rename(data / "docker/moved")
        (data / "docker/network").write_text("in the way")
        with pytest.raises(OutsideError, match="did not start") as caught:
            private.start(data)
        assert str(data / "dockerd.log") in caught.value.fix
        assert list(daemon.processes(instance)) == []
        private.remove(data)
        assert [path.name for path in data.iterdir()] == ["lock"], "which takes the images, too"

    def test_two_engines_beside_each_other_keep_their_networks(
        self, data: Path, tmp_path: Path, busybox: Path
    ) -> None:
        first = private.start(data)
        other = tmp_path / "other"
        second = private.start(other)
        try:
            assert load(data).network != load(other).network
            for engine in (first, second):
                give_image(engine, busybox)
                docker(engine, "network", "create", "own")
                begin_waiting(engine, "--network", "own", "--name", "server")
                ping = ("/bin/busybox", "ping", "-c", "1", "-W", "5", "server")
                assert "1 packets received" in docker(
                    engine, "run", "--rm", "--network", "own", "tiny", *ping
                )
            private.stop(other)
            resolve = ("/bin/busybox", "nslookup", "server")
            docker(first, "run", "--rm", "--network", "own", "tiny", *resolve)
            assert str(load(data).network) in rules(first)
        finally:
            private.stop(other)


def rules(engine: Engine) -> str:
    """The firewall, as the kernel has it."""
    return "".join(
        subprocess.run(
            [Path(engine.cli).with_name("iptables"), "-t", table, "-S"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for table in ("nat", "filter")
    )
