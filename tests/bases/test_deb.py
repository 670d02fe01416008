"""Debian packages as they are, and as somebody who means harm makes them."""

import io
import tarfile
from pathlib import Path

import pytest

from builder.bases import deb
from builder.core.errors import OutsideError
from tests.bases.packages import PACKERS, ar, package, tar


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
    control = deb.control(path)
    assert control["postinst"] == script
    assert deb.fields(control["control"]) == {"Package": "a", "Description": "one"}
    found = {info.name: (info, b"".join(content)) for info, content in deb.files(path)}
    assert list(found) == ["usr", "usr/bin/a", "usr/bin/b"]
    assert found["usr/bin/a"][1] == b"program" * 500_000
    assert found["usr/bin/b"][0].linkname == "a"


def test_a_content_that_is_not_read_is_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, package(("a", b"1" * 3_000_000), ("b", b"2")))
    assert [info.name for info, _ in deb.files(path)] == ["a", "b"]


def device() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("dev/sda")
        info.type = tarfile.BLKTYPE
        archive.addfile(info)
    return out.getvalue()


def hard_link(target: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a")
        info.type, info.linkname = tarfile.LNKTYPE, target
        archive.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (package(("../etc/passwd", b"x")), "leads out of the root"),
        (package(("/etc/passwd", b"x")), "leads out of the root"),
        (package(("a/./../../b", b"x")), "leads out of the root"),
        (package(("a\nb", b"x")), "leads out of the root"),
        (ar(("data.tar", hard_link("../../etc/shadow"))), "leads out of the root"),
        (ar(("data.tar", device())), "neither a file nor a folder nor a link"),
        (ar(("data.tar.lz4", b"x")), "lz4, which is not known here"),
        (ar(("data.tar.xz", b"nothing packed")), "not supported by decoder"),
        (ar(("data.tar.zst", b"nothing packed")), "Unknown frame descriptor"),
        (ar(("data.tar.gz", b"nothing packed")), "Not a gzipped file"),
        (ar(("data.tar", b"no tar" * 100)), "invalid header"),
        (ar(("debian-binary", b"2.0\n")), "no data.tar"),
        (b"PK\x03\x04", "no ar archive"),
        (package(("a", b"x"))[:-40], "ended before"),
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


def test_an_empty_file_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="no ar archive"):
        deb.built(written(tmp_path, b""))
    with pytest.raises(OutsideError, match="it is empty"):
        deb.built(written(tmp_path, ar()))
    assert tar()  # an archive without entries is one
