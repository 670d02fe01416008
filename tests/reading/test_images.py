"""One image, wherever it lies: an archive, a layout, an engine, a registry."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.reading import images, tars
from builder.reading.images import Blobs, ImageContent
from builder.reading.layers import LayerCache
from builder.registry import parse
from tests.devicecode.packing import configuration, descriptor, digest, layout, tar
from tests.devicecode.writer import container, library, sass
from tests.emulators.answers import serving

VOLTA, HOPPER = library(container(sass(70))), library(container(sass(90)))
KEY = b"-----BEGIN RSA PRIVATE " + b"KEY-----\nMIIEowIBAAKCAQEA1234567890\n"
TOKEN = b"token: ghp_" + b"a1B2c3D4e" * 4

BELOW = tar({"opt/old.so": HOPPER, "opt/a.so": VOLTA, "root/old.pem": KEY})
MIDDLE = tar({"app/secret.yaml": TOKEN, "opt/gone/b.so": HOPPER})
ABOVE = tar(
    {
        "opt/.wh.old.so": b"",
        "opt/gone/.wh..wh..opq": b"",
        "app/.wh.secret.yaml": b"",
        "root/old.pem": b"overwritten",
    }
)
LAYERS = (BELOW, MIDDLE, ABOVE)
CONFIG = configuration(*LAYERS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LayerCache:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return LayerCache()


def is_the_image(content: ImageContent) -> bool:
    """Only what a container sees is a library; a secret stays, whatever a later layer removed."""
    assert [library.path for library in content.libraries] == ["/opt/a.so"]
    assert [(secret.layer, secret.path, secret.kind) for secret in content.secrets] == [
        (digest(BELOW), "/root/old.pem", "a private key"),
        (digest(MIDDLE), "/app/secret.yaml", "a token (github-pat)"),
    ]
    return True


# --- in files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_a_layout_as_a_folder_and_as_an_archive(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    files = layout(CONFIG, *map(pack, LAYERS))
    for name, content in files.items():
        (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / name).write_bytes(content)
    (tmp_path / "image.tar").write_bytes(tar(files))
    (tmp_path / "image.tar.gz").write_bytes(gzip.compress(tar(files)))
    for name in ("image", "image.tar", "image.tar.gz"):
        assert is_the_image(images.of_paths([tmp_path / name]))


def saved(names: list[str], *blobs: bytes) -> dict[str, bytes]:
    """What `docker save` writes, with its layers under these names."""
    manifest = [{"Config": "config.json", "Layers": names}]
    files = {"config.json": CONFIG, "manifest.json": json.dumps(manifest).encode()}
    return {**dict(zip(names, blobs, strict=True)), **files}


def test_what_docker_saves(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    for names in (["0/layer.tar", "1/layer.tar", "2/layer.tar"], ["blobs/sha256/x", "y", "z"]):
        path.write_bytes(tar(saved(names, *LAYERS)))
        assert is_the_image(images.of_archive(path))
    # Docker before 25 links a layer that it saved before
    twice = json.dumps({"rootfs": {"diff_ids": [digest(BELOW)] * 2}}).encode()
    files = {"1/layer.tar": BELOW, "config.json": twice}
    files["manifest.json"] = (
        b'[{"Config": "config.json", "Layers": ["1/layer.tar", "2/layer.tar"]}]'
    )
    path.write_bytes(tar(files, {"2/layer.tar": "../1/layer.tar"}))
    assert [library.path for library in images.of_archive(path).libraries] == [
        "/opt/a.so",
        "/opt/old.so",
    ]


GONE = b'{"manifests": [{"digest": "sha256:%b", "size": 3}]}' % (64 * b"a")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": b"x"}, "holds no image: no manifest.json, no index.json"),
        ({"manifest.json": b"[{}, {}]"}, "holds not one image"),
        ({"manifest.json": b"[{"}, "holds not one image"),
        ({"manifest.json": b'[{"Config": "c"}]'}, "its configuration c is missing"),
        ({"manifest.json": b'[{"Config": "c"}]', "c": b'{"rootfs": []}'}, "`rootfs`"),
        ({"index.json": b'{"manifests": []}'}, "holds no image for linux/amd64"),
        ({"index.json": GONE}, "image.tar: its manifest sha256:" + 64 * "a" + " is missing"),
        (saved(["a", "b", "c"], BELOW, gzip.compress(MIDDLE)[:-90], ABOVE), "its layer sha256:"),
    ],
)
def test_what_is_no_image_is_refused_by_name(
    files: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    (tmp_path / "image.tar").write_bytes(tar(files))
    with pytest.raises(InputError, match=r"image\.tar") as refused:
        images.of_paths([tmp_path / "image.tar"])
    assert message in str(refused.value)


# --- on an engine ---------------------------------------------------------------------------------


class Engine:
    """An engine that gives one archive out, and counts how often."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.saved = 0

    def save(self) -> Blobs:
        self.saved += 1
        yield from images.archived(io.BytesIO(tar(self.files)))

    def read(self, files: dict[str, Path] | None = None) -> ImageContent:
        return images.of_saved([digest(layer) for layer in LAYERS], self.save, files)


