"""Layers of this machine: found by key when whole, and never half."""

import os
from pathlib import Path

import pytest

from builder.bases.assembled import assemble
from builder.bases.layer import Compression, Layer
from builder.bases.store import Store
from builder.bases.tarball import LayerWriter

KEY = "ab" * 32


def made(store: Store) -> Layer:
    with store.writing() as file:
        writer = LayerWriter(file, Compression())
        writer.file("a", b"content")
        return store.keep(file, writer.close(KEY))


def test_a_layer_is_found_by_its_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "layers")
    assert store.find(KEY) is None
    layer = made(store)
    assert store.find(KEY) == layer
    assert store.path(layer).stat().st_size == layer.blob.size


def test_an_error_leaves_neither_a_blob_nor_a_key(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.writing() as file:
        file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_blob_that_is_not_whole_and_a_damaged_key_lead_to_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    layer = made(store)
    blob = store.path(layer)
    blob.write_bytes(blob.read_bytes()[:-1])
    assert store.find(KEY) is None
    made(store)
    (tmp_path / "keys" / f"{KEY}.json").write_text("{")
    assert store.find(KEY) is None


def test_an_image_is_kept_by_name_without_its_blobs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    image = assemble([(made(store), "builder: a")], {"Env": ["A=ä"]})
    assert store.find_image("base-1") is None
    store.keep_image("base-1", image)
    store.path(image.layers[0]).unlink()
    assert store.find_image("base-1") == image
    assert not store.has(image.layers[0])
    (tmp_path / "images" / "base-1.json").write_text("[]")
    assert store.find_image("base-1") is None


def test_what_no_run_used_of_late_is_pruned(tmp_path: Path) -> None:
    store = Store(tmp_path)
    layer = made(store)
    with store.writing() as file:
        writer = LayerWriter(file, Compression())
        writer.file("b", b"another")
        used = store.keep(file, writer.close("cd" * 32))
    for path in tmp_path.rglob("*"):
        os.utime(path, (1000, 1000))
    assert store.find(used.key) == used, "which counts as using it"
    assert store.prune(2000) == layer.blob.size
    assert (store.find(layer.key), store.find(used.key)) == (None, used)
    assert not store.path(layer).exists()
    assert store.prune(2000) == 0
