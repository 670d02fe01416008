"""Damage that headers alone do not show: zeros where there has to be something.

A download that was torn after the disk was reserved, or that lost a block, has the right size and
zeros in it. The reader then finds less than there was, and less is no contradiction. What may be
zero was measured on the 25 libraries that the V100 image locks (docs/benchmarks.md):

* An LZ4 payload never has 8 zeros in a row, a zstd payload at most 32. Code that hardly varies has
  115 (21 MB in 220 kB: cuDNN 9.20 for CUDA 13), so a payload with some is decompressed.
* Machine code and the tables that the loader reads (symbols, strings, relocations) never have 256.
* Every `.nvFatBinSegment` has at most one pointer for each container of `.nv_fatbin` and
  `__nv_relfatbin`. Containers lie side by side there, until they are pruned.
* No table of section names has two zeros in a row. (Nor has one of 5,897 programs and libraries of
  a Debian and of TensorFlow's packages.)
* Data does hold zeros: constants less than 64 KiB in a row, what is written less than 512 KiB.
  Where the loader writes addresses, the file may hold zeros alone (cuSPARSELt's `.data.rel.ro`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from builder.devicecode import ptx
from builder.devicecode.pruning import elf
from builder.devicecode.pruning.elf import Buffer, Section
from builder.devicecode.pruning.errors import Malformed
from builder.devicecode.pruning.fatbin import (
    COMPILED,
    ELF,
    HEADER_SIZE,
    LINK_INPUT,
    PTX,
    Container,
    Entry,
)

CARRIERS = re.compile(
    r"lib(cublas|cublasLt|cudnn_(adv|cnn|ops)(_infer|_train)?|cudnn_engines_(precompiled|"
    r"runtime_compiled)|cufft|curand|cusolver|cusolverMg|cusparse|cusparseLt|nccl|torch_cuda|"
    r"npp(ial|icc|idei|if|ig|im|ist|itc|s))\.so(\.\d+)*$"
)
"""Libraries that carry device code in every version that was read."""

_STUBS = "stubs"  # the folder of libraries that exist only to be linked against

_TWO_ZEROS = bytes(2)
_PAYLOAD_ZEROS = bytes(64)
_CODE_ZEROS = bytes(256)
_LARGEST_CODE = 256 << 20
_TABLE_ZEROS = bytes(4096)
_CONSTANT_ZEROS = bytes(64 << 10)
_DATA_ZEROS = bytes(512 << 10)

_SHARED, _WRITABLE = 3, 0x1
_HEADER = struct.Struct("<IIQQQQIIQQ")
_STRINGS, _RELOCATIONS, _SYMBOLS = 3, (4, 9, 19), 11
_RELOCATED = re.compile(r"\.(data\.rel|got|(pre)?init_array|fini_array|[cd]tors)\b")
"""Sections that are addresses, which relocations fill."""
_POINTERS, _POINTER_SIZE = ".nvFatBinSegment", 24
_BLOCK = 16 << 20


def broken(data: Buffer, sections: Sequence[Section], present: Sequence[Container]) -> str:
    """Say what a library has certainly lost; "" if it has lost nothing. Raises Malformed."""
    return (
        _table(data, sections)
        or _containers(sections, present)
        or _payloads(data, (entry for container in present for entry in container.entries))
    )


def doubt(
    data: Buffer, sections: Sequence[Section], present: Sequence[Container], path: str
) -> str:
    """Say why the device code of a library may not be whole; "" if nothing speaks against it."""
    parts = PurePosixPath(path).parts
    carrier = bool(CARRIERS.fullmatch(parts[-1])) and _STUBS not in parts
    if not present:
        return "a CUDA library of this name carries device code, and this one has none" * carrier
    if has_gap(sections, present):
        return f"{COMPILED} has zeros beside its containers, and no record says it was pruned"
    for section in sections:
        zeros = _least(section)
        if zeros and section.size >= len(zeros) and _holds(data, section, zeros):
            return f"{section.name} has {len(zeros):,} zeros in a row"
    return ""


def has_gap(sections: Sequence[Section], present: Sequence[Container]) -> bool:
    """Tell whether `.nv_fatbin` has a gap where entries or a container were, which pruning leaves:
    linkers put containers side by side."""
    compiled = [section for section in sections if section.name == COMPILED]
    parts = [container for container in present if container.section == COMPILED]
    ends = [*(section.offset for section in compiled[:1]), *(part.end for part in parts)]
    starts = [*(part.offset for part in parts), *(section.end for section in compiled[-1:])]
    return any(start - end > HEADER_SIZE for end, start in zip(ends, starts, strict=True))


def _table(data: Buffer, sections: Sequence[Section]) -> str:
    """Say what is wrong with a section table that contradicts nothing because it is empty."""
    kind, programs, table = struct.unpack_from("<H14xQQ", data, 0x10)
    count, names_at = struct.unpack_from("<HH", data, 0x3C)
    segments = bool(programs and data[programs : programs + 4].strip(b"\0"))
    if (programs and not segments) or (table == 0 and not (segments and kind == _SHARED)):
        return "its ELF header leads to nothing"
    if table == 0:
        return ""
    if not sections:
        return "its table of sections is empty"
    headers = [_HEADER.unpack_from(data, table + 64 * number) for number in range(count)]
    if count and names_at < count:
        names = headers[names_at]
        text = data[names[4] : names[4] + names[5]]
        if names[1] != _STRINGS or not text.strip(b"\0") or _TWO_ZEROS in text:
            return "the names of its sections have zeros"
    empty = sum(header[1] == 0 and not any(header) for header in headers[1:])
    return f"{empty} of its {count} section headers are zeros" if empty else ""


def _containers(sections: Sequence[Section], present: Sequence[Container]) -> str:
    names = {container.section for container in present}
    for section in sections:
        if section.name in (COMPILED, LINK_INPUT) and section.name not in names:
            return f"{section.name} holds {section.size:,} bytes and no container"
    pointers = sum(part.size // _POINTER_SIZE for part in sections if part.name == _POINTERS)
    left = sum(container.section in (COMPILED, LINK_INPUT) for container in present)
    if pointers > left:
        return f"{pointers - left} of {pointers} containers are gone"
    return ""


def _payloads(data: Buffer, entries: Iterable[Entry]) -> str:
    for entry in entries:
        start = entry.offset + entry.header_size
        stored = entry.compressed_size if entry.compression else entry.payload_size
        if entry.kind not in (ELF, PTX) and not entry.compression:
            continue
        code = data[start : start + stored]
        if entry.compression:
            whole = stored > 0 and (_PAYLOAD_ZEROS not in code or _decompresses(data, entry, code))
        elif entry.kind == PTX:
            whole = bool(code.strip(b"\0")) and b"\0" not in code.rstrip(b"\0")
        else:
            whole = _cubin(code)
        if not whole:
            return f"the code of {entry.target} at byte {entry.offset:#x} is not whole"
    return ""


def _decompresses(data: Buffer, entry: Entry, code: bytes) -> bool:
    """Tell whether a payload with some zeros in a row has all of its code."""
    if _CODE_ZEROS in code or not 0 < entry.decompressed_size <= _LARGEST_CODE:
        return False
    try:
        return len(ptx.text(data, entry, _LARGEST_CODE)) == entry.decompressed_size
    except Malformed:
        return False


def _cubin(code: bytes) -> bool:
    """Tell whether an uncompressed cubin still has its machine code. Raises Malformed."""
    if not code.startswith(elf.MAGIC):
        return False
    sections = elf.sections(code)
    return bool(sections) and not any(
        _CODE_ZEROS in code[section.offset : section.end]
        for section in sections
        if section.name.startswith(".text") or section.type == _STRINGS
    )


def _least(section: Section) -> bytes | None:
    """Return the zeros that make a hole in this section; None where zeros may be anywhere."""
    if section.name in (COMPILED, LINK_INPUT) or _RELOCATED.match(section.name):
        return None
    if section.flags & elf.EXECUTABLE or section.type in (_STRINGS, _SYMBOLS, *_RELOCATIONS):
        return _TABLE_ZEROS
    if not section.flags & elf.ALLOC:
        return None
    return _DATA_ZEROS if section.flags & _WRITABLE else _CONSTANT_ZEROS


def _holds(data: Buffer, section: Section, zeros: bytes) -> bool:
    step = max(_BLOCK, 2 * len(zeros))
    return any(
        zeros in data[at : min(at + step + len(zeros), section.end)]
        for at in range(section.offset, section.end, step)
    )
