"""Hostile images, to try any prover, scanner or registry tool with.

Each is an OCI image layout in an archive, of a few kilobytes to some megabytes; nothing in it runs.
`python -m tests.prove.hostile FOLDER` writes them all. What reads one has to end, within its bounds
of memory and disk, with a verdict or an error, and none of the image's words may command a terminal
or a CI service that shows it.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import zstandard

from tests.devicecode.packing import descriptor, digest, layout, tar
from tests.devicecode.writer import Part, container, elf, library, linked, sass

SITE = "opt/venv/lib/python3.11/site-packages"
PYTHON = ("usr/bin/python3.11", b"\x7fELF", 0o755)
COMMAND: Mapping[str, Any] = {"Entrypoint": ["/usr/bin/python3.11", "/app/train.py"]}

Member = tuple[str, bytes, int]
"""The path, the content and the mode of a file."""


@dataclass(frozen=True)
class Hostile:
    """One image."""

    layers: Callable[[], Sequence[bytes]]
    """Makes its layers as they lie in the archive, packed or not."""
    says: str = ""
    """A pattern of what a person has to be told, "" where a good verdict will do."""
    config: Mapping[str, Any] = field(default_factory=lambda: COMMAND)
    """`config` of its configuration."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other members of its configuration."""
    diff_ids: Sequence[str] = ()
    """What the configuration says of the layers, where it lies."""
    whole: Callable[[], bytes] | None = None
    """Makes the whole archive, where it is no image."""

    def archive(self) -> bytes:
        """Return the image as an archive."""
        if self.whole:
            return self.whole()
        layers = self.layers()
        ids = self.diff_ids or [digest(_plain(layer)) for layer in layers]
        content = {"rootfs": {"diff_ids": ids}, "config": self.config, "history": [], **self.more}
        return tar(layout(json.dumps(content).encode(), *layers))


def _plain(layer: bytes) -> bytes:
    """Return a layer before compression, of a damaged or an endless one the packed bytes."""
    if len(layer) > 1 << 20 or layer[:2] != b"\x1f\x8b":
        return layer
    try:
        return gzip.decompress(layer)
    except (OSError, EOFError, zlib.error):
        return layer


def files(*members: Member, links: Mapping[str, str] | None = None, kind: bytes = b"") -> bytes:
    """Return a layer of Python and these files; a link's name leads to what it links to. kind: of
    the links, a symbolic one where it is not given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, mode in (PYTHON, *members):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind or tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


def odd(kind: bytes, **fields: Any) -> bytes:
    """Return a layer whose last member is of another kind, or has other fields."""
    entry = tarfile.TarInfo("odd")
    entry.type = kind
    for name, value in fields.items():
        setattr(entry, name, value)
    return files()[: -tarfile.RECORDSIZE] + entry.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


# --- words that command ---------------------------------------------------------------------------

WORDS = {
    "a workflow command": "x\n::stop-commands::forged\n::error::forged",
    "an Azure command": "x\n##[error]forged",
    "a forged line": "x\nsecrets       passed    forged",
    "an escape sequence": "x\x1b[2J\x1b[31mforged\x1b]0;forged\x07",
    "a carriage return": "x\rpassed forged\b\b\b",
    "a change of direction": "x\u202edegrof\u2066\u200f",
    "a line of Unicode": "x\u2028::error::forged\u0085::error::forged",
    "a page": "x<script>alert(1)</script>'\"><img src=x onerror=alert(1)>",
}
COMMANDS = re.compile(r"^\s*(::(?!(error|warning)( |::))|##\[)", re.MULTILINE)
"""A line that begins as a command to a CI service does, but those that are the prover's own."""
MOVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
"""A character that moves a terminal's cursor, colours it or turns its text."""
KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"


