"""Poisoned layers and bases: in the cache, at the source, and in both."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import CheckFailed
from builder.core.settings import Settings
from builder.image import base, layers_lock, registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import LayerPlan
from builder.registry import Reference, Registry, manifest
from tests.image import layers
from tests.registry.server import RegistryServer

STATES = ("good", "absent", "poisoned")


@pytest.mark.network
@pytest.mark.parametrize("registry", STATES)
@pytest.mark.parametrize("cache", [*STATES, "another layer"])
def test_a_layer_is_the_committed_one_or_is_made(
    registry_server: RegistryServer, tmp_path: Path, cache: str, registry: str
) -> None:
    store = ContentStore(tmp_path / "cache")
    committed = layers.layer(store, {"site/a.py": secrets.token_bytes(9)})
    lock = layers_lock.read(tmp_path / "layers.lock")
    lock.check(committed, "a")
    name, path = f"tests/{secrets.token_hex(6)}", store.path(committed)
    with Registry(registry_server.host) as client:
        if registry != "absent":
            to = Reference(client.host, name, "base-1")
            registry_layers.publish(client, to, layers.image(committed), store)
        if registry == "poisoned":
            blob = registry_server.blob_file(committed.blob.digest)
            blob.write_bytes(blob.read_bytes()[:-1] + b"?")
        if cache == "another layer":
            evil = layers.layer(store, {"site/a.py": b"1", "site/zz_evil.pth": b"import os"})
            entry = store._entry(evil.key).read_text().replace(evil.key, committed.key)
            store._entry(committed.key).write_text(entry)
        elif cache == "absent":
            store._entry(committed.key).unlink()
            path.unlink()
        elif cache == "poisoned":
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        layer = LayerPlan(committed.key, "a", (), 0, "")
        plan: Any = SimpleNamespace(layers=[layer], config={}, hash="a")
        settings = Settings(registry=f"{registry_server.host}/{name}")
        available = base.look_up([plan], store, settings, lock)
        if available.offered:
            lost = registry_layers.fetch(client, name, [*available.offered.values()], store)
            assert lost == ({committed.key} if registry == "poisoned" else set())
            if lost:  # it is made, as if nobody had it
                assert store.ignoring(available.remake).find(committed.key) is None
                return
        expected = committed if cache == "good" or registry == "good" else None
        assert {**available.stored, **available.offered}.get(committed.key) == expected
        assert bool(available.missing) == (expected is None), "else it is made"
        assert expected is None or store.find(committed.key) == committed


@pytest.mark.network
@pytest.mark.parametrize("registry", STATES)
def test_a_base_in_a_registry_is_the_committed_one_or_is_refused(
    registry_server: RegistryServer, tmp_path: Path, registry: str
) -> None:
    """Poisoned: the base's tag leads to another first layer."""
    store = ContentStore(tmp_path / "cache")
    both = [layers.layer(store, {name: secrets.token_bytes(9)}) for name in ("a.py", "b.py")]
    committed, name = layers.image(*both), f"tests/{secrets.token_hex(6)}"
    where = Reference(registry_server.host, name, "base-1")
    with Registry(registry_server.host) as client:
        if registry != "absent":
            registry_layers.publish(client, where, committed, store)
        if registry == "poisoned":
            evil = client.put_blob(name, b"a layer with zz_evil.pth")
            first, second = committed.manifest.content["layers"]
            changed = {"layers": [{**first, **evil.json()}, second]}
            client.put_manifest(name, "base-1", manifest(committed.manifest.content | changed))
            with pytest.raises(CheckFailed, match=r"layers\.lock says"):
                registry_layers.base_in_registry(client, where, committed)
        else:
            base_there = registry_layers.base_in_registry(client, where, committed)
            assert base_there == (committed if registry == "good" else None)
