"""Writes small libraries with device code, and breaks them: the tests' other side of the reader."""

from __future__ import annotations

import base64
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from builder.devicecode.pruning.fatbin import ELF, LTO_IR, PTX

SUFFIX_FLAGS = {"": 0, "a": 1 << 20, "f": 1 << 21}
COMPRESSION_FLAGS = {"": 0, "lz4": 0x2000, "zstd": 0x8000}


def entry(
    kind: int,
    architecture: int,
    *,
    suffix: str = "",
    compression: str = "lz4",
    size: int = 64,
    code_size: int = 8192,
    payload: bytes | None = None,
) -> bytes:
    """One entry. `size`: of the payload in the file; `code_size`: of the code, it says."""
    if payload is None:
        payload = bytes([kind & 0xFF, architecture & 0xFF]) * (size // 2)
    stored = len(payload)
    payload += bytes(-stored % 8)
    flags = 0x11 | SUFFIX_FLAGS[suffix] | COMPRESSION_FLAGS[compression]
    return (
        struct.pack("<HHIQ", kind, 0x0101, 64, len(payload))
        + struct.pack("<IIHHI", stored if compression else 0, 0, 0, 0, architecture)
        + struct.pack("<IIQQQ", 0, 0, flags, 0, code_size if compression else 0)
        + payload
    )


def sass(architecture: int, suffix: str = "", **more: object) -> bytes:
    return entry(ELF, architecture, suffix=suffix, **more)  # type: ignore[arg-type]


def ptx(architecture: int, suffix: str = "", **more: object) -> bytes:
    return entry(PTX, architecture, suffix=suffix, **more)  # type: ignore[arg-type]


def lto(architecture: int, **more: object) -> bytes:
    return entry(LTO_IR, architecture, **more)  # type: ignore[arg-type]


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@dataclass(frozen=True)
class Part:
    """A section of a library: by default data that the loader maps."""

    name: str
    data: bytes
    type: int = 1
    flags: int = 0x2


def elf(*parts: Part) -> bytes:
    """An ELF64 file with these sections, the section table last, as linkers lay it out."""
    names, body = bytearray(1), bytearray()
    headers = [bytes(64)]
    for part in (*parts, None):
        name_at = len(names)
        names += (part.name if part else ".shstrtab").encode() + b"\0"
        data = part.data if part else bytes(names)
        kind, flags = (part.type, part.flags) if part else (3, 0)
        body += bytes(-len(body) % 16)
        at = (name_at, kind, flags, 0, 64 + len(body), len(data), 0, 0, 16, 0)
        headers.append(struct.pack("<IIQQQQIIQQ", *at))
        body += data
    body += bytes(-len(body) % 8)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 0, 0)
    head = head[:0x3C] + struct.pack("<HH", len(headers), len(headers) - 1)
    return b"".join((head, body, *headers))


def library(*containers: bytes, section: str = ".nv_fatbin", more: tuple[Part, ...] = ()) -> bytes:
    """A library whose device code lies in one section, with code and text around it."""
    return elf(
        Part(".text", b"\x90" * 48, flags=0x6),
        Part(".rodata", b"no device code here\0"),
        Part(section, b"".join(containers)),
        *more,
    )


def linked(
    *needed: str,
    soname: str = "",
    runpath: str = "",
    rpath: str = "",
    undefined: tuple[str, ...] = (),
    defined: tuple[str, ...] = (),
    wanted: tuple[tuple[str, str], ...] = (),
    versions: tuple[str, ...] = (),
    interpreter: str = "",
    machine: int = 62,
) -> bytes:
    """A library without device code that is linked to these. undefined, defined: symbols. wanted:
    (file, version) of symbols that it needs; versions: those that it defines. interpreter: makes it
    a program."""
    names = b"\0"

    def name(text: str) -> int:
        nonlocal names
        names += text.encode() + b"\0"
        return len(names) - len(text) - 1

    symbols = bytes(24)
    symbols += b"".join(struct.pack("<IBBHQQ", name(each), 0x10, 0, 0, 0, 0) for each in undefined)
    symbols += b"".join(struct.pack("<IBBHQQ", name(each), 0x12, 0, 1, 9, 9) for each in defined)
    table = struct.pack("<II", 1, len(symbols) // 24) + bytes(4 + len(symbols) // 6)
    needs = b"".join(
        struct.pack("<HHIII", 1, 1, name(file), 16, 32)
        + struct.pack("<IHHII", 0, 0, number + 2, name(version), 0)
        for number, (file, version) in enumerate(wanted)
    )
    has = b"".join(
        struct.pack("<HHHHIII", 1, 0, number + 1, 1, 0, 20, 28) + struct.pack("<II", name(each), 0)
        for number, each in enumerate(versions)
    )
    tags = [(1, name(each)) for each in needed]
    tags += [(tag, name(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text]
    program = interpreter.encode() + b"\0" if interpreter else b""
    bodies = [bytes(56 * 3), names, symbols, table, needs, has, program]
    starts = [64]
    for body in bodies:
        starts.append((starts[-1] + len(body) + 15) // 16 * 16)
    tags += [(5, starts[1]), (10, len(names)), (6, starts[2]), (4, starts[3])]
    tags += [(0x6FFFFFFE, starts[4]), (0x6FFFFFFF, len(wanted))] if wanted else []
    tags += [(0x6FFFFFFC, starts[5]), (0x6FFFFFFD, len(versions))] if versions else []
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in (*tags, (0, 0)))
    headers = [(1, 0, 1 << 20), (2, starts[-1], len(dynamic))]
    headers += [(3, starts[6], len(program))] if program else []
    bodies[0] = b"".join(
        struct.pack("<IIQQQQQQ", kind, 4, at, at, at, size, size, 16) for kind, at, size in headers
    ).ljust(56 * 3, b"\0")
    kinds = (1, 3, 11, 5, 0x6FFFFFFE, 0x6FFFFFFD, 1)
    parts = [Part(f".part{n}", body, kinds[n]) for n, body in enumerate(bodies)]
    data = bytearray(elf(*parts, Part(".dynamic", dynamic, 6)))
    data[18:20] = struct.pack("<H", machine)
    data[0x20:0x28], data[0x36:0x3A] = struct.pack("<Q", 64), struct.pack("<HH", 56, len(headers))
    return bytes(data)


def install(site: Path, package: str, version: str, files: dict[str, bytes]) -> None:
    """A distribution in a site-packages folder, with the RECORD that says what belongs to it."""
    for name, data in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    record = site / f"{package.replace('-', '_')}-{version}.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()]
    record.write_text("".join(lines))


def digest(data: bytes) -> str:
    """A hash as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
