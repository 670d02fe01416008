"""The libraries that a library is linked to: without them ld.so does not load it.

Layout: System V gABI, chapter 5 ("Dynamic Section").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from builder.devicecode.library import Library
from builder.devicecode.pruning.elf import Buffer, Section

_ENTRY: Final = struct.Struct("<qQ")
_END, _NEEDED = 0, 1
_DRIVERS: Final = re.compile(r"lib(cuda|nvcuvid|cudadebugger|nvidia-[\w-]+)\.so")
"""Libraries that a machine with a GPU mounts."""


def needed(data: Buffer, sections: Sequence[Section]) -> tuple[str, ...]:
    """Return the names of the libraries that a library is linked to."""
    parts = {section.name: section for section in sections}
    if not {".dynamic", ".dynstr"} <= parts.keys():
        return ()
    names = bytes(data[parts[".dynstr"].offset : parts[".dynstr"].end])
    dynamic = parts[".dynamic"]
    whole = dynamic.size - dynamic.size % _ENTRY.size
    linked = []
    for tag, value in _ENTRY.iter_unpack(data[dynamic.offset : dynamic.offset + whole]):
        if tag == _END:
            break
        if tag == _NEEDED and value < len(names):
            linked.append(names[value:].partition(b"\0")[0].decode("utf-8", "replace"))
    return tuple(linked)


def missing(
    first: Library, by_name: Mapping[str, Library], names: Iterable[str]
) -> dict[str, Library]:
    """Return what cannot be found of all that a library needs, each with the one that asks for it.

    by_name: the libraries of the image. names: of all its files. The driver's are left out.
    """
    present = set(names)
    lacking: dict[str, Library] = {}
    waiting, known = [first], {first.path}
    while waiting:
        library = waiting.pop()
        for name in library.needed:
            if name not in present:
                if not _DRIVERS.match(name):
                    lacking.setdefault(name, library)
            elif (linked := by_name.get(name)) and linked.path not in known:
                known.add(linked.path)
                waiting.append(linked)
    return lacking
