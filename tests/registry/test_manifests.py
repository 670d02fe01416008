"""What the factory writes for a registry: the same content is the same bytes, and reads back."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builder.registry import manifests
from builder.registry.manifests import Descriptor, Manifest

CONFIG = Descriptor.of(manifests.OCI_CONFIG, b"{}")
LAYER = Descriptor.of(manifests.OCI_LAYER_GZIP, b"layer")


def test_a_descriptor_is_read_as_it_was_written() -> None:
    whole = Descriptor("a/b", "sha256:1", 3, "c/d", {"made": "today"})
    assert Descriptor.read(whole.json()) == whole
    assert Descriptor.read(LAYER.json()) == LAYER
    assert LAYER.json() == {
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        "digest": manifests.digest_of(b"layer"),
        "size": 5,
    }


def test_the_order_in_which_something_is_said_does_not_change_a_digest() -> None:
    first = manifests.manifest({"mediaType": "a", "config": {"b": 1, "c": 2}})
    other = manifests.manifest({"config": {"c": 2, "b": 1}, "mediaType": "a"})
    assert first == other
    assert first.digest == other.digest


def test_an_image_names_its_configuration_and_its_layers() -> None:
    made = manifests.image(CONFIG, [LAYER])
    assert (made.config, made.layers, made.is_index) == (CONFIG, (LAYER,), False)
    assert made.descriptor == Descriptor(manifests.OCI_MANIFEST, made.digest, len(made.data))
    listed = manifests.index([made.descriptor])
    assert (listed.manifests, listed.layers, listed.is_index) == ((made.descriptor,), (), True)


def test_bytes_that_are_no_json_object_have_no_content() -> None:
    for data in (b"", b"\xff", b"[]", b"null"):
        assert Manifest(data, manifests.OCI_MANIFEST).content == {}
        assert Manifest(data, manifests.OCI_MANIFEST).layers == ()


def test_a_configuration_adds_layers_to_those_below() -> None:
    lowest = manifests.configuration(
        {"architecture": "amd64", "os": "linux"},
        {"Cmd": ["bash"]},
        [manifests.Added("sha256:1", "the root")],
        0,
    )
    under = json.loads(lowest)
    assert under == {
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:1"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "the root"}],
    }
    upper = manifests.configuration(
        under, {"User": "1000"}, [manifests.Added("sha256:2", "the program")], 1
    )
    made = json.loads(upper)
    assert made["architecture"] == "amd64"
    assert made["config"] == {"User": "1000"}
    assert made["created"] == "1970-01-01T00:00:01Z"
    assert made["rootfs"]["diff_ids"] == ["sha256:1", "sha256:2"]
    assert [step["created_by"] for step in made["history"]] == ["the root", "the program"]


def test_a_layout_is_read_by_oci_tools_and_by_docker_load() -> None:
    image = manifests.image(CONFIG, [LAYER])
    files = manifests.layout(image, "training-os-root:bookworm")
    assert files[manifests.blob_path(image.digest)] == image.data
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(files["index.json"])["manifests"]
    assert named["digest"] == image.digest
    assert named["annotations"] == {
        "io.containerd.image.name": "docker.io/library/training-os-root:bookworm",
        "org.opencontainers.image.ref.name": "bookworm",
    }
    assert json.loads(files["manifest.json"]) == [
        {
            "Config": "blobs/" + CONFIG.digest.replace(":", "/"),
            "RepoTags": ["training-os-root:bookworm"],
            "Layers": ["blobs/" + LAYER.digest.replace(":", "/")],
        }
    ]


def test_no_other_module_writes_oci_json() -> None:
    own = Path(manifests.__file__)
    written = re.compile(r'"(schemaVersion|diff_ids|created_by|imageLayoutVersion)"')
    others = (path for path in own.parents[1].rglob("*.py") if path != own)
    assert [str(path) for path in others if written.search(path.read_text())] == []
