"""Archives and layouts: what other programs read in them, and that nothing half is left."""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard

from builder.bases import archive
from builder.bases.archive import Archive
from builder.bases.layer import Compression, Layer
from builder.bases.store import Store
from builder.registry.manifests import blob_path, digest_of
from tests.bases import making
from tests.registry.server import program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "layers")


def members(made: Archive) -> dict[str, bytes]:
    """The files of an archive, by path."""
    data = b"".join(made.stream(lambda count: None))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def test_an_archive_holds_the_image_and_counts_what_it_gives_out(store: Store) -> None:
    low, high = making.layer(store, {"a": b"1" * 3_000_000}), making.layer(store, {"b": b"2"})
    whole = making.image(low, high)
    made = Archive(whole, store.path, "training:base-1")
    given: list[int] = []
    data = b"".join(made.stream(given.append))
    assert given == sorted(given) and given[-1] == made.size == low.blob.size + high.blob.size
    assert data == b"".join(made.stream(given.append)), "an archive can be read again"
    held = members(made)
    for one in (low, high):
        assert held[blob_path(one.blob.digest)] == store.path(one).read_bytes()
    assert held[blob_path(whole.digest)] == whole.manifest.data
    assert held[blob_path(whole.config_digest)] == whole.configuration


def test_layers_that_the_engine_has_are_left_out_and_still_named(store: Store) -> None:
    low, high = making.layer(store, {"a": b"1"}), making.layer(store, {"b": b"2"})
    made = Archive(making.image(low, high), store.path, "training:base-1", {low.diff_id})
    held = members(made)
    assert made.size == high.blob.size
    assert blob_path(low.blob.digest) not in held and blob_path(high.blob.digest) in held
    (image,) = json.loads(held["manifest.json"])
    assert image["Layers"] == [blob_path(one.blob.digest) for one in (low, high)]


def test_an_engine_without_zstd_gets_plain_layers_by_their_own_digest(store: Store) -> None:
    zstd = making.layer(store, {"a": b"1" * 100_000})
    gzip = making.layer(store, {"b": b"2"}, Compression("gzip", 6))
    whole = making.image(zstd, gzip)
    held = members(Archive(whole, store.path, "training:base-1", plain=True))
    (image,) = json.loads(held["manifest.json"])
    assert image["Layers"] == [blob_path(zstd.diff_id), blob_path(gzip.blob.digest)]
    assert image["Config"] == blob_path(whole.config_digest)
    plain = held[blob_path(zstd.diff_id)]
    assert digest_of(plain) == zstd.diff_id
    packed = store.path(zstd).read_bytes()
    assert plain == zstandard.ZstdDecompressor().decompressobj().decompress(packed)


def test_skopeo_reads_a_layout(store: Store, tmp_path: Path) -> None:
    whole = making.image(making.layer(store, {"a": b"1"}))
    archive.write_layout(whole, store.path, "training:base-1", tmp_path / "out")
    done = subprocess.run(
        [program("skopeo"), "inspect", "--raw", f"oci:{tmp_path / 'out'}:base-1"],
        capture_output=True,
        check=True,
    )
    assert done.stdout == whole.manifest.data


def test_a_layout_that_could_not_be_finished_is_none_yet_and_goes_on(
    store: Store, tmp_path: Path
) -> None:
    low, high = making.layer(store, {"a": b"1"}), making.layer(store, {"b": b"2"})
    whole, folder = making.image(low, high), tmp_path / "out"

    def lost(one: Layer) -> Path:
        return store.path(low) if one == low else tmp_path / "not there"

    with pytest.raises(FileNotFoundError):
        archive.write_layout(whole, lost, "training:base-1", folder)
    assert not (folder / "index.json").exists()
    copied = folder / blob_path(low.blob.digest)
    before = copied.stat().st_mtime_ns
    archive.write_layout(whole, store.path, "training:base-1", folder)
    assert (folder / "index.json").exists() and copied.stat().st_mtime_ns == before
