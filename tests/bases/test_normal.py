"""A container's files as a layer: what is left out, the dates, and files with several names."""

import io
import tarfile
from pathlib import Path

from builder.bases import normal
from builder.bases.layer import Compression
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter
from builder.core.templates import EPOCH

NEWEST = 1_700_000_000


def exported(*names_first: str) -> io.BytesIO:
    """An engine's export; of two names of one file, it writes the first of `names_first` first."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def add(name: str, content: bytes = b"", date: float = 5.5, **fields: object) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(content), date, "root"
            info.pax_headers = {"SCHILY.xattr.user.note": "x", "LIBARCHIVE.creationtime": "1"}
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))

        add("./", type=tarfile.DIRTYPE)
        add("./.dockerenv")
        add("etc/", type=tarfile.DIRTYPE, date=NEWEST + 9, mode=0o755)
        add("etc/hosts", b"127.0.0.1 build-host\n")
        add("etc/resolv.conf", b"nameserver 10.0.0.1\n", date=NEWEST + 9)
        add("etc/made", b"now", date=NEWEST + 9)
        add("etc/passwd", b"root:x:0:0\n")
        add("dev/", type=tarfile.DIRTYPE)
        add("dev/null", type=tarfile.CHRTYPE)
        add("proc/1/status", b"x")
        add("run/lock/", type=tarfile.DIRTYPE)
        add("var/log/dpkg.log", b"today")
        add("var/lib/dpkg/status-old", b"x")
        add("var/lib/dpkg/status", b"x")
        first, second = names_first
        add(first, b"perl")
        add(second, type=tarfile.LNKTYPE, linkname=first)
        add("usr/bin/sh", type=tarfile.SYMTYPE, linkname="dash", date=NEWEST + 9)
        add("debs/install", b"x")
        ping = {"SCHILY.xattr.security.capability": "cap"}
        add("usr/bin/ping", b"ping", pax_headers=ping)
    out.seek(0)
    return out


def layer_of(folder: Path, export: io.BytesIO) -> tuple[bytes, Store, str]:
    store = Store(folder)
    with store.writing() as out:
        writer = LayerWriter(out, Compression("gzip", 1))
        normal.write(export, NEWEST, writer)
        layer = store.keep(out, writer.close("k" * 64))
    return store.path(layer).read_bytes(), store, layer.key


def test_what_the_run_and_the_engine_left_is_not_in_the_layer(tmp_path: Path) -> None:
    packed, _, _ = layer_of(tmp_path, exported("usr/bin/perl", "usr/bin/perl5"))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {one.name: one for one in tar}
        assert list(found) == sorted(found)
        assert set(found) == {
            *("dev", "etc", "etc/made", "etc/passwd", "etc/resolv.conf", "run/lock"),
            *("usr/bin/perl", "usr/bin/perl5", "usr/bin/ping", "usr/bin/sh", "var/lib/dpkg/status"),
        }
        assert found["etc/resolv.conf"].size == 0
        later = ("etc", "etc/made", "usr/bin/sh", "etc/resolv.conf", "dev", "run/lock")
        assert {name for name, one in found.items() if one.mtime == EPOCH} == set(later)
        assert {one.mtime for name, one in found.items() if name not in later} == {5}
        assert {one.uname for one in found.values()} == {""}
        headers = {name: one.pax_headers for name, one in found.items() if one.pax_headers}
        assert headers == {"usr/bin/ping": {"SCHILY.xattr.security.capability": "cap"}}
        perl5 = tar.extractfile("usr/bin/perl5")
        assert found["usr/bin/perl5"].linkname == "usr/bin/perl"
        assert perl5 is not None and perl5.read() == b"perl"


def test_an_engine_that_names_a_file_in_another_order_gives_the_same_bytes(tmp_path: Path) -> None:
    one, _, _ = layer_of(tmp_path / "1", exported("usr/bin/perl", "usr/bin/perl5"))
    other, _, _ = layer_of(tmp_path / "2", exported("usr/bin/perl5", "usr/bin/perl"))
    assert one == other


def test_a_text_is_found_in_a_packed_layer(tmp_path: Path) -> None:
    _, store, key = layer_of(tmp_path, exported("a", "b"))
    layer = store.find(key)
    assert layer is not None
    assert normal.texts(store.path(layer), ("etc/passwd",)) == {"etc/passwd": "root:x:0:0\n"}
