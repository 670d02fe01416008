"""Images that go into whatever engine answers here: whole, once, under their own digest."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.bases import loading
from builder.bases.assembled import AssembledImage
from builder.bases.layer import Compression, Layer
from builder.bases.store import Store
from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone
from builder.engine import Engine, EngineImage
from tests.bases import making

pytestmark = pytest.mark.engine
Load = Callable[..., tuple[EngineImage, str]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "layers")


@pytest.fixture
def repository(engine: Engine) -> Iterator[str]:
    """A repository whose images go away with the test."""
    name = f"factory-test-{secrets.token_hex(6)}"
    yield name
    for one in engine.client.images.list(name):
        for tag in one.tags:
            engine.client.images.remove(tag, force=True)


@pytest.fixture
def load(engine: Engine, store: Store, repository: str) -> Load:
    """Loads an image; what the engine has then, and what the step says of it."""

    def act(image: AssembledImage, tag: str, blobs: Store = store) -> tuple[EngineImage, str]:
        seen: list[Event] = []
        found = loading.load(engine, image, blobs.path, f"{repository}:{tag}", seen.append)
        (done,) = (one for one in seen if isinstance(one, StepDone))
        return found, "there" if done.cached else done.detail

    return act


def ran(engine: Engine, name: str) -> bytes:
    return bytes(engine.client.containers.run(name, remove=True, network_mode="none"))


def unique(store: Store, name: str, size: int = 1_500_000) -> Layer:
    """A layer that no engine has, of `size` bytes or more."""
    return making.layer(store, {name: secrets.token_bytes(size)})


@pytest.mark.parametrize("compression", [Compression(), Compression("gzip", 1)], ids=str)
def test_an_image_runs_under_its_own_digest(
    engine: Engine, store: Store, load: Load, busybox: Path, compression: Compression
) -> None:
    said = making.layer(store, {"said": secrets.token_hex(9).encode()}, compression)
    image = making.image(making.programs(store, busybox, compression), said)
    found, _ = load(image, "whole")
    assert found.image_id == (image.digest if engine.containerd_store else image.config_digest)
    assert found.digest == (image.digest if engine.containerd_store else None)
    assert found.layers == tuple(layer.diff_id for layer in image.layers)
    assert len(ran(engine, found.reference)) == 18


def test_an_image_that_is_there_is_not_sent_again_under_another_name_either(
    engine: Engine, store: Store, load: Load, repository: str
) -> None:
    image = making.image(unique(store, "a"))
    assert load(image, "one")[1] == "2 MB of 2"
    assert load(image, "one")[1] == "there"
    found, said = load(image, "two")
    assert (found.reference, said) == (f"{repository}:two", "there")


def test_only_the_layers_that_the_engine_lacks_are_sent(
    engine: Engine, store: Store, load: Load, busybox: Path
) -> None:
    low, high = unique(store, "low"), unique(store, "high")
    lowest = making.programs(store, busybox)
    load(making.image(lowest, low, high), "old")
    said = making.layer(store, {"said": b"new"})
    found, sent = load(making.image(lowest, low, said), "new")
    assert ran(engine, found.reference) == b"new"
    assert sent.startswith("0 MB of")


def test_a_new_layer_between_known_ones(
    engine: Engine, store: Store, load: Load, busybox: Path
) -> None:
    low, high = unique(store, "low"), making.layer(store, {"said": b"high" * 200_000})
    lowest = making.programs(store, busybox)
    load(making.image(lowest, low, high), "old")
    found, _ = load(making.image(lowest, low, unique(store, "between"), high), "new")
    assert ran(engine, found.reference) == b"high" * 200_000


def test_what_the_engine_seemed_to_have_is_sent_where_it_has_it_not(
    engine: Engine, store: Store, load: Load, busybox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = making.image(making.programs(store, busybox), making.layer(store, {"said": b"x" * 99}))
    everything = frozenset(layer.diff_id for layer in image.layers)
    new = making.image(*image.layers, unique(store, "new"))
    monkeypatch.setattr(loading, "_known", lambda *_: everything | {new.layers[-1].diff_id})
    found, _ = load(new, "new")
    assert ran(engine, found.reference) == b"x" * 99


def test_a_layer_with_other_bytes_is_refused(
    engine: Engine, store: Store, load: Load, repository: str, tmp_path: Path
) -> None:
    good, other = unique(store, "good", 1000), unique(store, "other", 1000)
    image = making.image(good)
    store.path(good).write_bytes(store.path(other).read_bytes())
    with pytest.raises(OutsideError, match="the engine did not take the image"):
        load(image, "bad")
