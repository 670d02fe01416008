"""Keeps a cluster on this machine: starts it, starts again what ends, takes everything down.

It runs until its standard input ends, so the tests' end takes the cluster along, even a kill. What
a killed keeper left is taken down before the next start. `python -m tests.cluster.keeper` in a
terminal is a cluster to try things in.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from builder.core import files
from builder.engine.private import daemon, lifecycle, network, programs
from builder.engine.private.instance import load
from builder.jobs.backends.kubernetes import jobset
from tests.cluster import configuration, names
from tests.cluster.configuration import Cluster
from tests.cluster.programs import programs as built
from tests.emulators import tls

SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""What a kubelet sets."""
READY_SECONDS = 180.0


def folder() -> Path:
    """Return where the cluster of this user lies."""
    return files.data_home() / "cluster"


def up(images: str) -> Cluster:
    """Make the folders, the bridge and the control groups of a cluster, and remember the kernel's
    settings. images: the address of the registry with the image `pause:1`."""
    software = programs.install(lambda event: None)
    down()
    instance = load(folder())
    kernel = {name: (Path("/proc/sys") / name).read_text().strip() for name in SYSCTLS}
    files.write(folder() / "kernel.json", json.dumps(kernel))
    presence = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    presence.bind(f"\0{instance.name}")
    presence.detach()  # held until this process ends: no engine takes the bridge for a dead one's
    instance = network.with_network(instance, software)
    network.add(instance, software, network.mtu())
    cluster = Cluster(instance, software, built(), images)
    for hidden in configuration.HIDDEN:
        Path(hidden).mkdir(parents=True, exist_ok=True)
    for name in cluster.nodes:
        for part in ("kubelet", "log", "containerd", "root"):
            (cluster.folder / name / part).mkdir(parents=True)
        for controller in _controllers():
            (controller / f"{instance.cgroup[1:]}/{name}").mkdir(parents=True)
    for path, text in configuration.files(cluster).items():
        files.write(cluster.folder / path, text)
    tls.certificate(cluster.folder, f"IP:{cluster.address}")
    return cluster


def down() -> None:
    """Take down everything that a cluster of this user left. Nothing happens where none was."""
    place = folder()
    lifecycle.stop(place)
    with contextlib.suppress(FileNotFoundError):
        for name, value in json.loads((place / "kernel.json").read_text()).items():
            (Path("/proc/sys") / name).write_text(value)
    shutil.rmtree(place, ignore_errors=True)
    for hidden in configuration.HIDDEN:
        with contextlib.suppress(OSError):  # not empty: somebody else's
            Path(hidden).rmdir()


def _controllers() -> list[Path]:
    """Return where each controller of control groups is mounted."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4]) for line in lines if " - cgroup" in line]


# --- while it runs --------------------------------------------------------------------------------


class Keeper:
    """The servers of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.commands = configuration.commands(cluster)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the servers, install JobSet and wait until the nodes are ready."""
        for name in ("etcd", "kube-apiserver"):
            self._launch(name)
        self._wait(lambda: self._ask("/readyz"))
        authority = base64.b64encode(self.cluster.certificate.read_bytes()).decode()
        for item in configuration.installed(self.cluster, authority):
            self._ask(configuration.path(item), item)
        self._wait(lambda: self._ask(f"/apis/{jobset.API}/jobsets"))
        for name in self.commands:
            if name not in self.running:
                self._launch(name)
        slices = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={}%3D{}"

        def found(namespace: str, service: str) -> list[dict[str, Any]]:
            path = slices.format(namespace, "kubernetes.io/service-name", service)
            return list(json.loads(self._ask(path))["items"])

        server = names.server(self.cluster.address, found)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._wait(self._nodes_ready)

    def keep(self, stop: IO[str]) -> None:
        """Start again what ends, until `stop` ends. A test keeps a server away with a file."""
        while not select.select([stop], [], [], 0.5)[0]:
            for name, process in list(self.running.items()):
                away = (self.cluster.folder / f"{name}.away").exists()
                if process.poll() is not None and not away:
                    self._launch(name)

    def _launch(self, name: str) -> None:
        path = self.cluster.folder / f"{name}.log"
        bin_ = self.cluster.software.bin
        environment = {
            **os.environ,
            daemon.MARK: self.cluster.instance.identity,
            "PATH": f"{bin_}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
        }
        with path.open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        files.write(path.with_suffix(".pid"), str(self.running[name].pid))

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"{self.cluster.server}{path}",
            json.dumps(body).encode() if body else None,
            {"Authorization": f"Bearer {self.cluster.token}", "Content-Type": "application/json"},
        )
        trust = ssl.create_default_context(cafile=str(self.cluster.certificate))
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        with opener.open(request, timeout=20) as answer:
            return bytes(answer.read())

    def _nodes_ready(self) -> bool:
        nodes = json.loads(self._ask("/api/v1/nodes"))["items"]
        ready = {"type": "Ready", "status": "True"}
        conditions = [node["status"].get("conditions", ()) for node in nodes]
        fine = [any(ready.items() <= each.items() for each in own) for own in conditions]
        return len(fine) == len(self.cluster.nodes) and all(fine)

    def _wait(self, asked: Any) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                if asked():
                    return
                error: object = "not ready"
            except OSError as refused:
                error = refused
            for name, process in self.running.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {_last(self.cluster, name)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the cluster does not start: {error}")
            time.sleep(0.2)


def _last(cluster: Cluster, name: str) -> str:
    return (cluster.folder / f"{name}.log").read_text(errors="replace")[-1500:]


def main(images: str) -> None:
    """Keep a cluster until standard input ends or a signal comes; print its kubeconfig's path."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    with files.locked(files.data_home() / "cluster.lock"):
        try:
            keeper = Keeper(up(images))
            keeper.start()
            sys.stdout.write(f"{keeper.cluster.kubeconfig}\n")
            sys.stdout.flush()
            keeper.keep(sys.stdin)
        except KeyboardInterrupt:
            pass
        finally:
            down()


if __name__ == "__main__":
    main(sys.argv[1])
