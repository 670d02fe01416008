"""Addresses of the internet: which of them only this machine, or its network, can see."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SPECIAL: Final = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "224.0.0.0/3")))
"""What `is_global` counts as global in some versions of Python (IANA, IPv4 Special-Purpose Address
Registry; multicast and reserved)."""
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All that IANA gives out of IPv6 (Internet Protocol Version 6 Address Space)."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("192.0.0.192", "100.100.100.200", "fd00:ec2::254"))
)
"""Where clouds tell a machine its secrets, beside 169.254.0.0/16 (Oracle, Alibaba, AWS)."""


def of(host: str, port: int) -> set[Address]:
    """Return the addresses of a host; none where only a proxy knows them."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {parse(str(answer[4][0])) for answer in answers}


def parse(text: str) -> Address:
    """Return an address as a socket names it; of one that stands for an IPv4 address, that one."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64 or (not int(address) >> 32 and int(address) > 1):  # or compatible
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_hidden(address: Address) -> bool:
    """Return whether only this machine, or its network, can see an address."""
    if isinstance(address, ipaddress.IPv6Address):
        return address not in _UNICAST or not address.is_global
    return not address.is_global or any(address in network for network in _SPECIAL)


def tells_secrets(address: Address) -> bool:
    """Return whether a cloud may tell this machine its secrets there."""
    return address.is_link_local or address in _METADATA
