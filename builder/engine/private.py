"""A Docker engine of our own, for a Debian machine that has none.

Debian's packages, unpacked in a folder: nothing is installed system-wide, and an engine that the
machine may have is not touched. The engine has its own socket, data root, containerd, bridge and
address range; it outlives the command that started it, until `stop`.

The firewall stays the machine's: dockerd runs with `--iptables=false`, because two daemons in one
network namespace flush each other's chains. The three rules that containers need to reach the
network (one address translation, two forwardings) are set here, for our own address range only.
Published ports go through docker-proxy.

Needs root: mounts, namespaces and bridges are refused to others. One setting of the machine is
changed, as any Docker does: packets are forwarded (net.ipv4.ip_forward).
"""

import contextlib
import ctypes
import fcntl
import hashlib
import http.client
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from builder.core import files, mirrors
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.lock import debian

ENVIRONMENT = "BUILDER_ENGINE_DIR"
MARK = "TRAINING_IMAGE_FACTORY_ENGINE"
"""Environment variable of everything the engine starts on the host: it names the engine."""

SUITES = ("forky", "trixie")
"""Where the engine's programs come from: the first whose binaries run on this libc."""
PROGRAMS = ("docker.io", "docker-cli", "docker-buildx", "containerd")
BRIDGE_PREFIX = "tif-"
START_SECONDS = 120.0
STOP_SECONDS = 30.0

State = Literal["running", "stopped", "failed"]


@dataclass(frozen=True)
class Endpoint:
    """A running engine: where it listens, and the clients that fit it."""

    host: str
    """What DOCKER_HOST is set to."""
    bin: Path
    """Folder with `docker` (knows buildx) and `docker-buildx` (works alone, too)."""
    version: str
    """Docker's own, as it answers."""
    buildx_version: str
    data: Path
    """The daemon's data root."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a client's environment gets on top: DOCKER_HOST, BUILDX_CONFIG, PATH."""

    @property
    def docker(self) -> Path:
        return self.bin / "docker"

    @property
    def buildx(self) -> Path:
        return self.bin / "docker-buildx"


@dataclass(frozen=True)
class Status:
    """What is known about the private engine of a data folder."""

    state: State
    data: Path
    endpoint: Endpoint | None = None
    pid: int | None = None
    """dockerd, where this PID namespace can see it."""
    version: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Software:
    """The unpacked programs."""

    folder: Path
    versions: Mapping[str, str]

    @property
    def bin(self) -> Path:
        return self.folder / "bin"


@dataclass(frozen=True)
class Place:
    """Where an engine lives. `identity` is random, made once for a data folder and kept in it."""

    data: Path
    identity: str
    network: ipaddress.IPv4Network | None = None

    @property
    def run(self) -> Path:
        """Sockets and state that end with the machine; short, for a socket path has 107 bytes."""
        return Path("/run/training-image-factory") / self.identity

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def log(self) -> Path:
        return self.data / "dockerd.log"

    @property
    def bridge(self) -> str:
        return BRIDGE_PREFIX + self.identity

    @property
    def cgroup(self) -> str:
        return f"/training-image-factory-{self.identity}"

    @property
    def presence(self) -> str:
        """Name of an abstract socket the daemon holds: seen in its whole network namespace."""
        return f"training-image-factory-{self.identity}"


def data_folder(data: Path | None = None) -> Path:
    """The engine's data folder: the one given, $BUILDER_ENGINE_DIR, or below XDG_DATA_HOME."""
    if data is None and os.environ.get(ENVIRONMENT):
        data = Path(os.environ[ENVIRONMENT])
    return (data or _data_home() / "engine").absolute()


def _data_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "training-image-factory"


def start(data: Path | None = None, on_event: OnEvent = ignore) -> Endpoint:
    """The private engine, started if it does not run; returns when its API answers.

    Raises OutsideError without root, without Debian's packages, or when dockerd does not come up.
    """
    folder = data_folder(data)
    if os.geteuid() != 0:
        raise OutsideError(
            "the private engine needs root: containers need mounts and namespaces",
            "run as root, or install Docker and let the factory use it (engine = machine)",
        )
    with files.locked(folder / "lock"):
        place = _place(folder)
        if version := _ping(place.socket):
            return _endpoint(place, _software_of(place), version)
        software = _software(on_event)
        with step("private engine", on_event) as starting:
            _end(place)
            place = _with_network(place, software)
            version = _await(place, _launch(place, software))
            starting.detail = f"Docker {version}"
        return _endpoint(place, software, version)