def _places(word: str) -> dict[str, tuple[Sequence[Member], Mapping[str, Any], str]]:
    name = word.replace("/", "|")
    return {
        "the name of a program with rights": ([(f"opt/{name}", b"x", 0o4755)], COMMAND, "rights"),
        "the name of a secret": ([(f"srv/{name}.pem", KEY, 0o600)], COMMAND, "private key"),
        "the name of a library": (
            [(f"opt/lib{name}.so", library(container(sass(90))), 0o644)], COMMAND, "missing",
        ),
        "a line of a .pth file": (
            [(f"{SITE}/{name}.pth", b"import " + word.encode(), 0o644)], COMMAND, "",
        ),
        "the entry point": ([], {"Entrypoint": [word, word]}, "not there"),
        "a variable": (
            [],
            {**COMMAND, "Env": [f"CUDA_VISIBLE_DEVICES={word}", f"{word}=1", f"PATH={word}"]},
            "",
        ),
        "the user": ([], {**COMMAND, "User": word, "WorkingDir": f"/{word}"}, ""),
        "a line of a script": (
            [("app/run.sh", f"#!/{word}\nexec {word}\n".encode(), 0o755)],
            {"Entrypoint": ["/app/run.sh"]},
            "",
        ),
    }  # fmt: skip


def _commanding() -> dict[str, Hostile]:
    found = {}
    for (title, word), place in product(WORDS.items(), _places("")):
        members, config, says = _places(word)[place]
        found[f"{title} in {place}"] = Hostile(_layer(*members), says, config)
    return found


# --- what has no end ------------------------------------------------------------------------------


def _bomb(pack: Callable[[bytes], bytes]) -> bytes:
    """Return a layer of one file of 4 GiB of zeros, packed to some megabytes or less."""
    entry = tarfile.TarInfo("zeros")
    entry.size = 4 << 30
    return pack(entry.tobuf()) + pack(bytes(1 << 22)) * (entry.size >> 22)


def _long(kind: bytes, size: int) -> bytes:
    head = tarfile.TarInfo("././@LongLink")
    head.type, head.size = kind, size
    body = b"a" * size
    if kind == tarfile.XHDTYPE:
        body = f"{size} path={'a' * (size - len(str(size)) - 7)}\n".encode()
    entry = tarfile.TarInfo("short").tobuf()
    return head.tobuf() + body + bytes(-size % 512) + entry + bytes(1024)


def _pax(text: str) -> bytes:
    head = tarfile.TarInfo("header")
    head.type, head.size = tarfile.XHDTYPE, len(text)
    entry = tarfile.TarInfo("short").tobuf()
    return head.tobuf() + text.encode() + bytes(-len(text) % 512) + entry + bytes(1024)


def _entry(size: int) -> bytes:
    """Return device code that says that it unpacks to so many bytes."""
    return library(container(sass(70, compression="zstd", code_size=size)))


def _nothing() -> Sequence[bytes]:
    return [gzip.compress(files())]


def _layer(*members: Member, **more: Any) -> Callable[[], Sequence[bytes]]:
    return lambda: [gzip.compress(files(*members, **more))]


def _deep(depth: int) -> Member:
    return "/".join(["d"] * depth) + "/f.so", b"", 0o644


def _chain(count: int) -> Mapping[str, str]:
    return {"usr/bin/a0": "/bin/sh"} | {f"usr/bin/a{n}": f"a{n - 1}" for n in range(1, count)}


def _index(*manifests: Mapping[str, Any]) -> bytes:
    text = json.dumps({"manifests": manifests}).encode()
    name = f"blobs/sha256/{digest(text)[7:]}"
    return tar({"index.json": text, "oci-layout": b"{}", name: text})


def _beyond() -> bytes:
    """Return a library whose section table says that each section is of 2**60 bytes."""
    whole = bytearray(library(container(sass(70))))
    at = struct.unpack_from("<Q", whole, 40)[0]
    while at + 64 <= len(whole):
        struct.pack_into("<QQ", whole, at + 24, 1 << 60, 1 << 60)
        at += 64
    return bytes(whole)


def _needing(count: int) -> Sequence[Member]:
    """Return libraries of which each needs all."""
    each = linked(*(f"l{n}.so" for n in range(count)), runpath="$ORIGIN")
    return [(f"{SITE}/torch/lib/l{n}.so", each, 0o644) for n in range(count)]


