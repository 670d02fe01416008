"""The private engine's daemon: start dockerd, wait for its API, end everything it started."""

import contextlib
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from builder.core import files
from builder.core.errors import OutsideError
from builder.engine.private import confinement, network
from builder.engine.private.place import EnginePlace
from builder.engine.private.programs import Software

MARK = "TRAINING_IMAGE_FACTORY_ENGINE"
"""Environment variable of everything the engine starts on the host: it names the engine."""

START_SECONDS = 120.0
STOP_SECONDS = 30.0


def configuration(
    place: EnginePlace, software: Software, mtu: int, native: bool
) -> dict[str, object]:
    """dockerd's configuration file.

    mtu: in bytes. native: copy layers, because overlayfs does not work in the data root.
    """
    assert place.network is not None
    result: dict[str, object] = {
        "hosts": [f"unix://{place.socket}"],
        "data-root": str(place.data / "docker"),
        "exec-root": str(place.run / "exec"),
        "pidfile": str(place.run / "docker.pid"),
        "bridge": place.bridge,
        "mtu": mtu,
        "iptables": False,
        "ip6tables": False,
        "default-address-pools": [{"base": str(place.network), "size": 24}],
        "userland-proxy-path": str(software.bin / "docker-proxy"),
        "init-path": str(software.bin / "docker-init"),
        "cgroup-parent": place.cgroup,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "log-level": "warn",
    }
    if software.has_containerd_store:
        result["features"] = {"containerd-snapshotter": True}
        result["default-network-opts"] = {"bridge": {"com.docker.network.driver.mtu": str(mtu)}}
    if native:
        result["storage-driver"] = "native" if software.has_containerd_store else "vfs"
    return result


def launch(place: EnginePlace, software: Software) -> subprocess.Popen[bytes]:
    for folder in (place.run, place.data / "docker"):
        folder.mkdir(parents=True, exist_ok=True)
    mtu = network.mtu()
    file = place.data / "daemon.json"
    native = not overlay_works(place.data)
    files.write(file, json.dumps(configuration(place, software, mtu, native), indent=1))
    environment = {
        **os.environ,
        MARK: place.identity,
        "PATH": f"{software.bin}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
    }
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as presence,
        place.log.open("ab") as log,
    ):
        with contextlib.suppress(OSError):  # shims of a crashed engine may still hold the name
            presence.bind(f"\0{place.presence}")
        network.add(place, software, mtu)
        return subprocess.Popen(
            confinement.leaving([software.bin / "dockerd", "--config-file", file]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            pass_fds=[presence.fileno()],
            start_new_session=True,
        )


def await_api(place: EnginePlace, daemon: subprocess.Popen[bytes]) -> str:
    """Wait until the API answers, and return Docker's version.

    Raises OutsideError with the last error of the log if dockerd ends or takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        if version := ping(place.socket):
            return version
        time.sleep(0.05)
    end(place)
    raise OutsideError(
        f"the private engine did not start: {_last_error(place.log)}", f"see {place.log}"
    )


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-50:] if log.exists() else []
    wrong = [line for line in lines if re.search(r"level=(error|fatal)|failed|panic", line)]
    return (wrong or lines or ["no message"])[-1][:400]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        # A stale socket refuses at once. A busy engine may take a while to answer.
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ping(path: Path) -> str:
    """Docker's version. Empty if no engine answers at this socket."""
    try:
        connection = _UnixConnection(path)
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read())
        return str(answer.get("Version", ""))
    except (OSError, http.client.HTTPException, ValueError):
        return ""


# --- what runs ------------------------------------------------------------------------------------


def processes(place: EnginePlace) -> Iterator[tuple[int, str]]:
    """The number and name of each process of this engine that this PID namespace sees.

    Programs on the host carry MARK in their environment; those in containers are in its cgroup.
    """
    mark = f"{MARK}={place.identity}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if marked or f":{place.cgroup}/" in (folder / "cgroup").read_text():
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
                yield int(folder.name), (folder / "comm").read_text().strip()
        except OSError:
            continue


def pid(place: EnginePlace) -> int | None:
    """The number of dockerd's process. None if this PID namespace does not see one."""
    return next((number for number, name in processes(place) if name == "dockerd"), None)


def end(place: EnginePlace) -> bool:
    """End dockerd with SIGTERM, then kill what it left behind. Returns whether anything ran."""
    ran = False
    if dockerd := pid(place):
        ran = True
        _signal(dockerd, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while pid(place) and time.monotonic() < deadline:
            time.sleep(0.05)
    for _ in range(100):
        left = list(processes(place))
        if not left:
            break
        ran = True
        for number, _name in left:
            _signal(number, signal.SIGKILL)
        time.sleep(0.05)
    _unmount(place)
    # From a stale pid file, dockerd would take another process for its own containerd.
    shutil.rmtree(place.run, ignore_errors=True)
    return ran


def _unmount(place: EnginePlace) -> None:
    """Unmount the roots and namespaces of containers that a killed engine left."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = [
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4])
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    detach = 2
    for target in reversed(mounted):
        if f"{target}/".startswith((f"{place.run}/", f"{place.data}/docker/")):
            libc.umount2(target.encode(), detach)


def remove_cgroups(place: EnginePlace) -> None:
    """Remove the empty control groups of containers that are gone."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            top = f"{line.split()[4]}{place.cgroup}"
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def overlay_works(folder: Path) -> bool:
    """Whether overlayfs can have its upper layer here. It cannot on an overlay, NFS and others."""
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".overlay.") as name:
        base = Path(name)
        for part in ("lower", "upper", "work", "merged"):
            (base / part).mkdir()
        options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        target = str(base / "merged").encode()
        if libc.mount(b"overlay", target, b"overlay", 0, options.encode()):
            return False
        libc.umount2(target, 0)
        return True
