"""The private engine's network: a bridge, an address range and firewall rules of its own.

The firewall stays the machine's: dockerd runs with `--iptables=false`, because two daemons in one
network namespace flush each other's chains. Containers need three rules to reach the network (one
address translation, two forwardings). They are set here, for the engine's address range only.
Published ports go through docker-proxy.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import subprocess
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from builder.core.errors import OutsideError
from builder.engine.private.instance import BRIDGE_PREFIX, NAME_PREFIX, EngineInstance
from builder.engine.private.programs import Software

_SIOCBRADDBR, _SIOCBRDELBR = 0x89A0, 0x89A1
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
_UP: Final = 1
_ROUTES: Final = Path("/proc/net/route")
_INTERFACES: Final = Path("/sys/class/net")


def with_network(instance: EngineInstance, software: Software) -> EngineInstance:
    """Return the instance with an address range of its own, which no other interface routes.

    Removes the bridges of engines that are gone. Raises OutsideError if no range is free.
    """
    bridges = list(_INTERFACES.glob(f"{BRIDGE_PREFIX}*"))
    alive = Path("/proc/net/unix").read_text()  # read after: an engine is present before its bridge
    for path in bridges:
        name = path.name.removeprefix(BRIDGE_PREFIX)
        if f"@{NAME_PREFIX}{name}" not in alive and not any((path / "brif").iterdir()):
            # an engine that died with its namespace left it
            for interface, route in routes():
                if interface == path.name:
                    take_down(route.supernet(new_prefix=16), software)
            remove_bridge(path.name)
    instance = replace(
        instance, network=instance.network or _free(instance), software=software.folder
    )
    instance.save()
    return instance


def _free(instance: EngineInstance) -> IPv4Network:
    """Return a range that nobody routes; which one is tried first depends on the identity."""
    taken = [route for _, route in routes()]
    offset = int(instance.identity, 16)
    for number in range(50):
        candidate = IPv4Network(f"10.{200 + (offset + number) % 50}.0.0/16")
        if not any(candidate.overlaps(route) for route in taken):
            return candidate
    raise OutsideError(
        "no free address range for the engine: 10.200.0.0 to 10.249.255.255 are all routed",
        "remove bridges of engines that are gone (ip link), and retry",
    )


def routes() -> list[tuple[str, IPv4Network]]:
    result = []
    for line in _ROUTES.read_text().splitlines()[1:]:
        interface, target, *_, mask = line.split()[:8]
        if length := int(mask, 16).bit_count():
            address = socket.inet_ntoa(struct.pack("<I", int(target, 16)))
            result.append((interface, IPv4Network((address, length))))
    return result


def mtu() -> int:
    """Return the MTU (bytes) of the default route: containers must not send larger packets."""
    for line in _ROUTES.read_text().splitlines()[1:]:
        interface, target, *_ = line.split()
        if int(target, 16) == 0:
            return int((_INTERFACES / interface / "mtu").read_text())
    return 1500


def add(instance: EngineInstance, software: Software, mtu: int) -> None:
    """Make the engine's bridge and firewall rules, and turn forwarding on. Raises OutsideError.

    mtu: the bridge's, in bytes.
    """
    assert instance.network is not None
    forward = Path("/proc/sys/net/ipv4/ip_forward")
    try:
        _add_bridge(instance.bridge, instance.network, mtu)
        if forward.read_text().strip() != "1":
            forward.write_text("1")
    except OSError as error:
        raise OutsideError(
            f"the engine's network could not be set up: {error.strerror}",
            "this needs the rights of a real root (CAP_NET_ADMIN), not those of a container's",
        ) from error
    _firewall(instance.network, software, wanted=True)


def _add_bridge(name: str, network: IPv4Network, mtu: int) -> None:
    """Make a bridge with the network's first address, through ioctl: a minimal Debian has no `ip`.

    The bridge's own network are the first 256 addresses.
    """
    device = name.encode()
    first = next(network.hosts()).packed
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        with contextlib.suppress(FileExistsError):
            fcntl.ioctl(control, _SIOCBRADDBR, device + b"\0")
        for request, ip in ((_SIOCSIFADDR, first), (_SIOCSIFNETMASK, b"\xff\xff\xff\0")):
            fcntl.ioctl(control, request, struct.pack("16sHH4s8x8x", device, socket.AF_INET, 0, ip))
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", device, mtu))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, _UP))


def remove_bridge(name: str) -> None:
    device = name.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, contextlib.suppress(OSError):
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device, 0))
        fcntl.ioctl(control, _SIOCBRDELBR, device + b"\0")


def take_down(network: IPv4Network, software: Software) -> None:
    """Remove the bridges and rules of an engine's address range. dockerd makes its own again."""
    _firewall(network, software, wanted=False)
    for interface, route in routes():
        if route.subnet_of(network) and (_INTERFACES / interface / "bridge").exists():
            remove_bridge(interface)


def _firewall(network: IPv4Network, software: Software, wanted: bool) -> None:
    """Insert (once) or delete the rules for the engine's address range. Raises OutsideError."""
    own = str(network)

    def call(action: str, rule: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
        table, chain, *words = rule
        command = [str(software.bin / "iptables"), "--wait", "-t", table, action, chain, *words]
        return subprocess.run(command, capture_output=True, check=False)

    for rule in (
        ("nat", "POSTROUTING", "-s", own, "!", "-d", own, "-j", "MASQUERADE"),
        ("filter", "FORWARD", "-s", own, "-j", "ACCEPT"),
        ("filter", "FORWARD", "-d", own, "-j", "ACCEPT"),
    ):
        if (call("-C", rule).returncode == 0) == wanted:
            continue
        done = call("-I" if wanted else "-D", rule)
        # where two engines start at once, the other one may have deleted the rule since
        if done.returncode and (call("-C", rule).returncode == 0) != wanted:
            raise OutsideError(
                f"iptables could not set up the engine's network: {done.stderr.decode().strip()}",
                "check that the kernel has nf_tables and nat (modprobe nf_tables nft_chain_nat)",
            )