def stop(data: Path | None = None) -> bool:
    """End the engine and everything it started; images stay. False where nothing ran."""
    folder = data_folder(data)
    if not (folder / "engine.json").exists():
        return False
    with files.locked(folder / "lock"):
        place = _place(folder)
        ran = _end(place)
        if place.network:
            with contextlib.suppress(OutsideError):
                _take_down(place.network, _software_of(place))
        _remove_bridge(place.bridge)
        _remove_cgroups(place)
        return ran


def remove(data: Path | None = None) -> None:
    """Stop the engine and delete its images, containers and caches. The programs stay."""
    folder = data_folder(data)
    stop(folder)
    if (folder / "engine.json").exists():
        with files.locked(folder / "lock"):
            for name in ("docker", "buildx"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in ("engine.json", "daemon.json", "dockerd.log"):
                (folder / name).unlink(missing_ok=True)


def status(data: Path | None = None) -> Status:
    """Whether the engine of this data folder answers. Starts and changes nothing."""
    folder = data_folder(data)
    if not (folder / "engine.json").exists():
        return Status("stopped", folder, detail="never started")
    place = _place(folder)
    pid = _daemon(place)
    if version := _ping(place.socket):
        try:
            return Status(
                "running", folder, _endpoint(place, _software_of(place), version), pid, version
            )
        except OutsideError as error:
            return Status("failed", folder, None, pid, version, error.message)
    if pid:
        return Status("failed", folder, pid=pid, detail=f"does not answer, see {place.log}")
    return Status("stopped", folder)


# --- programs ------------------------------------------------------------------------------------


def _software(on_event: OnEvent) -> Software:
    """The newest programs that run here, unpacked once for all engines of this user."""
    home = _data_home() / "docker"
    with files.locked(home / "lock"):
        made = sorted(home.glob("*/versions.json"), key=lambda path: path.stat().st_mtime)
        for path in reversed(made):
            if _runs(path.parent / "bin" / "dockerd"):
                return Software(path.parent, json.loads(path.read_text()))
        host = mirrors.host_suite()
        with ThreadPoolExecutor() as threads:  # lists are slow to parse and independent
            suites = dict.fromkeys((*SUITES, host))
            list(
                threads.map(
                    lambda suite: debian.Packages(suite, on_event=on_event).refresh(), suites
                )
            )
        tried = []
        for suite in SUITES:
            folder = Path(tempfile.mkdtemp(dir=home, prefix=".new."))
            try:
                versions = _unpack(folder, suite, host, on_event)
                if all(_runs(folder / "bin" / name) for name in ("dockerd", "containerd", "runc")):
                    key = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:12]
                    target = home / f"{versions['docker.io'].split('+')[0]}-{key}"
                    _link(folder, target)
                    files.write(folder / "versions.json", json.dumps(versions, indent=1))
                    shutil.rmtree(target, ignore_errors=True)
                    folder.rename(target)
                    folder = target
                    return Software(target, versions)
                tried.append(f"{suite} ({versions['docker.io']})")
            finally:
                if folder.name.startswith(".new."):
                    shutil.rmtree(folder, ignore_errors=True)
        raise OutsideError(
            f"no Docker of Debian's runs on this machine; tried {', '.join(tried)}",
            "install Docker and let the factory use it (engine = machine)",
        )


