"""Where the bytes of an image lie: by layer and kind, device code by GPU, and what pruning took.

Sizes are unpacked bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import LIBRARY_NAME
from builder.devicecode.pruning.fatbin import ELF, PTX
from builder.facts import accelerators
from builder.prove import wheels
from builder.reading.images import ImageContent
from builder.reading.layers import ReadLayer, visible

DEVICE_CODE, PRUNED, LIBRARIES, PYTHON, OTHER, HIDDEN = (
    "device code", "pruned (zeros)", "libraries", "Python", "other files", "hidden",
)  # fmt: skip
KINDS: Final = (DEVICE_CODE, PRUNED, LIBRARIES, PYTHON, OTHER, HIDDEN)
"""Pruned: the zeros that stand where code was, which hardly add to a pull. Hidden: what a later
layer deletes or writes again."""


CODE: Final = ("kernels", "PTX", "link inputs")
"""Kinds of device code: what runs as it is, what a driver compiles first, what runs once it is
linked."""


def of_library(library: Library) -> dict[str, int]:
    device, gone = library.device_code, taken_out(library)
    rest = max(library.size - device - gone, 0)
    return {DEVICE_CODE: device, PRUNED: gone, LIBRARIES: rest}


def taken_out(library: Library) -> int:
    """Return the bytes of kernels that pruning took out, as far as its wheel was ever read."""
    known = wheels.known(library) if library.pruned else None
    return max(known.device_code - library.device_code, 0) if known else 0


def of_layers(content: ImageContent) -> tuple[tuple[ReadLayer, Mapping[str, int]], ...]:
    """Return each layer, the lowest first, with its bytes by kind."""
    libraries = {library.path: library for library in content.libraries}
    rows = []
    for layer, seen in visible(content.layers):
        sizes = Counter(dict.fromkeys(KINDS, 0))
        for path, entry in layer.files.items():
            if not seen(path):
                sizes[HIDDEN] += entry.size
            elif (library := libraries.get(path)) and library.size == entry.size:
                sizes.update(of_library(library))
            else:
                sizes[_kind(path)] += entry.size
        rows.append((layer, sizes))
    return tuple(reversed(rows))


def _kind(path: str) -> str:
    if LIBRARY_NAME.search(path):
        return LIBRARIES
    return PYTHON if path.endswith((".py", ".pyc", ".pyi")) else OTHER


def by_gpu(libraries: Iterable[Library]) -> Mapping[str, Mapping[str, int]]:
    """Return the bytes of device code by kind for each compute capability, the oldest first."""
    sizes: dict[int, Counter[str]] = {}
    for library in libraries:
        for group in library.groups:
            for target, stored in zip(group.targets, group.stored, strict=True):
                row = sizes.setdefault(target.architecture, Counter(dict.fromkeys(CODE, 0)))
                row[{ELF: CODE[0], PTX: CODE[1]}.get(target.kind, CODE[2])] += stored
    return {_gpus(number): sizes[number] for number in sorted(sizes)}


def _gpus(architecture: int) -> str:
    capability = f"{architecture // 10}.{architecture % 10}"
    known = accelerators.accelerators().values()
    names = [each.name for each in known if each.compute_capability == capability]
    return f"{capability} ({', '.join(names)})" if names else capability


def pruned(libraries: Iterable[Library]) -> Mapping[str, Mapping[str, int]]:
    """Return the packages that lost device code, the most first: what stayed and what went."""
    sizes: dict[str, Counter[str]] = {}
    for library in libraries:
        if gone := taken_out(library):
            row = sizes.setdefault(library.origin, Counter())
            row.update({DEVICE_CODE: library.device_code, PRUNED: gone})
    return dict(sorted(sizes.items(), key=lambda item: -item[1][PRUNED]))
