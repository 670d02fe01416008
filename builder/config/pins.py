"""Pins of Python packages: exact versions with hashes, as a requirements file holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) \\\n"
    r"    --hash=sha256:(?P<sha256>[0-9a-f]{64})(?:  # (?P<bytes>\d+) bytes"
    r"(?:, made from the source sha256:(?P<source>[0-9a-f]{64}))?)?$",
    re.M,
)


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    sha256: str
    """Of the wheel, in hex."""
    bytes: int | None = None
    """The wheel's size; None where no index gives it."""
    url: str = field(default="", compare=False, repr=False)
    """Where the wheel was found; no file holds it, because it differs between machines."""
    source: str = ""
    """The sha256 of the source that the wheel is made from (builder/config/sources.py); "" where an
    index has the wheel."""


def dump(pins: Iterable[Pin], header: str) -> str:
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    for pin in sorted(pins, key=lambda pin: pin.name):
        size = f"  # {pin.bytes} bytes" if pin.bytes is not None else ""
        size += f", made from the source sha256:{pin.source}" if pin.source else ""
        lines += [f"{pin.name}=={pin.version} \\", f"    --hash=sha256:{pin.sha256}{size}"]
    return "\n".join(lines) + "\n"


def parse(text: str) -> tuple[Pin, ...]:
    """Return the pins of a file that `dump` wrote; lines of another form are skipped."""
    return tuple(
        Pin(
            m["name"],
            m["version"],
            m["sha256"],
            int(m["bytes"]) if m["bytes"] else None,
            source=m["source"] or "",
        )
        for m in _PIN.finditer(text)
    )
