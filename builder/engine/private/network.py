"""The private engine's network: a bridge, an address range and firewall rules of its own.

The firewall stays the machine's: dockerd runs with `--iptables=false`, because two daemons in one
network namespace flush each other's chains. Containers need three rules to reach the network (one
address translation, two forwardings). They are set here, for the engine's address range only.
Published ports go through docker-proxy.
"""

import contextlib
import fcntl
import ipaddress
import json
import socket
import struct
import subprocess
from pathlib import Path
from typing import Literal

from builder.core import files
from builder.core.errors import OutsideError
from builder.engine.private.place import BRIDGE_PREFIX, EnginePlace
from builder.engine.private.programs import Software


def with_network(place: EnginePlace, software: Software) -> EnginePlace:
    """The place with an address range of its own, which no other interface routes.

    Removes the bridges of engines that are gone. Raises OutsideError if no range is free.
    """
    bridges = list(Path("/sys/class/net").glob(f"{BRIDGE_PREFIX}*"))
    alive = Path("/proc/net/unix").read_text()  # read after: an engine is present before its bridge
    for path in bridges:
        name = path.name.removeprefix(BRIDGE_PREFIX)
        if f"@training-image-factory-{name}" not in alive and not any((path / "brif").iterdir()):
            # an engine that died with its namespace left it
            for interface, route in routes():
                if interface == path.name:
                    take_down(route.supernet(new_prefix=16), software)
            remove_bridge(path.name)
    network = place.network
    if network is None:
        taken = [route for _, route in routes()]
        offset = int(place.identity, 16)
        ranges = [ipaddress.IPv4Network(f"10.{200 + (offset + i) % 50}.0.0/16") for i in range(50)]
        network = next((r for r in ranges if not any(r.overlaps(other) for other in taken)), None)
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
    return EnginePlace(place.data, place.identity, network)


def routes() -> list[tuple[str, ipaddress.IPv4Network]]:
    """The interface and network of each route of the kernel, without the default route."""
    found = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, target, _, _, _, _, _, mask, *_ = line.split()
        address = socket.inet_ntoa(struct.pack("<I", int(target, 16)))
        length = int(mask, 16).bit_count()
        if length:
            found.append((interface, ipaddress.IPv4Network((address, length))))
    return found


def mtu() -> int:
    """MTU (bytes) of the default route's interface: containers must not send larger packets."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        interface, target, *_ = line.split()
        if int(target, 16) == 0:
            return int(Path(f"/sys/class/net/{interface}/mtu").read_text())
    return 1500


def add(place: EnginePlace, software: Software, mtu: int) -> None:
    """Make the engine's bridge and firewall rules, and turn forwarding on. Raises OutsideError.

    mtu: the bridge's, in bytes.
    """
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


_SIOCBRADDBR, _SIOCBRDELBR = 0x89A0, 0x89A1
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_IFF_UP = 1


def _add_bridge(name: str, address: ipaddress.IPv4Interface, mtu: int) -> None:
    """Make a bridge with an address, through ioctl: a minimal Debian has no `ip`."""
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(control, _SIOCBRADDBR, device + b"\0")
        for request, ip in ((_SIOCSIFADDR, address.ip), (_SIOCSIFNETMASK, address.netmask)):
            packed = struct.pack("16sHH4s8x8x", device, socket.AF_INET, 0, ip.packed)
            fcntl.ioctl(control, request, packed)
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", device, mtu))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, _IFF_UP))


def remove_bridge(name: str) -> None:
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, contextlib.suppress(OSError):
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, 0))
        fcntl.ioctl(control, _SIOCBRDELBR, device + b"\0")


def take_down(network: ipaddress.IPv4Network, software: Software) -> None:
    """Remove the bridges and rules of an engine's address range. dockerd makes its own again."""
    _firewall(network, software, "-D")
    for interface, route in routes():
        if route.subnet_of(network) and Path(f"/sys/class/net/{interface}/bridge").exists():
            remove_bridge(interface)


def _firewall(
    network: ipaddress.IPv4Network, software: Software, action: Literal["-I", "-D"]
) -> None:
    """Insert (once) or delete the rules for the engine's address range. Raises OutsideError."""
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
