"""What a layer holds, what a container of several sees, and what is never unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from builder.devicecode.pruning import prune as pruning
from builder.devicecode.pruning.rule import compute_capability
from builder.reading import layers, tars
from builder.reading.layers import LayerCache
from tests.devicecode.packing import digest, tar
from tests.devicecode.writer import container, install, library, sass

KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"
VOLTA = library(container(sass(70)))

PACKED: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, zstandard.compress]


def visible(*stack: bytes) -> dict[str, int]:
    """The libraries that a container of these layers (lowest first) sees, with their size."""
    read = [layers.read(io.BytesIO(data)) for data in stack]
    return {library.path: library.size for library in layers.merge(read)}


@pytest.mark.parametrize("pack", PACKED)
def test_a_layer_is_read_to_its_end_however_it_is_packed(pack: Callable[[bytes], bytes]) -> None:
    data = tar({"usr/lib/a.so": b"a", "etc/hosts": b"x"})
    layer = layers.read(io.BytesIO(pack(data)))
    assert layer.diff_id == digest(data)
    assert set(layer.files) == {"/usr/lib/a.so", "/etc/hosts"}
    assert [library.path for library in layer.libraries] == ["/usr/lib/a.so"]
    padded = io.BytesIO(pack(data + bytes(1 << 21)))
    layers.read(padded)
    assert padded.read() == b"", "the digest covers all of it"


def test_a_container_sees_what_no_upper_layer_hides() -> None:
    lower = tar({"l/a.so": b"old", "l/b.so": b"b", "d/x.so": b"x", "d/e/y.so": b"y", "k.so": b"k"})
    upper = tar({"l/a.so": b"newer", "l/.wh.b.so": b"", ".wh.d": b"", "d/new.so": b"new"})
    assert visible(lower, upper) == {"/l/a.so": 5, "/k.so": 1, "/d/new.so": 3}
    opaque = tar({"d/.wh..wh..opq": b"", "d/new.so": b"new"})
    below = tar({"d/x.so": b"x", "d/e/y.so": b"y", "dd.so": b"dd"})
    assert visible(below, opaque) == {"/d/new.so": 3, "/dd.so": 2}
    assert visible(tar({"d/x.so": b"x"}), tar({"d": b"a file in the folder's place"})) == {}


def test_records_count_across_layers(tmp_path: Path) -> None:
    """A later layer prunes a library whose RECORD lies in an earlier one."""
    name = "site/tensorflow/libtensorflow_cc.so.2"
    whole = library(container(sass(70), sass(80)))
    install(tmp_path / "site", "tensorflow", "2.21.0", {"tensorflow/libtensorflow_cc.so.2": whole})

    def packed() -> bytes:
        files = (path for path in sorted(tmp_path.rglob("*")) if path.is_file())
        return tar({str(path.relative_to(tmp_path)): path.read_bytes() for path in files})

    below = packed()
    pruning.prune(tmp_path / "site", compute_capability("7.0"))
    pruned = (tmp_path / name).read_bytes()
    marker = f"site/{pruning.PRUNED}"

    def doubt(upper: dict[str, bytes]) -> str:
        (only,) = layers.merge([layers.read(io.BytesIO(data)) for data in (below, tar(upper))])
        assert only.origin == "tensorflow 2.21.0"
        return only.doubt

    assert doubt({name: pruned, marker: (tmp_path / marker).read_bytes()}) == ""
    assert "not its wheel's" in doubt({name: pruned})


def test_with_another_pruner_every_layer_is_read_again() -> None:
    names = {path.relative_to(path.parents[1]).as_posix() for path in layers._sources()}
    assert {"pruning/elf.py", "pruning/fatbin.py", "pruning/rule.py", "reading/layers.py"} <= names


def test_a_layer_keeps_the_secret_that_a_later_one_deletes() -> None:
    record = f"x/test.pem,,{len(KEY)}\nx/other.pem,,3\n".encode()
    md5 = hashlib.md5(KEY).hexdigest()
    sums = f"{md5}  usr/share/a.pem\n{md5}  lib/b.pem\n{'0' * 32}  usr/share/c.pem\n".encode()
    layer = layers.read(
        io.BytesIO(
            tar(
                {
                    "root/key.pem": KEY,
                    "site/x/test.pem": KEY,  # public: a wheel installed it as it is
                    "site/x/other.pem": KEY,
                    "site/x-1.dist-info/RECORD": record,
                    "usr/share/a.pem": KEY,  # public: a Debian package brought it
                    "usr/lib/b.pem": KEY,
                    "usr/share/c.pem": KEY,
                    "var/lib/dpkg/info/x:amd64.md5sums": sums,
                }
            )
        )
    )
    assert layer.secrets == (
        ("/root/key.pem", "a private key"),
        ("/site/x/other.pem", "a private key"),
        ("/usr/share/c.pem", "a private key"),
    )


def test_a_layer_is_kept_and_read_again_where_its_entry_is_torn(tmp_path: Path) -> None:
    odd = "latin-\udce9.txt"  # a name that is no UTF-8
    files = {"a.so": VOLTA, "k.pem": KEY, ".wh.b": b"", "d/.wh..wh..opq": b"", odd: b"c"}
    data = tar(files)
    packed = zstandard.compress(data)
    cache = LayerCache(tmp_path)
    layer = cache.read(io.BytesIO(packed), digest(packed))
    assert cache.find(digest(data)) == layer == layers.read(io.BytesIO(data))
    assert r"/latin-\xe9.txt" in layer.files
    assert cache.diff_id(digest(packed)) == layer.diff_id
    cache.read(io.BytesIO(packed), digest(b"of other bytes"))
    assert cache.diff_id(digest(b"of other bytes")) is None
    (entry,) = tmp_path.glob("*.json.gz")
    entry.write_bytes(entry.read_bytes()[:-9])
    assert cache.find(digest(data)) is None


# --- from outside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", PACKED[1:])
def test_a_torn_layer_is_an_error(pack: Callable[[bytes], bytes]) -> None:
    torn = pack(tar({"a.so": bytes(range(256)) * 64}))[:-40]
    with pytest.raises(tars.BROKEN):
        layers.read(io.BytesIO(torn))


@pytest.mark.parametrize(
    ("name", "kind", "size", "message"),
    [
        ("././@LongLink", tarfile.GNUTYPE_LONGNAME, 6 << 30, "a name or a header of"),
        ("pax", tarfile.XHDTYPE, 6 << 30, "a name or a header of"),
        ("usr/lib/a.so", tarfile.REGTYPE, 20 << 30, "a file of 21,474,836,480 bytes"),
    ],
)
def test_a_layer_beyond_every_bound_is_not_unpacked(
    name: str, kind: bytes, size: int, message: str
) -> None:
    """A name of 6 GB would be held in memory, a sparse file of 20 GB written out."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    with pytest.raises(ValueError, match=message):
        layers.read(io.BytesIO(entry.tobuf() + bytes(10240)))


def test_an_archive_that_unpacks_without_an_end_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tar({"zeros": bytes(1 << 22)})
    assert layers.read(io.BytesIO(gzip.compress(data))).files, "little in all"
    monkeypatch.setattr(tars, "FREE", 1 << 20)
    assert layers.read(io.BytesIO(data)).files, "it is not packed"
    for pack in (gzip.compress, zstandard.compress):
        with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
            layers.read(io.BytesIO(pack(data)))
    monkeypatch.setattr(tars, "UNPACKED", 1 << 21)
    with pytest.raises(ValueError, match="unpacks to more than"):
        layers.read(io.BytesIO(data))
