"""An image that was built again: the first layer that differs from the registry's."""

from __future__ import annotations

import gzip
import io
import json
import secrets
import tarfile
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.image.content_store import ContentStore
from builder.image.tarball import unpacked
from builder.pipeline import rebuild
from builder.registry import Manifest, Reference, Registry, digest_of, manifest, parse
from tests.commands import ROOT, builder
from tests.image import layers
from tests.registry.server import RegistryServer


def test_the_first_layer_that_differs_is_named(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    same = layers.layer(store, {"a": b"1"})
    ours = layers.image(same, layers.layer(store, {"site/a.py": b"1"}))
    evil = layers.image(same, layers.layer(store, {"site/a.py": b"1", "site/zz_evil.pth": b"x"}))
    assert rebuild._difference(evil.manifest, ours).startswith("layer 2 (sha256:")
    assert rebuild._difference(layers.image(same).manifest, ours) == "1 layers there, 2 here"
    assert rebuild._difference(ours.manifest, ours) == "its configuration differs"


def test_a_tag_names_the_target() -> None:
    where = Reference("h", "training", "v100-2.21.0-abc")
    assert rebuild._target_of(ROOT, where) == "v100"
    with pytest.raises(InputError, match="names no target"):
        rebuild._target_of(ROOT, Reference("h", "training", "nothing"))


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_a_pushed_image_is_built_again_from_the_lock_and_a_changed_one_is_named(
    registry_server: RegistryServer,
) -> None:
    repository = f"tests/{secrets.token_hex(6)}"
    registry = ("--registry", f"{registry_server.host}/{repository}")
    assert builder("build", "cpu", "--base-only", "--to-registry", *registry).returncode == 0
    pushed = builder("build", "cpu", "--to-registry", *registry, "--json")
    assert pushed.returncode == 0, pushed.stderr
    image = json.loads(pushed.stdout)[0]
    rebuilding = ("rebuild", "--target", "cpu", *registry)

    same = builder(*rebuilding, image["reference"])
    assert same.returncode == 0, same.stderr
    assert f"the same digest {image['digest']}" in same.stderr + same.stdout
    with Registry(registry_server.host) as client:
        where = parse(image["reference"])
        number, changed = _with_one_more_file(client, where)
        client.put_manifest(repository, "changed", changed)

        other = builder(*rebuilding, "changed")
        assert other.returncode == 4, other.stderr
        assert f"layer {number} (" in other.stderr, other.stderr


def _with_one_more_file(client: Registry, where: Reference) -> tuple[int, Manifest]:
    """Add a file to the smallest layer below the program; return its number and the image."""
    image = client.manifest(where.repository, where.target)
    assert image
    layer = min(image.layers[:-1], key=lambda layer: layer.size)
    tar = io.BytesIO(unpacked(io.BytesIO(client.blob(where.repository, layer))).read())
    with tarfile.open(fileobj=tar, mode="a") as archive:
        archive.addfile(tarfile.TarInfo("opt/zz_evil.pth"))
    content, config = image.content, client.configuration(where.repository, image)
    number = image.layers.index(layer)
    config["rootfs"]["diff_ids"][number] = digest_of(tar.getvalue())
    blob = client.put_blob(where.repository, gzip.compress(tar.getvalue(), mtime=0))
    content["layers"][number] |= {"digest": blob.digest, "size": blob.size}
    described = client.put_blob(where.repository, json.dumps(config).encode())
    content["config"] |= {"digest": described.digest, "size": described.size}
    return number + 1, manifest(content)
