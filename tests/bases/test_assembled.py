"""Assembled images: what a registry and an engine will call them."""

import json

from builder.bases.assembled import assemble
from builder.bases.layer import Layer
from builder.registry.manifests import OCI_LAYER_ZSTD, Descriptor, digest_of


def layer(name: str) -> Layer:
    data = name.encode()
    return Layer(
        name * 8,
        Descriptor(OCI_LAYER_ZSTD, digest_of(data), len(data)),
        digest_of(b"tar " + data),
        100,
    )


def test_an_image_names_its_layers_and_settings() -> None:
    image = assemble([(layer("a"), "builder: a"), (layer("bb"), "builder: b")], {"Env": ["A=1"]})
    config = json.loads(image.configuration)
    assert (config["os"], config["architecture"], config["config"]) == (
        "linux",
        "amd64",
        {"Env": ["A=1"]},
    )
    assert config["rootfs"]["diff_ids"] == [layer("a").diff_id, layer("bb").diff_id]
    assert [one["created_by"] for one in config["history"]] == ["builder: a", "builder: b"]
    assert {one["created"] for one in config["history"]} == {"1980-01-01T00:00:00Z"}
    assert image.manifest.layers == (layer("a").blob, layer("bb").blob)
    assert image.config_digest == digest_of(image.configuration)
    assert (image.compressed_bytes, image.unpacked_bytes) == (3, 200)


def test_an_image_on_top_of_another_has_its_layers_and_its_history() -> None:
    base = assemble([(layer("a"), "builder: a")], {"Env": ["A=1"]})
    whole = assemble([(layer("bb"), "builder: b")], {"User": "1000"}, base)
    assert whole.layers == (layer("a"), layer("bb"))
    config = json.loads(whole.configuration)
    assert config["config"] == {"User": "1000"}
    assert len(config["history"]) == 2
    assert base.digest != whole.digest


def test_the_same_layers_and_settings_give_the_same_digest() -> None:
    one, two = (assemble([(layer("a"), "x")], {"B": 1, "A": 2}) for _ in range(2))
    assert one.digest == two.digest
    assert one.digest != assemble([(layer("a"), "y")], {"B": 1, "A": 2}).digest