def _unpack(folder: Path, suite: str, host: str, on_event: OnEvent) -> dict[str, str]:
    """Fill `folder/root` and `folder/bin` from one suite; runc from the first whose libc fits."""
    packages = debian.Packages(suite, on_event=on_event)
    versions = packages.candidates(PROGRAMS)
    root = folder / "root"
    debian.unpack(packages.download(versions), root)
    (folder / "bin").mkdir()
    tools = {
        "dockerd": "usr/sbin/dockerd",
        "docker-proxy": "usr/sbin/docker-proxy",
        "containerd": "usr/bin/containerd",
        "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
        "ctr": "usr/bin/ctr",
        "docker-buildx": "usr/libexec/docker/cli-plugins/docker-buildx",
    }
    for name, path in tools.items():
        found = next(
            (root / p for p in (path, path.replace("libexec", "lib")) if (root / p).exists()), None
        )
        if found:
            (folder / "bin" / name).symlink_to(os.path.relpath(found, folder / "bin"))
    own = debian.Packages(host, on_event=on_event)
    for source in dict.fromkeys((suite, *SUITES, host)):
        # runc starts itself again through /proc/self/exe: it has to run on the host's own libc
        candidate = debian.Packages(source, on_event=on_event)
        version = candidate.candidates(["runc"])
        debian.unpack(candidate.download(version), folder / f"runc-{source}")
        runc = next((folder / f"runc-{source}").glob("usr/*bin/runc"))
        if _runs(runc):
            (folder / "bin" / "runc").symlink_to(os.path.relpath(runc, folder / "bin"))
            versions |= version
            break
        shutil.rmtree(folder / f"runc-{source}")
    closure = own.closure(["iptables"])
    debian.unpack(own.download(closure), folder / "iptables")
    # tini-static is the docker-init of `docker run --init`
    init = own.candidates(["tini"])
    debian.unpack(own.download(init), folder / "tini")
    (folder / "bin" / "docker-init").symlink_to("../tini/usr/bin/tini-static")
    return {**versions, "iptables": closure["iptables"], **init}


def _link(folder: Path, target: Path) -> None:
    """What names its own place: written for the folder's final name."""
    root = folder / "iptables"
    sbin = root / "usr/sbin"
    libraries = next(root.glob("usr/lib/*-linux-gnu*/xtables"))
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore"):
        link = sbin / name
        link.unlink(missing_ok=True)
        link.symlink_to("xtables-nft-multi")  # the package's alternatives would have made it
        text = debian.launcher(root, link, {"XTABLES_LIBDIR": str(libraries)})
        files.write(folder / "bin" / name, text.replace(str(folder), str(target)), 0o755)
    # buildx as a subcommand without a plugin folder in the user's ~/.docker: logins stay there
    docker = target / "root/usr/bin/docker"
    script = f"""#!/bin/sh
case "$1" in
  buildx) shift; exec {target}/bin/docker-buildx "$@" ;;
  build) exec {target}/bin/docker-buildx "$@" ;;
esac
exec {docker} "$@"
"""
    files.write(folder / "bin" / "docker", script, 0o755)


def _runs(program: Path) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _software_of(place: Place) -> Software:
    """The programs that the engine of this place was started with."""
    known = json.loads((place.data / "engine.json").read_text())
    folder = Path(known.get("software", "/nonexistent"))
    if not (folder / "versions.json").exists():
        raise OutsideError(
            f"{folder}: the engine's programs are gone", "builder engine stop, then start it again"
        )
    return Software(folder, json.loads((folder / "versions.json").read_text()))


# --- place ---------------------------------------------------------------------------------------


def _place(folder: Path) -> Place:
    file = folder / "engine.json"
    if not file.exists():
        files.write(file, json.dumps({"identity": uuid.uuid4().hex[:8]}))
    known = json.loads(file.read_text())
    network = known.get("network")
    return Place(folder, known["identity"], network and ipaddress.IPv4Network(network))


def _with_network(place: Place, software: Software) -> Place:
    """The place with an address range of its own, which no other interface routes."""
    bridges = list(Path("/sys/class/net").glob(f"{BRIDGE_PREFIX}*"))
    alive = Path("/proc/net/unix").read_text()  # after: an engine is present before its bridge is
    for path in bridges:
        name = path.name.removeprefix(BRIDGE_PREFIX)
        if f"@training-image-factory-{name}" not in alive and not any((path / "brif").iterdir()):
            # left by an engine that died with its namespace
            for interface, route in _routes():
                if interface == path.name:
                    _take_down(route.supernet(new_prefix=16), software)
            _remove_bridge(path.name)
    network = place.network
    if network is None:
        routes = [route for _, route in _routes()]
        offset = int(place.identity, 16)
        ranges = [ipaddress.IPv4Network(f"10.{200 + (offset + i) % 50}.0.0/16") for i in range(50)]
        network = next((r for r in ranges if not any(r.overlaps(other) for other in routes)), None)
        if network is None:
            raise OutsideError(
                "no free address range for the engine: 10.200.0.0 to 10.249.255.255 are all routed",
                "remove bridges of engines that are gone (ip link), and retry",
            )
    known = {
        "identity": place.identity,
        "network": str(network),
        "software": str(software.folder),
    }
    files.write(place.data / "engine.json", json.dumps(known, indent=1))
    return Place(place.data, place.identity, network)


