"""A layer's bytes: the same for the same entries, and read by others; kept whole, or not at all."""

import hashlib
import io
import os
import tarfile
import zlib

import pytest
import zstandard

from builder.core.files import EPOCH
from builder.image.content_store import ContentStore
from builder.image.layer import Compression, Layer, assemble
from builder.image.tarball import LayerWriter
from tests.image import layers

KEY = "ab" * 32


def written(piece: int, compression: Compression) -> Layer:
    writer = LayerWriter(io.BytesIO(), compression)
    content = bytes(range(256)) * 100_000
    pieces = (content[at : at + piece] for at in range(0, len(content), piece))
    writer.file("a", pieces, len(content))
    return writer.close(KEY)


@pytest.mark.parametrize("compression", [Compression(), Compression("gzip", 6)], ids=str)
def test_a_layer_is_a_tar_with_one_date_and_the_hashes_of_its_bytes(
    compression: Compression,
) -> None:
    file = io.BytesIO()
    writer = LayerWriter(file, compression)
    writer.folder("opt", owner=(7, 8))
    writer.file("opt/a.py", b"print()\n", mode=0o755)
    writer.file("opt/" + "long" * 60, iter([b"one", b"two"]), 6)
    writer.link("opt/link", "a.py")
    layer = writer.close(KEY)
    packed = file.getvalue()
    is_gzip = compression.kind == "gzip"
    plain = (
        zlib.decompress(packed, 31)
        if is_gzip
        else zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    )
    assert layer.blob.media_type == compression.media_type
    assert layer.blob.digest == f"sha256:{hashlib.sha256(packed).hexdigest()}"
    assert layer.blob.size == len(packed)
    assert layer.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert layer.unpacked_bytes == len(b"print()\n") + 6
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        infos = {info.name: info for info in tar}
    assert {info.mtime for info in infos.values()} == {EPOCH}
    assert infos["opt"].isdir() and infos["opt/link"].linkname == "a.py"
    assert infos["opt/a.py"].mode == 0o755
    assert (infos["opt"].uid, infos["opt"].gid) == (7, 8)
    assert infos["opt/" + "long" * 60].uid == 0


@pytest.mark.parametrize("compression", [Compression(), Compression("gzip", 6)], ids=str)
def test_neither_pieces_nor_processors_change_a_byte(
    monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    digests = {written(30_000_000, compression).blob.digest}
    for processors, piece in ((1, 1 << 16), (2, 60_000), (7, 300_001)):
        monkeypatch.setattr("os.cpu_count", lambda n=processors: n)
        digests.add(written(piece, compression).blob.digest)
    assert len(digests) == 1


# --- the content store ----------------------------------------------------------------------------


def test_a_layer_is_found_by_its_key_as_long_as_it_is_whole_and_an_image_by_its_name(
    store: ContentStore,
) -> None:
    layer = layers.layer(store, {"a": b"content"})
    assert store.find(layer.key) == layer
    entry = store.folder / "keys" / f"{layer.key}.json"
    text = entry.read_text()
    for damaged in ("", "[]", text[:-9], text.replace('"size"', '"weight"')):
        entry.write_text(damaged)
        assert store.find(layer.key) is None
    entry.write_text(text)
    blob = store.path(layer)
    blob.write_bytes(blob.read_bytes()[:-1])
    assert store.find(layer.key) is None and not store.has(layer)
    assert store.find("cd" * 32) is None
    image = assemble([(layer, "builder: a")], {"Env": ["A=1"]})
    store.keep_image("base-1", image)
    assert store.find_image("base-1") == image
    (store.folder / "images" / "base-1.json").write_text("[]")
    assert store.find_image("base-1") is None


def test_what_no_run_used_of_late_is_pruned(store: ContentStore) -> None:
    unused, used = (layers.layer(store, {"a": name}) for name in (b"unused", b"used"))
    for path in store.folder.rglob("*"):
        os.utime(path, (1000, 1000))
    assert store.find(used.key) == used, "which counts as using it"
    assert store.prune(2000) == unused.blob.size
    assert (store.find(unused.key), store.find(used.key)) == (None, used)
    assert not store.path(unused).exists()
    assert store.prune(2000) == 0


# --- images ---------------------------------------------------------------------------------------


def test_an_image_names_its_layers_and_settings_and_those_of_its_base(store: ContentStore) -> None:
    from builder.registry import manifests

    low, high = (layers.layer(store, {name: b"x"}) for name in ("low", "high"))
    base = assemble([(low, "builder: low")], {"Env": ["A=1"]})
    image = assemble([(high, "builder: high")], {"User": "1000"}, base)
    again = assemble([(high, "builder: high")], {"User": "1000"}, base)
    assert image.digest == again.digest != base.digest
    configuration = manifests.configuration_in(image.configuration)
    assert (configuration["os"], configuration["architecture"]) == ("linux", "amd64")
    assert configuration["config"] == {"User": "1000"}
    assert manifests.diff_ids(configuration) == (low.diff_id, high.diff_id)
    assert manifests.history(configuration) == ("builder: low", "builder: high")
    assert {step["created"] for step in configuration["history"]} == {"1980-01-01T00:00:00Z"}
    assert image.layers == (low, high) and image.manifest.layers == (low.blob, high.blob)
    assert image.compressed_bytes == low.blob.size + high.blob.size
