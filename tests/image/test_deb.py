"""Debian packages as they are, and as somebody who means harm makes them."""

import io
import lzma
import tarfile
import zlib
from pathlib import Path

import pytest

from builder.core.errors import OutsideError
from builder.image import deb
from tests.image.layers import PACKERS, ar, package


def written(folder: Path, content: bytes) -> Path:
    path = folder / "a.deb"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packed", PACKERS)
def test_a_package_is_read_however_it_is_packed(tmp_path: Path, packed: str) -> None:
    script = b"#!/bin/sh\n"
    content = package(
        ("./", b""),
        ("./usr/", b""),
        ("./usr/bin/a", b"program" * 500_000),
        ("./usr/bin/b", "a"),
        control={"control": b"Package: a\nDescription: one\n more\n", "postinst": script},
        packed=packed,
    )
    path = written(tmp_path, content)
    assert deb.built(path) == 1767225600
    assert deb.control(path)["postinst"] == script
    files = {info.name: (info, b"".join(content)) for info, content in deb.files(path)}
    assert list(files) == ["usr", "usr/bin/a", "usr/bin/b"]
    assert files["usr/bin/a"][1] == b"program" * 500_000
    assert files["usr/bin/b"][0].linkname == "a"
    assert [info.name for info, _ in deb.files(path)] == list(files), "contents may be skipped"


def entry(name: str, **fields: object) -> bytes:
    """A tar of one entry."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info)
    return out.getvalue()


ODD: list[tuple[dict[str, str], str]] = [
    ({"mtime": "nan"}, "of the time nan"),
    ({"mtime": "1e300"}, "of the time 1e"),
    ({"size": "-5"}, "is of -5 bytes|bad|negative|unexpected"),
    ({"comment": "x" * (2 << 20)}, "a header of"),
]


def greedy() -> bytes:
    """Return an xz whose header asks for a dictionary of 4 GiB."""
    packed = bytearray(lzma.compress(entry("a"), preset=0))
    begin, end = 12, 12 + 4 * (packed[12] + 1)
    packed[packed.index(b"\x21\x01", begin) + 2] = 40
    packed[end - 4 : end] = zlib.crc32(packed[begin : end - 4]).to_bytes(4, "little")
    return bytes(packed)


HARD_LINK = entry("a", type=tarfile.LNKTYPE, linkname="../../etc/shadow")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (package(("../etc/passwd", b"x")), "leads out of the root"),
        (package(("/etc/passwd", b"x")), "leads out of the root"),
        *((ar(("data.tar", entry("a", pax_headers=odd))), why) for odd, why in ODD),
        (package(("a\nb", b"x")), "leads out of the root"),
        (package(("a\udcff", b"x")), "leads out of the root"),
        (ar(("data.tar", HARD_LINK)), "leads out of the root"),
        (ar(("data.tar", entry("dev/sda", type=tarfile.BLKTYPE))), "neither a file nor a folder"),
        (ar(("data.tar.lz4", b"x")), "lz4, which is not known here"),
        (ar(("data.tar.xz", b"nothing packed")), "not supported by decoder"),
        (ar(("data.tar.zst", b"nothing packed")), "truncated header"),
        (ar(("data.tar.xz", greedy())), "Memory usage limit exceeded"),
        (ar(("data.tar", b"no tar" * 100)), "invalid header"),
        (ar(("debian-binary", b"2.0\n")), "no data.tar"),
        (b"PK\x03\x04", "no ar archive"),
        (package(("a", b"x"))[:-40], "its xz ended too early"),
        (b"!<arch>\nhalf a header", "header is damaged"),
        (ar(("data.tar", b"")).replace(b"0         `", b"-9        `"), "size is negative"),
    ],
)
def test_a_hostile_or_damaged_package_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(OutsideError, match=why) as caught:
        for _, pieces in deb.files(path):
            b"".join(pieces)
    assert caught.value.message.startswith("a.deb: not a package that can be read: ")
    assert str(path) in caught.value.fix


def test_a_package_that_unpacks_to_more_than_it_may_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, package(("a", bytes(4_000_000))))
    assert path.stat().st_size < 4000
    monkeypatch.setattr(deb, "MOST_UNPACKED", 3_000_000)
    with pytest.raises(OutsideError, match="unpacks to more than a package may hold"):
        for _, pieces in deb.files(path):
            b"".join(pieces)
