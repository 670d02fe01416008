"""images/layers.lock: a layer counts only if it is the one in the file."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core import files
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.image import base, content_store, layers_lock
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.pipeline import committed, make
from tests import ROOT
from tests.conftest import Run
from tests.image import layers


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    return layers.layer(ContentStore(tmp_path / "store"), {"a": b"1"})


def test_a_new_layer_gets_a_line_and_another_one_of_its_key_is_an_error(
    tmp_path: Path, layer: Layer
) -> None:
    path = tmp_path / "images/layers.lock"
    lock = layers_lock.read(path)
    lock.check(layer, "the layer a")
    lock.check(layer, "the layer a")
    assert layers_lock.read(path).layers == lock.layers == {layer.key: layer}
    other = replace(layer, blob=replace(layer.blob, digest=f"sha256:{'0' * 64}"))
    with pytest.raises(CheckFailed, match=rf"made here it is sha256:0+, .*{layer.key}"):
        layers_lock.read(path).check(other, "the layer a")
    assert lock.drop([]) == ("the layer a",)
    assert layers_lock.read(path).layers == {}


def test_a_layer_without_a_line_is_not_used_and_stays_for_other_projects(
    tmp_path: Path, layer: Layer
) -> None:
    store = ContentStore(tmp_path / "store")
    plan: Any = SimpleNamespace(layers=[SimpleNamespace(key=layer.key, name="a")])
    lock = layers_lock.read(tmp_path / "mine/layers.lock")
    available = base.look_up([plan], store, Settings(), lock)
    assert available.missing and not available.stored and not available.refused
    mine = store.ignoring(available.remake)
    assert mine.find(layer.key) is None, "this run makes it again, and compares"
    lock.check(layers.layer(mine, {"a": b"1"}), "a")
    assert mine.find(layer.key) == store.find(layer.key) == layer
    other = layers_lock.read(tmp_path / "other/layers.lock")
    other.check(layer, "a")
    assert base.look_up([plan], store, Settings(), other).stored == {layer.key: layer}
    assert [path.name for path in lock.path.parent.iterdir()] == ["layers.lock"]


def test_what_this_machine_made_for_one_project_is_there_for_the_next(
    tmp_path: Path, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote the cache: the record of it lies elsewhere, and nobody else may write to it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store = ContentStore(tmp_path / "store")
    plan: Any = SimpleNamespace(layers=[SimpleNamespace(key=layer.key, name="a")])

    def stored() -> dict[str, Layer]:
        return dict(base.look_up([plan], store, Settings(), layers_lock.of(tmp_path)).stored)

    assert stored() == {}, "it lies in the cache, and nobody knows who made it"
    layers_lock.remember(layer, "a")
    assert stored() == {layer.key: layer}
    other = replace(layer, blob=replace(layer.blob, digest=f"sha256:{'0' * 64}"))
    layers_lock.remember(other, "a")
    assert stored() == {}, "the cache has another one than this machine made last"
    layers_lock.remember(layer, "a")
    trusting = SimpleNamespace(trust=SimpleNamespace(layers=2))
    options: Any = make.BuildOptions(trusting, signed=lambda lock, _: lock)  # type: ignore[arg-type]
    assert options.known(layers_lock.of(tmp_path)).found(layer.key) is None, "two have to sign it"
    record = tmp_path / "data/training-image-factory/made-layers.lock"
    record.chmod(0o666)
    assert stored() == {}
    record.chmod(0o644)
    record.write_text("torn")
    assert stored() == {}
    layers_lock.remember(layer, "a")
    assert stored() == {layer.key: layer}


def test_a_line_of_the_factorys_own_file_counts_in_every_project(
    root: Path, tmp_path: Path
) -> None:
    lines = layers_lock.read(root / layers_lock.FILE).layers
    key, layer = next(iter(lines.items()))
    lock = layers_lock.of(tmp_path)
    assert lock.found(key) == layer and lock.known(key) is None
    assert replace(lock, layers={key: layer}, unsigned=frozenset([key])).found(key) is None


@pytest.mark.parametrize("damage", ["x", "sha256:12 ", "\n0 zstd sha256:1 2 sha256:3 4 name"])
def test_a_damaged_line_is_named(tmp_path: Path, layer: Layer, damage: str) -> None:
    lock = layers_lock.read(tmp_path / "layers.lock")
    lock.check(layer, "a")
    text = lock.path.read_text()
    lock.path.write_text(text.replace(f"{layer.key} zstd sha256:", f"{layer.key} zstd {damage}"))
    with pytest.raises(InputError, match=r"layers\.lock:\d: no line of a layer"):
        layers_lock.read(lock.path)


def test_every_layer_of_this_project_is_committed_and_shown_with_its_sizes(
    builder: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = layers_lock.of(ROOT)
    bases = committed.bases(ROOT)
    assert {planned.key for plan in bases.values() for planned in plan.layers} == lock.layers.keys()
    assert not [problem for problem in committed.problems(ROOT) if "layers.lock" in problem]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was made here
    rows = json.loads(builder("show", "base", "v100-torch", "--json")[1])
    assert all(row["unpacked_bytes"] > row["packed_bytes"] > 0 for row in rows)
    *_, total = builder("show", "base", "v100-torch")[1].splitlines()
    assert total.startswith(f"{len(rows)} layers: ")


def test_what_another_user_may_have_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: Layer
) -> None:
    store = ContentStore(tmp_path / "store")
    path = store.path(layer)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")  # as large as before
    assert store.find(layer.key) is None and store.knows(layer.key)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(content)
    path.symlink_to(tmp_path / "elsewhere")
    assert store.find(layer.key) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = files.cache_home()
    assert home.stat().st_mode & 0o777 == 0o700
    home.chmod(0o777)
    with pytest.raises(OutsideError, match="another user may write to this cache"):
        content_store.of_this_machine()


def test_an_empty_line_and_a_byte_order_mark_say_nothing(tmp_path: Path, layer: Layer) -> None:
    lock = layers_lock.read(tmp_path / "layers.lock")
    lock.check(layer, "a")
    text = lock.path.read_text()
    for written in (f"\ufeff{text}", f"\n{text}\n \n", text.replace("\n", "\r\n")):
        lock.path.write_bytes(written.encode())
        assert layers_lock.read(lock.path) == lock


def test_a_pipe_in_the_cache_is_no_layer(tmp_path: Path, layer: Layer) -> None:
    store = ContentStore(tmp_path / "store")
    for path in (store.path(layer), store._entry(layer.key)):
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert store.find(layer.key) is None
        path.unlink()
        path.write_bytes(b"[" * 100_000)
        assert store.find(layer.key) is None
        path.write_bytes(kept)
    assert store.find(layer.key) == layer


def test_what_killed_runs_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this machine at once, of another one that shares the cache after a week."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = content_store.of_this_machine().folder
    folder.mkdir(parents=True)
    here, mine = socket.gethostname(), content_store.of_this_machine().unfinished
    left = {name: folder / f".new.{name}.x" for name in (f"{here},4194305,1", "old,1,1", "new,1,1")}
    running = folder / f"{mine}x"
    for path in (*left.values(), running):
        path.touch()
    os.utime(left["old,1,1"], (0, 0))
    content_store.of_this_machine()
    assert set(folder.glob(".new.*")) == {left["new,1,1"], running}
