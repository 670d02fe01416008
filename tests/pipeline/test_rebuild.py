"""An image that was built again: the first layer that differs from the registry's."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import InputError
from builder.image import base, layers_lock
from builder.image.content_store import ContentStore
from builder.pipeline import rebuild
from builder.pipeline.asked import Asked
from builder.registry import Reference, Registry, manifest, parse
from tests import ROOT
from tests.conftest import Run
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
    where = Asked(Reference("h", "training", "v100-2.21.0-abc"))
    assert rebuild._target_of(ROOT, where) == "v100"
    with pytest.raises(InputError, match="names no target"):
        rebuild._target_of(ROOT, Asked(Reference("h", "training", "nothing")))


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_a_pushed_image_is_built_again_from_the_lock_and_a_changed_one_is_named(
    registry_server: RegistryServer, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = f"tests/{secrets.token_hex(6)}"
    registry = ("--registry", f"{registry_server.host}/{repository}")
    monkeypatch.chdir(ROOT)
    assert builder("build", "cpu", "--base-only", "--to-registry", *registry)[0] == 0
    code, out, err = builder("build", "cpu", "--to-registry", *registry, "--json")
    assert code == 0, err
    (image,) = json.loads(out)
    rebuilding = ("rebuild", "--target", "cpu", *registry)

    code, out, err = builder(*rebuilding, image["reference"])
    assert code == 0, err
    assert f"the same digest {image['digest']}" in err + out
    with Registry(registry_server.host) as client:
        where = parse(image["reference"])
        pushed_image = client.manifest(where.repository, where.target)
        assert pushed_image
        evil = client.put_blob(repository, b"a layer with zz_evil.pth")
        first, second, *others = pushed_image.content["layers"]
        changed = {**pushed_image.content, "layers": [first, {**second, **evil.json()}, *others]}
        client.put_manifest(repository, "changed", manifest(changed))

        def assemble(plans: Any, *_: Any) -> list[Any]:
            """What was made of these plans above: a minute's work."""
            return [base.committed(plan, layers_lock.of(ROOT)) for plan in plans]

        monkeypatch.setattr(base, "assemble", assemble)
        code, _, err = builder(*rebuilding, "changed")
        assert code == 4 and "layer 2 (" in err, err