def _routes() -> list[tuple[str, ipaddress.IPv4Network]]:
    """What the kernel routes, and through which interface; the default route is left out."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, target, _, _, _, _, _, mask, *_ = line.split()
        address = socket.inet_ntoa(struct.pack("<I", int(target, 16)))
        length = int(mask, 16).bit_count()
        if length:
            found.append((interface, ipaddress.IPv4Network((address, length))))
    return found


def _mtu() -> int:
    """MTU (bytes) of the interface of the default route: containers must not send larger."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, target, *_ = line.split()
        if int(target, 16) == 0:
            return int(Path(f"/sys/class/net/{interface}/mtu").read_text())
    return 1500


def _endpoint(place: Place, software: Software, version: str) -> Endpoint:
    host = f"unix://{place.socket}"
    path = f"{software.bin}:{os.environ.get('PATH', os.defpath)}"
    environment = {"DOCKER_HOST": host, "BUILDX_CONFIG": str(place.data / "buildx"), "PATH": path}
    buildx = software.versions["docker-buildx"].partition("-")[0]
    return Endpoint(host, software.bin, version, buildx, place.data / "docker", environment)


# --- network -------------------------------------------------------------------------------------

_SIOCBRADDBR, _SIOCBRDELBR = 0x89A0, 0x89A1
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP = 1


def _add_bridge(name: str, address: ipaddress.IPv4Interface, mtu: int) -> None:
    """Make a bridge with an address. ioctl, because a minimal Debian has no `ip`."""
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(control, _SIOCBRADDBR, device + b"\0")
        for request, ip in ((_SIOCSIFADDR, address.ip), (_SIOCSIFNETMASK, address.netmask)):
            packed = struct.pack("16sHH4s8x8x", device, socket.AF_INET, 0, ip.packed)
            fcntl.ioctl(control, request, packed)
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", device, mtu))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, _IFF_UP))


def _remove_bridge(name: str) -> None:
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, contextlib.suppress(OSError):
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, 0))
        fcntl.ioctl(control, _SIOCBRDELBR, device + b"\0")


def _take_down(network: ipaddress.IPv4Network, software: Software) -> None:
    """Remove the bridges and rules of an engine's address range; dockerd makes its own again."""
    _firewall(network, software, "-D")
    for interface, route in _routes():
        if route.subnet_of(network) and Path(f"/sys/class/net/{interface}/bridge").exists():
            _remove_bridge(interface)


def _firewall(
    network: ipaddress.IPv4Network, software: Software, action: Literal["-I", "-D"]
) -> None:
    """The rules for the engine's address range: set them (once), or take them away."""
    own = str(network)
    rules = (
        ("nat", "POSTROUTING", "-s", own, "!", "-d", own, "-j", "MASQUERADE"),
        ("filter", "FORWARD", "-s", own, "-j", "ACCEPT"),
        ("filter", "FORWARD", "-d", own, "-j", "ACCEPT"),
    )
    for table, chain, *rule in rules:
        command = [str(software.bin / "iptables"), "--wait", "-t", table]
        there = subprocess.run([*command, "-C", chain, *rule], capture_output=True, check=False)
        if (there.returncode == 0) == (action == "-I"):
            continue
        done = subprocess.run([*command, action, chain, *rule], capture_output=True, check=False)
        if done.returncode:
            raise OutsideError(
                f"iptables could not set up the engine's network: {done.stderr.decode().strip()}",
                "check that the kernel has nf_tables and nat (modprobe nf_tables nft_chain_nat)",
            )


# --- the daemon ----------------------------------------------------------------------------------


