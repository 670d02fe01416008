"""A base as a folder and in a registry: whole, the same wherever it is made, read by others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.core import files
from builder.engine import private
from builder.image import registry_layers
from builder.image.content_store import ContentStore
from builder.registry import Reference, Registry
from tests import ordinary
from tests.commands import builder
from tests.image import layers
from tests.registry.server import RegistryServer, skopeo
from tests.registry.server import registry as one_registry

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]

WHO = "import os; print(os.getuid(), os.access('/etc', os.W_OK))"
NO_ENGINE = {"BUILDER_ENGINE": "machine", "DOCKER_HOST": "unix:///no/such.sock"}


def layout(folder: Path, base_only: bool = True, **environment: str) -> str:
    """Write the base of `cpu`, or its training image, into a folder; its digest."""
    words = ("build", "cpu", "--to-layout", str(folder), "--json")
    done = builder(*words, *(("--base-only",) if base_only else ()), **environment)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)[0]["digest"])


def linked(cache: Path, without: str = "") -> ContentStore:
    """A cache with hard links to this machine's layers, what it has read of them, and packages,
    except those of a wheel."""
    here, there = files.cache_home(), cache / "training-image-factory"
    links = ("layers/*/**/*", "layer-contents/*", "debs/*.deb")
    for path in (path for pattern in links for path in here.glob(pattern)):
        if path.is_file() and path.suffix != ".lock":
            target = there / path.relative_to(here)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(path)
    for row in json.loads(builder("show", "base", "cpu", "--json").stdout):
        if without and row["name"].startswith(without):
            (there / "layers/keys" / f"{row['key']}.json").unlink()
            digest = row["digest"].removeprefix("sha256:")
            (there / "layers/blobs/sha256" / digest).unlink()
    return ContentStore(there / "layers")


def broken(store: ContentStore) -> list[str]:
    """The blobs of a store that are not what they are called; a key without one leads nowhere."""
    blobs = list((store.folder / "blobs/sha256").iterdir())
    assert blobs
    return [
        blob.name for blob in blobs if hashlib.sha256(blob.read_bytes()).hexdigest() != blob.name
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of `cpu`, assembled, or taken from this machine's store."""
    path = tmp_path_factory.mktemp("layout") / "base"
    layout(path)
    return path


@pytest.fixture(scope="module")
def digest(folder: Path) -> str:
    return str(json.loads((folder / "index.json").read_text())["manifests"][0]["digest"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> str:
    """The digest of the training image of `cpu`, made by who runs the tests. folder: its base."""
    return layout(tmp_path_factory.mktemp("whole") / "image", base_only=False)


@pytest.fixture(scope="module")
def sent(registry_server: RegistryServer, folder: Path) -> dict[str, str]:
    """The base in a registry, put there without an engine."""
    return to_registry(f"{registry_server.host}/layout/training", **NO_ENGINE)


def to_registry(where: str, **environment: str) -> dict[str, str]:
    done = builder(
        *("build", "cpu", "--base-only", "--to-registry", "--registry", where, "--json"),
        **environment,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)[0])


# --- read by others -------------------------------------------------------------------------------


def test_skopeo_reads_the_layout_and_the_registry(
    folder: Path, digest: str, sent: Mapping[str, str], tmp_path: Path
) -> None:
    assert sent["digest"] == digest, "with and without an engine"
    here = skopeo("inspect", f"oci:{folder}")
    there = skopeo("inspect", "--tls-verify=false", f"docker://{sent['reference']}")
    assert json.loads(here)["Digest"] == json.loads(there)["Digest"] == digest
    assert json.loads(there)["Layers"] == json.loads(here)["Layers"]
    skopeo(
        *("copy", "--src-tls-verify=false", f"docker://{sent['reference']}", f"dir:{tmp_path}/d")
    )


# --- by an ordinary user --------------------------------------------------------------------------


@pytest.mark.long
def test_an_ordinary_user_makes_a_base_without_an_engine_and_an_image_with_one(
    digest: str, whole: str, tmp_path: Path
) -> None:
    """First the user has no engine; of the rootfs, only the registry has the layer. Then the user
    may use the socket of an engine that root started, which has nothing yet, and nothing else."""
    with ordinary.user() as user, one_registry(tmp_path / "registry") as server:
        who = user.run(user.python, "-c", WHO)
        assert who.stdout.strip() == f"{ordinary.UID if os.geteuid() == 0 else os.getuid()} False"
        where = {"BUILDER_REGISTRY": f"{server.host}/layout/training"}
        kept = linked(user.home / "cache", without="numpy")
        ordinary.owns(user.home / "cache")
        root = json.loads(builder("show", "base", "cpu", "--json").stdout)[0]
        layer = kept.find(root["key"])
        assert layer
        with Registry(server.host) as there:
            to = Reference(server.host, "layout/training", "base-other")
            registry_layers.publish(there, to, layers.image(layer), kept)
        kept._entry(root["key"]).unlink()
        kept.path(layer).unlink()

        def made(*words: str, **environment: str) -> Any:
            done = user.builder(*words, "--json", **where, **environment)
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)[0]

        base = ("build", "cpu", "--base-only", "--to-registry")
        sent = made(*base, XDG_CACHE_HOME=str(user.home / "cache"), **NO_ENGINE)
        assert sent["digest"] == digest
        assert not broken(kept)
        if os.geteuid() != 0:
            return  # another engine needs root

        try:
            host = private.start(tmp_path / "engine").host
            os.chown(host.removeprefix("unix://"), -1, ordinary.UID)  # as group docker has it
            engine = {"BUILDER_ENGINE": "machine", "DOCKER_HOST": host}
            proven = made("image", "cpu", **engine)
            seen = user.builder("doctor", **engine)
        finally:
            private.remove(tmp_path / "engine")
    assert (proven["base_digest"], proven["base_origin"]) == (digest, "registry")
    assert proven["receipt"]["digest"] == proven["digest"] == whole, "as root's"
    assert seen.returncode == 0, seen.stdout + seen.stderr
