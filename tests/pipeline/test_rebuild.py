"""An image that was built again: the first layer and file that differ from the registry's."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.image import registry_layers
from builder.image.content_store import ContentStore
from builder.pipeline import rebuild
from builder.registry import Reference, Registry
from tests.image import layers
from tests.registry.server import RegistryServer


@pytest.mark.network
def test_the_first_layer_and_file_that_differ_are_named(
    registry_server: RegistryServer, tmp_path: Path
) -> None:
    store = ContentStore(tmp_path)
    same = layers.layer(store, {"a": b"1"})
    ours = layers.image(same, layers.layer(store, {"site/a.py": b"1", "site/b.py": b"2"}))
    evil = layers.layer(store, {"site/a.py": b"1", "site/b.py": b"2", "site/zz_evil.pth": b"x"})
    other = layers.layer(store, {"site/a.py": b"1", "site/b.py": b"3"})
    where = Reference(registry_server.host, f"tests/{secrets.token_hex(6)}", "cpu")
    with Registry(where.host) as client:
        for theirs, difference in (
            (ours, ""),
            (layers.image(same, evil), r"layer 2 (sha256:.*): /site/zz_evil.pth"),
            (layers.image(same, other), r"layer 2 (sha256:.*): /site/b.py"),
            (layers.image(same), "1 layers there, 2 here"),
        ):
            registry_layers.publish(client, where, theirs, store)
            found = rebuild._difference(client, where, theirs.manifest, ours, store)
            begin, _, end = difference.partition("sha256:.*")
            assert (
                found.startswith(begin) and found.endswith(end) and bool(found) == bool(end + begin)
            )


def test_a_tag_names_the_target() -> None:
    root = Path(__file__).parents[2]
    where = Reference("h", "training", "v100-2.21.0-abc")
    assert rebuild._target_of(root, where) == "v100"
    with pytest.raises(InputError, match="names no target"):
        rebuild._target_of(root, Reference("h", "training", "nothing"))
