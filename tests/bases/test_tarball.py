"""A layer's bytes: the same for the same entries, readable by tar, hashed as a registry does."""

import hashlib
import io
import tarfile
import zlib

import pytest
import zstandard

from builder.bases.layer import Compression, Layer
from builder.bases.tarball import LayerWriter
from builder.core.templates import EPOCH


def written(piece: int) -> Layer:
    writer = LayerWriter(io.BytesIO(), Compression())
    content = bytes(range(256)) * 100_000
    pieces = (content[at : at + piece] for at in range(0, len(content), piece))
    writer.file("a", pieces, len(content))
    return writer.close("k" * 64)


def unpacked(data: bytes, kind: str) -> bytes:
    if kind == "gzip":
        return zlib.decompress(data, 31)
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@pytest.mark.parametrize("compression", [Compression(), Compression("gzip", 6)], ids=str)
def test_a_layer_is_a_tar_with_one_date_and_the_hashes_of_its_bytes(
    compression: Compression,
) -> None:
    file = io.BytesIO()
    writer = LayerWriter(file, compression)
    writer.folder("opt")
    writer.file("opt/a.py", b"print()\n", mode=0o755)
    writer.file("opt/" + "long" * 60, iter([b"one", b"two"]), 6, owner=(7, 8))
    writer.link("opt/link", "a.py")
    layer = writer.close("k" * 64)
    plain = unpacked(file.getvalue(), compression.kind)
    assert layer.blob.media_type == compression.media_type
    assert layer.blob.digest == f"sha256:{hashlib.sha256(file.getvalue()).hexdigest()}"
    assert layer.blob.size == len(file.getvalue())
    assert layer.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert layer.unpacked_bytes == len(b"print()\n") + 6
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        found = {one.name: one for one in tar}
    assert {one.mtime for one in found.values()} == {EPOCH}
    assert found["opt"].isdir() and found["opt/link"].linkname == "a.py"
    assert found["opt/a.py"].mode == 0o755
    assert (found["opt/" + "long" * 60].uid, found["opt/" + "long" * 60].gid) == (7, 8)


def test_the_pieces_that_content_comes_in_change_no_byte() -> None:
    assert written(piece=1000) == written(piece=30_000_000)


def test_the_number_of_processors_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for processors in (1, 2, 7):
        monkeypatch.setattr("os.cpu_count", lambda n=processors: n)
        digests.add(written(1 << 16).blob.digest)
    assert len(digests) == 1


def test_content_of_another_size_than_announced_is_noticed() -> None:
    writer = LayerWriter(io.BytesIO(), Compression())
    with pytest.raises(AssertionError, match="announced 9"):
        writer.file("a", iter([b"one"]), 9)