PACKED = [zstandard.compress(layer) for layer in LAYERS]
ENGINES = {
    "Docker 25": {f"blobs/sha256/{digest(layer)[7:]}": layer for layer in LAYERS},
    "containerd": {f"blobs/sha256/{digest(blob)[7:]}": blob for blob in PACKED},
    "Docker 20.10": {f"{n}/layer.tar": layer for n, layer in enumerate(LAYERS)},
    "Podman": {f"{digest(layer)[7:]}.tar": layer for layer in LAYERS},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_image_on_an_engine_is_read_once(engine: str) -> None:
    there = Engine({**ENGINES[engine], "manifest.json": b"[]", "0/VERSION": b"1.0"})
    assert is_the_image(there.read())
    assert is_the_image(there.read())
    assert there.saved == 1


def test_layers_of_this_machine_are_not_asked_of_the_engine(tmp_path: Path) -> None:
    files = {}
    for layer, blob in zip(LAYERS, PACKED, strict=True):
        files[digest(layer)] = tmp_path / digest(layer)
        files[digest(layer)].write_bytes(blob)
    there = Engine({})
    assert is_the_image(there.read(files))
    assert there.saved == 0


def test_a_layer_that_the_engine_does_not_give_out_is_an_error() -> None:
    with pytest.raises(ValueError, match=f"its layer {digest(MIDDLE)} is missing or cannot be"):
        Engine({f"{digest(BELOW)[7:]}.tar": BELOW}).read()


def test_a_blob_that_was_read_is_passed_over_by_its_digest(
    cache: LayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {f"blobs/sha256/{'0' * 64}": PACKED[2]}  # no blob has that digest
    there = Engine({**dict(list(ENGINES["containerd"].items())[:2]), **other})
    there.read()
    cache._path(digest(ABOVE)).unlink()
    read: list[str] = []
    again = LayerCache.read
    monkeypatch.setattr(
        LayerCache,
        "read",
        lambda *all: read.append(all[2]) or again(*all),  # type: ignore[func-returns-value]
    )
    assert is_the_image(there.read())
    assert read == [f"sha256:{'0' * 64}"]


# --- in a registry --------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Any]:
    """A repository team/image with the tag v1: an index of one image and an attestation."""
    blobs = [gzip.compress(BELOW), zstandard.compress(MIDDLE), ABOVE]
    files = layout(CONFIG, *blobs)
    (manifest,) = (f for f in files.values() if f.startswith(b'{"config"'))
    root = "/v2/team/image"
    oci = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
    answers: dict[str, object] = {
        f"{root}/manifests/v1": (200, oci, files["index.json"]),
        f"{root}/manifests/{digest(manifest)}": (200, {}, manifest),
    }
    for blob in (CONFIG, *blobs):
        answers[f"{root}/blobs/{digest(blob)}"] = (200, {}, blob)
    with serving(answers) as running:
        yield running


def of_registry(server: Any, tag: str = "v1", **more: Any) -> ImageContent:
    reference = parse(f"127.0.0.1:{server.server_port}/team/image:{tag}")
    return images.of_registry(reference, **more)


def test_an_image_in_a_registry_is_streamed_once(server: Any, cache: LayerCache) -> None:
    streamed: list[int] = []

    def note(layer: images.Descriptor, known: bool) -> None:
        streamed.extend(() if known else [layer.size])

    seen: list[tuple[int, int]] = []
    on_bytes = lambda *counts: seen.append(counts)  # noqa: E731
    assert is_the_image(of_registry(server, on_layer=note, on_bytes=on_bytes))
    assert len(streamed) == 3
    whole = sum(streamed)
    assert seen == sorted(seen) and seen[-1] == (whole, whole)
    assert {(sum(streamed[:number]), whole) for number in (1, 2)} < {*seen}
    assert is_the_image(of_registry(server, on_layer=note))
    assert len(streamed) == 3
    with pytest.raises(OutsideError, match="v2: there is no such image"):
        of_registry(server, "v2")


def test_bytes_that_are_not_the_layers_are_not_kept(server: Any, cache: LayerCache) -> None:
    place = f"/v2/team/image/blobs/{digest(ABOVE)}"
    server.answers[place] = (200, {}, ABOVE + bytes(512))
    with pytest.raises(CheckFailed, match="the registry has other bytes"):
        of_registry(server)
    torn = gzip.compress(ABOVE)[:-90]
    index = json.dumps({"config": descriptor(CONFIG), "layers": [descriptor(torn)]}).encode()
    server.answers["/v2/team/image/manifests/torn"] = (200, {}, index)
    server.answers[f"/v2/team/image/blobs/{digest(torn)}"] = (200, {}, torn)
    with pytest.raises(CheckFailed, match="a layer cannot be unpacked"):
        of_registry(server, "torn")
    assert cache.find(digest(ABOVE)) is None


def test_a_full_disk_says_nothing_of_a_layer(
    server: Any, cache: LayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was read whole is kept: with space again, the same layer is judged anew."""
    full = partial(Path("/dev/full").open, "r+b", buffering=0)
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(OutsideError, match="No space left on device") as raised:
            of_registry(server)
    assert "TMPDIR" in raised.value.fix
    assert not cache.folder.exists()
    assert is_the_image(of_registry(server))


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "packed"])
def test_what_nobody_reads_of_a_plain_archive_is_skipped(packed: Callable[[bytes], bytes]) -> None:
    class Counted(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            block = super().read(size)
            self.taken += len(block)
            return block

    file = Counted(packed(tar({"layer.tar": bytes(range(256)) * 20_000, "manifest.json": b"[]"})))
    with tars.members(file, skips=True) as members:
        small = [content.read() for member, content in members if content and member.size < 9]
    assert small == [b"[]"]
    assert packed is gzip.compress or file.taken < 100_000
