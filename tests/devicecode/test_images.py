"""Images in files and in a registry, as the audit reads them without the factory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from builder.core.errors import InputError
from builder.devicecode import __main__ as program
from builder.devicecode import registry
from builder.devicecode.inventory import from_paths
from tests.emulators.answers import serving

from .writer import container, library, sass

VOLTA, HOPPER = library(container(sass(70))), library(container(sass(90)))


def tar(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


BELOW = tar({"opt/old.so": HOPPER, "opt/a.so": VOLTA, "opt/gone/b.so": HOPPER})
ABOVE = tar({"opt/.wh.old.so": b"", "opt/gone/.wh..wh..opq": b""})


def layout(*layers: bytes, platform: str = "amd64") -> dict[str, bytes]:
    """The files of an OCI image layout with one image."""
    manifest = json.dumps({"layers": [{"digest": digest(one)} for one in layers]}).encode()
    place = {"os": "linux", "architecture": platform}
    index = {"manifests": [{"digest": digest(manifest), "platform": place}]}
    blobs = {f"blobs/sha256/{digest(one)[7:]}": one for one in (*layers, manifest)}
    return {"index.json": json.dumps(index).encode(), "oci-layout": b"{}", **blobs}


def saved(*layers: bytes, before_25: bool = False) -> bytes:
    """What `docker save` writes. before_25: folders by an id, and a link for an equal layer."""
    names = [f"{n}/layer.tar" if before_25 else f"blobs/sha256/{n}" for n in range(len(layers))]
    manifest = json.dumps([{"Config": "c.json", "Layers": names}]).encode()
    files = {**dict(zip(names, layers, strict=True)), "manifest.json": manifest, "c.json": b"{}"}
    return tar(files)


def found(path: Path) -> list[str]:
    return [one.path for one in from_paths([path])]


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstandard.compress])
def test_a_layout_as_a_folder_and_as_an_archive(packed, tmp_path: Path) -> None:
    files = layout(packed(BELOW), packed(ABOVE))
    for name, content in files.items():
        (tmp_path / "image" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "image" / name).write_bytes(content)
    (tmp_path / "image.tar").write_bytes(tar(files))
    (tmp_path / "image.tar.gz").write_bytes(gzip.compress(tar(files)))
    for name in ("image", "image.tar", "image.tar.gz"):
        assert found(tmp_path / name) == ["/opt/a.so"]


@pytest.mark.parametrize("before_25", [True, False])
def test_what_docker_saves(before_25: bool, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(saved(BELOW, ABOVE, before_25=before_25))
    assert found(path) == ["/opt/a.so"]


def test_docker_links_a_layer_that_it_saved_before(tmp_path: Path) -> None:
    manifest = json.dumps([{"Layers": ["1/layer.tar", "2/layer.tar"]}]).encode()
    content = {"1/layer.tar": BELOW, "manifest.json": manifest}
    (tmp_path / "image.tar").write_bytes(tar(content, {"2/layer.tar": "../1/layer.tar"}))
    assert found(tmp_path / "image.tar") == ["/opt/old.so", "/opt/a.so", "/opt/gone/b.so"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tar({"a": b"x"}), "holds no image: no manifest.json, no index.json"),
        (tar({"manifest.json": b"{"}), "its manifest is no JSON"),
        (tar({"manifest.json": b"[{}, {}]"}), "holds not one image"),
        (tar({"manifest.json": b'[{"Layers": ["x"]}]'}), "its layer x is missing"),
        (tar({"manifest.json": b'[{"Layers": ["x"]}]', "x": b"no tar"}), "cannot be unpacked"),
        (tar({"index.json": b'{"manifests": []}'}), "holds not one image for linux/amd64"),
        (saved(gzip.compress(BELOW)[:-900]), "cannot be unpacked"),
    ],
)
def test_what_is_no_image_is_refused_by_name(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"image\.tar") as refused:
        found(tmp_path / "image.tar")
    assert said in str(refused.value)


# --- a registry -----------------------------------------------------------------------------------


def answers(*layers: bytes, damaged: bool = False) -> dict[str, object]:
    """A repository team/image with the tag v1, an index of one image and an attestation."""
    manifest = json.dumps({"layers": [{"digest": digest(one)} for one in layers]}).encode()
    unknown = {"os": "unknown", "architecture": "unknown"}
    amd64 = {"os": "linux", "architecture": "amd64"}
    index = {
        "manifests": [
            {"digest": digest(manifest), "platform": amd64},
            {"digest": digest(b"attestation"), "platform": unknown},
        ]
    }
    root = "/v2/team/image"
    blobs = {f"{root}/blobs/{digest(one)}": (200, {}, one + bytes(512 * damaged)) for one in layers}
    return {
        f"{root}/manifests/v1": (200, {}, json.dumps(index).encode()),
        f"{root}/manifests/{digest(manifest)}": (200, {}, manifest),
        **blobs,
    }


def test_an_image_in_a_registry_is_streamed() -> None:
    with serving(answers(gzip.compress(BELOW), ABOVE)) as server:
        image = registry.reference(f"127.0.0.1:{server.server_port}/team/image:v1")
        assert image is not None
        assert [one.path for one in registry.libraries(image)] == ["/opt/a.so"]
        missing = image._replace(target="v2")
        with pytest.raises(InputError, match="team/image:v2: the registry answers 404"):
            registry.libraries(missing)


def test_what_did_not_arrive_whole_is_no_image() -> None:
    with serving(answers(BELOW, damaged=True)) as server:
        image = registry.reference(f"127.0.0.1:{server.server_port}/team/image:v1")
        assert image is not None
        with pytest.raises(InputError, match="did not arrive whole"):
            registry.libraries(image)


def test_a_stranger_gets_a_token_where_the_registry_gives_one() -> None:
    challenge = 'Bearer realm="{}/token",service="r",scope="repository:team/image:pull"'
    path = "/v2/team/image/manifests/v1"
    with serving({}) as server:
        server.answers[path] = (401, {"WWW-Authenticate": challenge.format(server.address)}, b"")
        asked = "/token?service=r&scope=repository%3Ateam%2Fimage%3Apull"
        server.answers[asked] = (200, {}, b'{"token": "abc"}')
        image = registry.reference(f"127.0.0.1:{server.server_port}/team/image:v1")
        assert image is not None
        with pytest.raises(InputError, match="may not be read without a login"):
            registry.libraries(image)
        (_, first, without), (_, _, _), (_, again, headers) = server.seen
        assert first == again == path
        assert "Authorization" not in without and headers["Authorization"] == "Bearer abc"
        del server.answers[asked]
        with pytest.raises(InputError, match="gives strangers no token"):
            registry.libraries(image)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("r.example/team/image:v1", ("r.example", "team/image", "v1")),
        ("r.example:5000/image", ("r.example:5000", "image", "latest")),
        ("localhost:5000/a/b@" + digest(b""), ("localhost:5000", "a/b", digest(b""))),
        ("folder/image", None),
        ("../r.example/image", None),
        ("libfoo.so", None),
    ],
)
def test_what_is_a_reference(text: str, found: tuple[str, str, str] | None) -> None:
    assert registry.reference(text) == found


def test_the_command_takes_all_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "image.tar").write_bytes(saved(BELOW, ABOVE))
    assert program.main(["audit", str(tmp_path / "image.tar"), "--gpu", "7.0"]) == 0
    assert program.main(["audit", str(tmp_path / "image.tar"), "--gpu", "9.0"]) == 4
    with serving(answers(HOPPER and BELOW)) as server:
        name = f"127.0.0.1:{server.server_port}/team/image:v1"
        assert program.main(["audit", name, "--gpu", "7.0"]) == 4
    assert program.main(["audit", "127.0.0.1:9/team/image:v1", "--gpu", "7.0"]) == 3
    assert program.main(["audit", "no/such", "--gpu", "7.0"]) == 2
    assert "Traceback" not in capsys.readouterr().err