def configuration(place: Place, software: Software, mtu: int, native: bool) -> dict[str, object]:
    """dockerd's configuration file. `native`: copy layers where overlayfs cannot lie."""
    assert place.network is not None
    result: dict[str, object] = {
        "hosts": [f"unix://{place.socket}"],
        "data-root": str(place.data / "docker"),
        "exec-root": str(place.run / "exec"),
        "pidfile": str(place.run / "docker.pid"),
        "features": {"containerd-snapshotter": True},
        "bridge": place.bridge,
        "mtu": mtu,
        "default-network-opts": {"bridge": {"com.docker.network.driver.mtu": str(mtu)}},
        "iptables": False,
        "ip6tables": False,
        "default-address-pools": [{"base": str(place.network), "size": 24}],
        "userland-proxy-path": str(software.bin / "docker-proxy"),
        "init-path": str(software.bin / "docker-init"),
        "cgroup-parent": place.cgroup,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "log-level": "warn",
    }
    if native:
        result["storage-driver"] = "native"
    return result


def _add_network(place: Place, software: Software, mtu: int) -> None:
    """The engine's bridge, its firewall rules, and forwarding. Raises OutsideError."""
    assert place.network is not None
    first = next(place.network.hosts())
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    try:
        _add_bridge(place.bridge, ipaddress.IPv4Interface((first, 24)), mtu)
        if forward.read_text().strip() != "1":
            forward.write_text("1")
    except OSError as error:
        raise OutsideError(
            f"the engine's network could not be set up: {error.strerror}",
            "this needs the rights of a real root (CAP_NET_ADMIN), not those of a container's",
        ) from error
    _firewall(place.network, software, "-I")


def _launch(place: Place, software: Software) -> subprocess.Popen[bytes]:
    for folder in (place.run, place.data / "docker"):
        folder.mkdir(parents=True, exist_ok=True)
    mtu = _mtu()
    file = place.data / "daemon.json"
    native = not _overlay_works(place.data)
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
        with contextlib.suppress(OSError):  # shims of a crashed engine may still hold it
            presence.bind(f"\0{place.presence}")
        _add_network(place, software, mtu)
        return subprocess.Popen(
            [software.bin / "dockerd", "--config-file", file],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            pass_fds=[presence.fileno()],
            start_new_session=True,
        )


def _await(place: Place, daemon: subprocess.Popen[bytes]) -> str:
    """Docker's version, once the API answers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        if version := _ping(place.socket):
            return version
        time.sleep(0.05)
    _end(place)
    raise OutsideError(
        f"the private engine did not start: {_last_error(place.log)}", f"see {place.log}"
    )


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-50:] if log.exists() else []
    wrong = [line for line in lines if re.search(r"level=(error|fatal)|failed|panic", line)]
    return (wrong or lines or ["no message"])[-1][:400]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        # a stale socket refuses at once; a busy engine may need a while and must be waited for
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ping(path: Path) -> str:
    """Docker's version if the engine behind this socket answers, else an empty string."""
    try:
        connection = _UnixConnection(path)
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read())
        return str(answer.get("Version", ""))
    except (OSError, http.client.HTTPException, ValueError):
        return ""


# --- what runs -----------------------------------------------------------------------------------


def _processes(place: Place) -> Iterator[tuple[int, str]]:
    """Everything of this engine's that this PID namespace sees: (pid, name).

    Programs on the host carry our mark in their environment; those in containers are in our cgroup.
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


def _daemon(place: Place) -> int | None:
    return next((pid for pid, name in _processes(place) if name == "dockerd"), None)


def _end(place: Place) -> bool:
    """End what is left of the engine: dockerd politely, then whatever it left behind."""
    ran = False
    if pid := _daemon(place):
        ran = True
        _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while _daemon(place) and time.monotonic() < deadline:
            time.sleep(0.05)
    for _ in range(100):
        left = list(_processes(place))
        if not left:
            break
        ran = True
        for pid, _name in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    _unmount(place)
    # stale sockets and pid files: dockerd would take a recycled pid for its own containerd
    shutil.rmtree(place.run, ignore_errors=True)
    return ran


def _unmount(place: Place) -> None:
    """Containers' roots and namespaces that a killed engine left mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = [
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4])
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    detach = 2
    for target in reversed(mounted):
        if f"{target}/".startswith((f"{place.run}/", f"{place.data}/docker/")):
            libc.umount2(target.encode(), detach)


def _remove_cgroups(place: Place) -> None:
    """The empty control groups of containers that are gone."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            top = f"{line.split()[4]}{place.cgroup}"
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _overlay_works(folder: Path) -> bool:
    """Whether overlayfs can have its upper layer here: not on an overlay, NFS or some others."""
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