_SO = f"{SITE}/torch/lib/libtorch.so"
_INFO = f"{SITE}/a-1.dist-info"
ENDLESS: dict[str, Hostile] = {
    "a gzip bomb": Hostile(lambda: [_bomb(gzip.compress)], "times its size"),
    "a zstd bomb": Hostile(lambda: [_bomb(zstandard.compress)], "times its size"),
    "a name of a megabyte": Hostile(lambda: [_long(tarfile.GNUTYPE_LONGNAME, 1 << 20)], "a name"),
    "a link of a megabyte": Hostile(lambda: [_long(tarfile.GNUTYPE_LONGLINK, 1 << 20)], "a name"),
    "a path of a megabyte": Hostile(lambda: [_long(tarfile.XHDTYPE, 1 << 20)], "a name"),
    "a header of a gigabyte": Hostile(lambda: [odd(tarfile.XHDTYPE, size=1 << 30)], "a header of"),
    "a file of an exabyte": Hostile(lambda: [odd(tarfile.REGTYPE, size=1 << 60)], "a file of"),
    "a negative size": Hostile(lambda: [_pax("11 size=-1\n")], "of -1 bytes"),
    "a size without an end": Hostile(lambda: [_pax(f"1011 size={'9' * 1000}\n")], "archive"),
    "2,000 folders deep": Hostile(_layer(("d/" * 2000 + "f.so", b"", 0o644))),
    "a chain of links": Hostile(_layer(links=_chain(2000)), "", {"Entrypoint": ["a1999"]}),
    "links in a circle": Hostile(
        _layer(links={"usr/bin/a": "b", "usr/bin/b": "a"}), "not there", {"Entrypoint": ["a"]}
    ),
    "a folder in itself": Hostile(
        _layer(links={"usr/bin/self": "../bin"}),
        "not there",
        {"Entrypoint": ["/usr/bin" + "/self" * 1000 + "/x"]},
    ),
    "an entry point of a megabyte": Hostile(
        _nothing, "not there", {"Entrypoint": ["@" * (1 << 20)], "Cmd": [":@/" * (1 << 18)]}
    ),
    "a variable of a megabyte": Hostile(
        _nothing, "", {**COMMAND, "Env": ["PATH=" + ":/a" * (1 << 18), "A=//" + "@'" * (1 << 18)]}
    ),
    "10,000 variables": Hostile(
        _nothing, "", {**COMMAND, "Env": [f"XLA_FLAGS{n}=--x" for n in range(10_000)]}
    ),
    "100,000 steps": Hostile(
        _nothing, "", more={"history": [{"created_by": "RUN x" * 9}] * 100_000}
    ),
    "files that include each other": Hostile(
        _layer(
            ("etc/ld.so.conf", b"include ld.so.conf\ninclude /etc/ld.so.conf.d/*\n" * 50, 0o644),
            ("etc/ld.so.conf.d/a.conf", b"include ../ld.so.conf\n" * 50, 0o644),
            (_SO, linked("libc.so.6"), 0o644),
        )
    ),
    "libraries that need each other": Hostile(
        _layer(*_needing(200), (_SO, linked("l0.so", runpath="$ORIGIN"), 0o644))
    ),
    "100,000 search folders": Hostile(
        _layer((_SO, linked("libx.so", runpath=":".join(["/a/$ORIGIN"] * 100_000)), 0o644))
    ),
    "a record of 200,000 lines": Hostile(
        _layer((f"{_INFO}/RECORD", b"../../../../../etc/passwd,,1\n" * 200_000, 0o644))
    ),
    "a record of quotes": Hostile(_layer((f"{_INFO}/RECORD", b'"' * 100_001 + b"\n,,\n", 0o644))),
    "metadata of brackets": Hostile(
        _layer(
            (f"{_INFO}/METADATA", b"Name: a\nRequires-Dist: " + b"(" * 200_000 + b"\n", 0o644),
            (f"{_INFO}/RECORD", b"a-1.dist-info/METADATA,,\n", 0o644),
        )
    ),
    "a program of brackets": Hostile(_layer(("app/train.py", b"x = " + b"(" * 200_000, 0o755))),
    "a program that nests": Hostile(
        _layer(("app/train.py", b"".join(b" " * n + b"if x:\n" for n in range(500)), 0o755))
    ),
    "an interpreter of itself": Hostile(
        _layer(("app/run.sh", b"#!/app/run.sh\n", 0o755)), "", {"Entrypoint": ["/app/run.sh"]}
    ),
    "100,000 lines that Python runs": Hostile(
        _layer((f"{SITE}/a.pth", b"import os; x()\n" * 100_000, 0o644)), "are not read"
    ),
    "code that says that it unpacks to 4 GiB": Hostile(
        _layer(("opt/liba.so", _entry((1 << 32) - 1), 0o644))
    ),
    "65,000 sections": Hostile(
        _layer(("opt/liba.so", elf(*[Part(".nv_fatbin", b"")] * 65_000), 0o644))
    ),
    "sections beyond the file": Hostile(_layer(("opt/liba.so", _beyond(), 0o644)), "liba.so"),
    "200,000 containers of nothing": Hostile(
        _layer(("opt/liba.so", library(*[container()] * 200_000), 0o644))
    ),
}

