"""An image that was built again: the first layer and file that differ from the registry's."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.image import registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.tarball import unpacked
from builder.pipeline import rebuild
from builder.registry import Manifest, Reference, Registry, digest_of, manifest, parse
from builder.trust import attestations, dsse
from tests.image import layers
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair

ROOT = Path(__file__).parents[2]


@pytest.mark.network
def test_the_first_layer_and_file_that_differ_are_named(
    registry_server: RegistryServer, tmp_path: Path
) -> None:
    store = ContentStore(tmp_path)
    same = layers.layer(store, {"a": b"1"})
    ours = layers.image(same, layers.layer(store, {"site/a.py": b"1", "site/b.py": b"2"}))
    evil = layers.layer(store, {"site/a.py": b"1", "site/b.py": b"2", "site/zz_evil.pth": b"x"})
    other = layers.layer(store, {"site/a.py": b"1", "site/b.py": b"3"})
    torn = _packed(store, b"no tar" * 300)
    bomb = _packed(store, tarfile.TarInfo("x" * (2 << 20)).tobuf(tarfile.GNU_FORMAT))
    where = Reference(registry_server.host, f"tests/{secrets.token_hex(6)}", "cpu")
    with Registry(where.host) as client:
        for theirs, difference in (
            (ours, ""),
            (layers.image(same, evil), r"layer 2 (sha256:.*): /site/zz_evil.pth"),
            (layers.image(same, other), r"layer 2 (sha256:.*): /site/b.py"),
            (layers.image(same), "1 layers there, 2 here"),
            (layers.image(same, torn), "layer 2 (sha256:.*): it cannot be read: invalid header"),
            (
                layers.image(same, bomb),
                "layer 2 (sha256:.*): it cannot be read: a name or a header of 2,097,153 bytes",
            ),
        ):
            registry_layers.publish(client, where, theirs, store)
            found = rebuild._difference(client, where, theirs.manifest, ours, store)
            begin, _, end = difference.partition("sha256:.*")
            assert (
                found.startswith(begin) and found.endswith(end) and bool(found) == bool(end + begin)
            )


def test_a_layer_of_another_size_altogether_is_not_fetched(tmp_path: Path) -> None:
    store, nowhere = ContentStore(tmp_path), Reference("127.0.0.1:9", "x", "cpu")
    ours = layers.layer(store, {"a": b"1"})
    blob = replace(ours.blob, digest=digest_of(b""), size=1 << 40)
    theirs = layers.image(replace(ours, blob=blob))
    with Registry(nowhere.host) as client:
        found = rebuild._difference(client, nowhere, theirs.manifest, layers.image(ours), store)
    assert found.endswith(f"1099511627776 bytes there, {ours.blob.size} here")


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
    registry_server: RegistryServer, ours: Pair
) -> None:
    repository = f"tests/{secrets.token_hex(6)}"
    registry = ("--registry", f"{registry_server.host}/{repository}")
    assert _builder("build", "cpu", "--base-only", "--to-registry", *registry).returncode == 0
    pushed = _builder("build", "cpu", "--to-registry", *registry, "--json")
    assert pushed.returncode == 0, pushed.stderr
    image = json.loads(pushed.stdout)[0]
    rebuilding = ("rebuild", "--target", "cpu", *registry, "--key", str(ours.path))

    same = _builder(*rebuilding, image["reference"])
    assert same.returncode == 0, same.stderr
    assert f"the same digest {image['digest']}" in same.stderr + same.stdout
    with Registry(registry_server.host) as client:
        where = parse(image["reference"])
        number, changed = _with_one_more_file(client, where)
        client.put_manifest(repository, "changed", changed)

        other = _builder(*rebuilding, "changed")
        assert other.returncode == 4, other.stderr
        assert f"layer {number} (" in other.stderr, other.stderr
        assert "/opt/zz_evil.pth" in other.stderr, other.stderr
        trusted = (ours.signer.public,)
        for digest, count in ((image["digest"], 1), (changed.digest, 0)):
            attested = attestations.find(client, repository, digest, dsse.REBUILD, trusted)
            assert len(attested.verified) == count


def _packed(store: ContentStore, content: bytes) -> Layer:
    """Return a layer of any bytes."""
    packed = gzip.compress(content)
    layer = layers.layer(store, {"a": content})
    blob = replace(layer.blob, digest=digest_of(packed), size=len(packed))
    store.path(replace(layer, blob=blob)).write_bytes(packed)
    return replace(layer, blob=blob)


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


def _builder(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "builder", *words],
        cwd=ROOT,
        env={**os.environ, "COSIGN_PASSWORD": ""},
        capture_output=True,
        text=True,
        check=False,
    )
