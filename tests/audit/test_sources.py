"""Where an image of the engine is read from."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.audit import sources
from tests.devicecode.packing import digest as packed_digest
from tests.devicecode.packing import layout, tar
from tests.prove.reading import layer, plain


def test_a_layer_in_the_engines_store_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker gives out whole images only: 6.5 GB for one unknown layer of a kilobyte."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = layer(plain("/app/a.py"))
    packed = gzip.compress(small, mtime=0)
    files = layout(b"{}", packed)
    manifest = json.loads(files["index.json"])["manifests"][0]["digest"]
    diff_ids = [packed_digest(small)]
    for name, data in files.items():
        if name.startswith("blobs/"):
            (tmp_path / name.split("/")[-1]).write_bytes(data)

    def save(*_: object, **__: object) -> Iterator[bytes]:
        saved.append(True)
        yield tar(files)

    def read(descriptor: dict[str, str], *store: Path) -> tuple[str, ...]:
        attrs = {"RootFS": {"Layers": diff_ids}, "Descriptor": descriptor, "Config": {}}
        image = SimpleNamespace(id="sha256:1", attrs=attrs, history=list)
        client: Any = SimpleNamespace(
            images=SimpleNamespace(get=lambda _: image), api=SimpleNamespace(get_image=save)
        )
        content = sources.of_engine(client, "a", store=store)
        shutil.rmtree(tmp_path / "cache")
        return tuple(content.layers[0].files)

    saved: list[bool] = []
    found = {"digest": manifest}
    assert read(found, tmp_path / "none", tmp_path) == ("/app/a.py",)
    assert not saved, "the engine is not asked for the image"
    assert read({"digest": f"sha256:{'0' * 64}"}, tmp_path) == read(found) == ("/app/a.py",)
    (tmp_path / packed_digest(packed)[7:]).write_bytes(gzip.compress(b"damaged"))
    assert read(found, tmp_path) == ("/app/a.py",)
    assert len(saved) == 3, "where the store has it not, or another one"
