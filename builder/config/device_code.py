"""What the wheels of the locks carry: images/device-code.lock.

The file keeps what the libraries of each wheel carry, by the wheel's checksum.
`builder lock --verify-device-code` reads it once; it is committed, and true as long as the checksum
is. So a lock is judged by its wheels, and the oldest driver for them is known, without a download.
The file holds what was read and no verdicts: those follow today's rule
(builder/devicecode/pruning/rule.py).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.config import image_yaml
from builder.core import files, project
from builder.core.errors import InputError
from builder.devicecode import library
from builder.devicecode.library import Wheel
from builder.devicecode.verdict import Audit
from builder.facts import accelerators, cuda
from builder.facts.cuda import OldestDriver

if TYPE_CHECKING:
    from builder.config.lockfile import Lock
    from builder.config.stack import Stack

FILE = "device-code.lock"
COMMAND = "builder lock --verify-device-code"

_SCHEMA = 2
_WRITTEN = f"Written by `{COMMAND}`: what the locked wheels carry, by their checksums."


Read = Mapping[str, Wheel]
"""The wheels that were read, by their sha256."""


def read(root: Path, only: Collection[str] | None = None) -> Read:
    """Return the wheels of the committed file; where there is none, of the factory's own.

    only: the checksums of those that are asked for; None for all. Raises InputError for a file of
    another form.
    """
    own = root / image_yaml.IMAGES / FILE
    path = own if own.exists() else project.factory() / image_yaml.IMAGES / FILE
    try:
        text = path.read_text(encoding="utf-8")
        wheels = _content(text)
        return {sha256: _wheel(text, sha256) for sha256 in wheels if only is None or sha256 in only}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{image_yaml.shown(path)}: is not what {COMMAND} writes ({error})",
            f"take it back from git, or delete it and run {COMMAND}",
        ) from None


@cache
def _content(text: str) -> Mapping[str, Any]:
    content = files.parsed(json.loads, text)
    if content["schema"] != _SCHEMA:
        raise KeyError("schema")
    return dict(content["wheels"])


@cache
def _wheel(text: str, sha256: str) -> Wheel:
    return library.wheel_from_json(_content(text)[sha256], sha256)


def write(root: Path, wheels: Read) -> bool:
    """Write the file, sorted by name. Returns whether anything in it changed."""
    path = root / image_yaml.IMAGES / FILE
    lines = [
        f" {json.dumps(wheel.sha256)}: {library.wheel_text(wheel)}"
        for wheel in sorted(wheels.values(), key=lambda wheel: (wheel.name, wheel.version))
    ]
    head = f'{{"written_by": {json.dumps(_WRITTEN)},\n"schema": {_SCHEMA},\n"wheels": {{\n'
    text = head + ",\n".join(lines) + "\n}}\n"
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return False
    files.write(path, text)
    return True


def of_known(lock: Lock, wheels: Read) -> Audit:
    """Return every library with device code in those wheels of a lock that were read."""
    return Audit(
        tuple(
            item
            for pin in lock.packages.values()
            if pin.sha256 in wheels
            for item in wheels[pin.sha256].libraries
        )
    )


def locked(root: Path, lock: Lock) -> Audit:
    """Return every library with device code in a lock's wheels, as far as they were read."""
    return of_known(lock, read(root, {pin.sha256 for pin in lock.packages.values()}))


def driver(root: Path, stack: Stack, lock: Lock | None) -> OldestDriver | None:
    """Return the oldest driver that runs what a lock's wheels carry on its GPU; without a lock,
    that for its CUDA.

    It is the highest of what CUDA, the GPU, and the PTX that the GPU has to use ask for: drivers
    run newer minors of CUDA, but compile no newer PTX. None for no GPU.
    """
    if stack.cuda is None:
        return None
    major = stack.cuda.partition(".")[0]
    wheels = locked(root, lock) if lock else Audit(())
    verdict = wheels.verdict(stack.compute_capability or "")
    first = accelerators.first_cuda(stack.compute_capability or "")
    return cuda.oldest_driver(major, verdict.ptx_version, first)
