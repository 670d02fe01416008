"""The private engine's daemon: start dockerd, wait for its API, end everything it started."""

from __future__ import annotations

import contextlib
import ctypes
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
from http.client import HTTPException
from pathlib import Path
from typing import Final

from builder.core import files
from builder.core.errors import OutsideError
from builder.engine.docker import ask
from builder.engine.private import network
from builder.engine.private.instance import EngineInstance
from builder.engine.private.programs import Software

MARK: Final = "TRAINING_IMAGE_FACTORY_ENGINE"
"""Environment variable of everything the engine starts on the host: it names the engine."""

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 30.0
_DETACH: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def configuration(
    instance: EngineInstance, software: Software, mtu: int, native: bool
) -> dict[str, object]:
    """Return dockerd's configuration file.

    mtu: in bytes. native: copy layers, because overlayfs does not work in the data root.
    """
    settings: dict[str, object] = {
        "hosts": [f"unix://{instance.socket}"],
        "data-root": str(instance.data / "docker"),
        "exec-root": str(instance.run / "exec"),
        "pidfile": str(instance.run / "docker.pid"),
        "bridge": instance.bridge,
        "mtu": mtu,
        "iptables": False,
        "ip6tables": False,
        "default-address-pools": [{"base": str(instance.network), "size": 24}],
        "userland-proxy-path": str(software.bin / "docker-proxy"),
        "init-path": str(software.bin / "docker-init"),
        "cgroup-parent": instance.cgroup,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "log-level": "warn",
    }
    if software.has_containerd_store:
        settings["features"] = {"containerd-snapshotter": True}
        settings["default-network-opts"] = {"bridge": {"com.docker.network.driver.mtu": str(mtu)}}
    if native:
        settings["storage-driver"] = "native" if software.has_containerd_store else "vfs"
    return settings


def launch(instance: EngineInstance, software: Software) -> subprocess.Popen[bytes]:
    """Start dockerd in a session of its own. It goes on when this process ends."""
    for folder in (instance.run, instance.data / "docker"):
        folder.mkdir(parents=True, exist_ok=True)
    mtu, file = network.mtu(), instance.data / "daemon.json"
    settings = configuration(instance, software, mtu, native=not overlay_works(instance.data))
    files.write(file, json.dumps(settings, indent=1))
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as presence,
        instance.log.open("ab") as log,
    ):
        with contextlib.suppress(OSError):  # shims of a crashed engine may still hold the name
            presence.bind(f"\0{instance.name}")
        network.add(instance, software, mtu)
        return subprocess.Popen(
            [software.bin / "dockerd", "--config-file", file],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                MARK: instance.identity,
                "PATH": f"{software.bin}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            },
            cwd="/",
            pass_fds=[presence.fileno()],
            start_new_session=True,
        )


def await_api(instance: EngineInstance, daemon: subprocess.Popen[bytes]) -> str:
    """Wait until the API answers, and return Docker's version.

    Raises OutsideError with the last error of the log if dockerd ends or takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        if version := ping(instance.socket):
            return version
        time.sleep(0.05)
    end(instance)
    lines = (
        instance.log.read_text(errors="replace").splitlines()[-50:] if instance.log.exists() else []
    )
    errors = [line for line in lines if re.search(r"level=(error|fatal)|failed|panic", line)]
    last = (errors or lines or ["no message"])[-1][:400]
    raise OutsideError(f"the private engine did not start: {last}", f"see {instance.log}")


def ping(path: Path) -> str:
    """Return Docker's version, "" if no engine answers at this socket."""
    try:
        # a stale socket refuses at once, a busy engine takes a while
        answer = ask(f"unix://{path}", {}, "/version", 30) or {}
        return str(answer.get("Version", ""))
    except (OSError, ValueError, HTTPException):
        return ""


# --- what runs ------------------------------------------------------------------------------------


def processes(instance: EngineInstance) -> Iterator[tuple[int, str]]:
    """Yield number and name of each process of this engine that this PID namespace sees.

    Programs on the host carry MARK in their environment; those in containers are in its cgroup.
    """
    mark = f"{MARK}={instance.identity}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if marked or f":{instance.cgroup}/" in (folder / "cgroup").read_text():
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    yield int(folder.name), (folder / "comm").read_text().strip()


def pid(instance: EngineInstance) -> int | None:
    return next((number for number, name in processes(instance) if name == "dockerd"), None)


def end(instance: EngineInstance) -> bool:
    """End dockerd with SIGTERM, then kill what it left behind. Return whether anything ran."""
    ran = False
    if dockerd := pid(instance):
        ran = True
        _signal(dockerd, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while pid(instance) and time.monotonic() < deadline:
            time.sleep(0.05)
    for _ in range(100):
        left = list(processes(instance))
        if not left:
            break
        ran = True
        for number, _name in left:
            _signal(number, signal.SIGKILL)
        time.sleep(0.05)
    _unmount(instance)
    # From a stale pid file, dockerd would take another process for its own containerd.
    shutil.rmtree(instance.run, ignore_errors=True)
    return ran


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _unmount(instance: EngineInstance) -> None:
    """Unmount the roots and namespaces of containers that a killed engine left."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for escaped in reversed([line.split()[4] for line in lines]):
        target = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), escaped)
        if f"{target}/".startswith((f"{instance.run}/", f"{instance.data}/docker/")):
            _LIBC.umount2(target.encode(), _DETACH)


def remove_cgroups(instance: EngineInstance) -> None:
    """Remove the empty control groups of containers that are gone."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            for folder, _, _ in os.walk(f"{line.split()[4]}{instance.cgroup}", topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def overlay_works(folder: Path) -> bool:
    """Return whether overlayfs can have its upper layer here: not on an overlay, NFS and others."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".overlay.") as base:
        for part in ("lower", "upper", "work", "merged"):
            (Path(base) / part).mkdir()
        options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
        target = f"{base}/merged".encode()
        if _LIBC.mount(b"overlay", target, b"overlay", 0, options.encode()):
            return False
        _LIBC.umount2(target, 0)
        return True