# --- what is not what it says ---------------------------------------------------------------------

_CUT = gzip.compress(files(("a", b"x" * 100_000, 0o644)))
LYING: dict[str, Hostile] = {
    "a layer of another digest": Hostile(
        _nothing, "missing or cannot be unpacked", diff_ids=[digest(b"other")]
    ),
    "a layer that is cut off": Hostile(lambda: [_CUT[:-100]], "cannot be unpacked"),
    "a layer that is no archive": Hostile(
        lambda: [b"\x7fELF" * 1000], "cannot be unpacked|no command|not there"
    ),
    "a path that leads outside": Hostile(_layer(("../../../etc/passwd", b"x", 0o4755)), "passwd"),
    "a link that leads outside": Hostile(
        _layer(links={"usr/bin/out": "../../../../../../etc/shadow"}),
        "not there",
        {"Entrypoint": ["out"]},
    ),
    "a hard link to nothing": Hostile(
        _layer(links={"usr/bin/none": "nowhere"}, kind=tarfile.LNKTYPE),
        "",
        {"Entrypoint": ["none"]},
    ),
    "a device": Hostile(lambda: [odd(tarfile.BLKTYPE, devmajor=8)]),
    "a pipe": Hostile(lambda: [odd(tarfile.FIFOTYPE)]),
    "a kind that nobody knows": Hostile(lambda: [odd(b"Z", size=512)], "|"),
    "a whiteout of everything": Hostile(
        lambda: [gzip.compress(files()), gzip.compress(tar({".wh..wh..opq": b"", ".wh..": b""}))]
    ),
    "variables that are no list": Hostile(_nothing, "Env", {**COMMAND, "Env": {"A": 1}}),
    "an entry point that is a number": Hostile(_nothing, "Entrypoint", {"Entrypoint": 7}),
    "a user that is a list": Hostile(_nothing, "User", {**COMMAND, "User": [1]}),
    "labels that are a text": Hostile(_nothing, "Labels", {**COMMAND, "Labels": "a=b"}),
    "a history that is a number": Hostile(_nothing, "history", more={"history": 7}),
    "layers that are no list": Hostile(_nothing, "", more={"rootfs": {"diff_ids": 5}}),
    "a configuration of brackets": Hostile(
        _nothing,
        "",
        whole=lambda: tar({"index.json": b"[" * 200_000, "oci-layout": b"{}"}),
    ),
    "an index of itself": Hostile(
        _nothing, "", whole=lambda: _index(descriptor(b"none") | {"platform": {"os": "linux"}})
    ),
    "an index of nothing": Hostile(_nothing, "", whole=_index),
    "no archive": Hostile(_nothing, "", whole=lambda: b"\x1f\x8b" + b"\0" * 5000),
}

IMAGES: dict[str, Hostile] = {**_commanding(), **ENDLESS, **LYING}
"""Every hostile image, by what it is."""


def write(folder: Path) -> int:
    """Write all images into a folder; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, image) in enumerate(IMAGES.items(), 1):
        (folder / f"{number:03} {name.replace('/', ' ')}.tar").write_bytes(image.archive())
    return len(IMAGES)
