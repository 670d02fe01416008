"""Images that go into whatever engine answers here, and into archives and folders for others."""

from __future__ import annotations

import errno
import io
import json
import secrets
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone
from builder.engine import Engine, EngineImage, private
from builder.engine.private.programs import WORKER
from builder.image import loading, registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage, Compression, Layer, LayerPlan, assemble
from builder.image.loading import Archive, Preload
from builder.registry import Reference, Registry
from builder.registry.manifests import blob_path, digest_of
from tests import containers
from tests.emulators.registry_faults import Fault, faulty
from tests.image.layers import image, layer
from tests.registry.server import RegistryServer

GZIP = Compression("gzip", 1)


def unique(store: ContentStore, name: str, size: int = 1_500_000) -> Layer:
    """A layer that no engine has, of `size` bytes or more."""
    return layer(store, {name: secrets.token_bytes(size)})


# --- archives and layouts -------------------------------------------------------------------------


def members(made: Archive) -> dict[str, bytes]:
    """The files of an archive, by path."""
    data = b"".join(made.stream(lambda count: None))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def test_an_archive_holds_the_image_but_for_layers_that_the_engine_has(store: ContentStore) -> None:
    low, high = layer(store, {"a": b"1" * 3_000_000}), layer(store, {"b": b"2"})
    whole = image(low, high)
    made, counts = Archive(whole, store, "training:base-1"), list[int]()
    data = b"".join(made.stream(counts.append))
    assert counts == sorted(counts) and counts[-1] == made.size == low.blob.size + high.blob.size
    assert data == b"".join(made.stream(counts.append)), "an archive can be read again"
    contents = members(made)
    for part in (low, high):
        assert contents[blob_path(part.blob.digest)] == store.path(part).read_bytes()
    assert contents[blob_path(whole.digest)] == whole.manifest.data
    assert contents[blob_path(whole.config_digest)] == whole.configuration

    part = Archive(whole, store, "training:base-1", {low.diff_id})
    assert part.size == high.blob.size and blob_path(low.blob.digest) not in members(part)
    (named,) = json.loads(members(part)["manifest.json"])
    assert named["Layers"] == [blob_path(part.blob.digest) for part in (low, high)]


def test_an_engine_without_zstd_gets_plain_layers_by_their_own_digest(store: ContentStore) -> None:
    zstd, gzip = layer(store, {"a": b"1" * 100_000}), layer(store, {"b": b"2"}, GZIP)
    whole = image(zstd, gzip)
    contents = members(Archive(whole, store, "training:base-1", unpack=True))
    (named,) = json.loads(contents["manifest.json"])
    assert named["Layers"] == [blob_path(zstd.diff_id), blob_path(gzip.blob.digest)]
    plain = contents[blob_path(zstd.diff_id)]
    assert digest_of(plain) == zstd.diff_id
    packed = store.path(zstd).read_bytes()
    assert plain == zstandard.ZstdDecompressor().decompressobj().decompress(packed)


@pytest.mark.parametrize("links", [True, False])
def test_a_layout_links_the_stores_layers_or_copies_them(
    store: ContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def other_file_system(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", other_file_system)
    made = layer(store, {"a": b"1" * 3_000_000})
    loading.write_layout(image(made), store, "training:base-1", tmp_path / "out")
    written, kept = tmp_path / "out" / blob_path(made.blob.digest), store.path(made)
    assert written.samefile(kept) is links
    assert written.read_bytes() == kept.read_bytes() and written.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "out" / "index.json").is_file()


# --- the engine of this machine -------------------------------------------------------------------

Load = Callable[[AssembledImage, str], tuple[EngineImage, str]]


@pytest.fixture
def load(engine: Engine, store: ContentStore, on_engine: str) -> Load:
    """Loads an image; returns what the engine has then, and the detail of the step."""

    def act(image: AssembledImage, tag: str) -> tuple[EngineImage, str]:
        events: list[Event] = []
        loaded = loading.load(engine, image, store, f"{on_engine}:{tag}", events.append)
        (done,) = (event for event in events if isinstance(event, StepDone))
        return loaded, "there" if done.cached else done.detail

    return act


def ran(engine: Engine, name: str) -> bytes:
    return containers.output(engine.client, name, network_mode="none")


@pytest.mark.engine
def test_only_what_the_engine_lacks_is_sent(
    engine: Engine, store: ContentStore, load: Load, busybox: Path, on_engine: str
) -> None:
    cat, low, high = (
        layer(store, {"cat": busybox.read_bytes()}),
        unique(store, "low"),
        layer(store, {"printed": b"high" * 200_000}),
    )
    old = image(cat, low, high)
    loaded, detail = load(old, "old")
    assert loaded.image_id == (old.digest if engine.containerd_store else old.config_digest)
    assert loaded.layers == tuple(layer.diff_id for layer in old.layers)
    assert detail != "there" == load(old, "old")[1]
    assert load(old, "other-name")[1] == "there" and engine.image(f"{on_engine}:other-name")
    _, detail = load(image(cat, low, layer(store, {"printed": b"new"}, GZIP)), "new")
    assert ran(engine, f"{on_engine}:new") == b"new"
    assert detail.startswith("0 MB of")
    load(image(cat, low, unique(store, "between"), high), "between")
    assert ran(engine, f"{on_engine}:between") == b"high" * 200_000


@pytest.mark.engine
def test_what_the_engine_seemed_to_have_is_sent_and_other_bytes_are_refused(
    engine: Engine,
    store: ContentStore,
    load: Load,
    busybox: Path,
    on_engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cat, printed = layer(store, {"cat": busybox.read_bytes()}), layer(store, {"printed": b"x" * 99})
    new = image(cat, printed, unique(store, "new"))
    with monkeypatch.context() as patch:
        everything = frozenset(layer.diff_id for layer in new.layers)
        patch.setattr(loading, "_known", lambda *_: everything)
        load(new, "new")
    assert ran(engine, f"{on_engine}:new") == b"x" * 99
    good, other = unique(store, "good", 1000), unique(store, "other", 1000)
    store.path(good).write_bytes(store.path(other).read_bytes())
    with pytest.raises(OutsideError, match="the engine did not take the image"):
        load(image(good), "bad")


@pytest.mark.engine
@pytest.mark.network
def test_the_engine_pulls_by_digest_what_a_registry_has(
    engine: Engine,
    store: ContentStore,
    on_engine: str,
    busybox: Path,
    registry_server: RegistryServer,
) -> None:
    printed = secrets.token_hex().encode()
    whole = image(layer(store, {"cat": busybox.read_bytes(), "printed": printed}))
    name, events = f"{on_engine}:base", list[Event]()
    with faulty(registry_server.host) as proxy, Registry(registry_server.host) as client:
        source = Reference(proxy.host, on_engine)
        registry_layers.publish(client, source.tagged("a"), whole, store)
        proxy.faults.append(Fault("GET", "/blobs/", status=404, times=None))
        assert loading.pull(engine, whole, name, source, events.append) is None
        assert "the engine does not pull it" in str(events) and not engine.image(name)
        proxy.faults.clear()
        pulled = loading.pull(engine, whole, name, source, events.append)
    assert pulled and pulled.image_id in (whole.digest, whole.config_digest)
    assert ran(engine, name) == printed
    assert not engine.image(f"{source.name}@{whole.digest}"), "one image, under one name"


# --- preloading -----------------------------------------------------------------------------------


def planned(*layers: Layer) -> Any:
    """As much of a base's plan as preloading needs."""
    plans = [LayerPlan(layer.key, f"layer {n}", (), 0, "") for n, layer in enumerate(layers)]
    return SimpleNamespace(layers=tuple(plans), tag="base", config={})


def wait(lower: Preload) -> None:
    """Wait until all loads that were begun are done."""
    lower._choosing.submit(lambda: None).result()
    for begun in lower._loads:
        begun.result()


@pytest.mark.engine
def test_what_is_there_without_a_gap_is_preloaded_and_not_sent_again(
    engine: Engine, store: ContentStore, on_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not loading.reuses_layers(engine):
        return  # without containerd's store, an engine gets every image whole
    monkeypatch.setattr(loading, "LEAST", 1_000_000)
    events: list[Event] = []
    low, middle, high, *more = layers = [unique(store, name, 600_000) for name in "abcde"]

    def loads() -> list[str]:
        return [event.detail for event in events if isinstance(event, StepDone)]

    with Preload(engine, [planned(*layers)], store, on_engine, events.append) as lower:
        lower.add(low)  # too little alone
        lower.add(high)  # not the next one
        wait(lower)
        assert not loads()
        lower.add(middle)
        wait(lower)
        for layer in more:
            lower.add(layer)
        wait(lower)
        lower.settle()
        assert engine.image(f"{on_engine}:base.lower4")
        assert loads() == ["1 MB of 1", "1 MB of 2"]
        whole = assemble([(layer, "") for layer in layers], {})
        loading.load(engine, whole, store, f"{on_engine}:base", events.append)
    assert loads() == ["1 MB of 1", "1 MB of 2", "1 MB of 3"]
    assert len(lower._loaded) == 2 and not any(map(engine.image, lower._loaded))
    assert engine.image(f"{on_engine}:base")


def test_the_next_layers_are_sent_while_the_engine_unpacks_and_shared_ones_once(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high, other = (unique(store, name) for name in "abc")
    second_is_sent, said = threading.Event(), list[object]()

    def load(
        engine: object, image: AssembledImage, store: object, name: str,
        on_event: object, coming: frozenset[str], end: Callable[[], object],
    ) -> None:  # fmt: skip
        sent = [layer for layer in image.layers if layer.diff_id not in coming]
        said.append((name, sent))
        if len(said) == 2:
            second_is_sent.set()
        end()
        assert second_is_sent.wait(60), "the first load ends only when the second one sends"
        if name.endswith("base.lower1"):
            time.sleep(0.2)  # so that the second one would be faster
        said.append(name)

    monkeypatch.setattr(loading, "LEAST", 1_000_000)
    monkeypatch.setattr(loading, "load", load)
    client = SimpleNamespace(images=SimpleNamespace(remove=lambda *_, **__: None))
    engine: Any = SimpleNamespace(knows_content=True, containerd_store=True, client=client)
    plans: Any = [planned(low, high), planned(low, other)]
    plans[1].tag = "two"
    with Preload(engine, plans, store, "r") as lower:
        for each in (low, high, other):
            lower.add(each)
        lower.settle()
    first, second, third = "r:base.lower1", "r:base.lower2", "r:two.lower2"
    assert [item for item in said if not isinstance(item, str)] == [
        (first, [low]), (second, [high]), (third, [other])
    ]  # fmt: skip
    assert said.index(second) > said.index(first) > said.index((second, [high]))


# --- Docker 20.10.24, which Cloud Build's workers have --------------------------------------------


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.root
def test_an_old_engine_gets_layers_of_zstd_unpacked(
    store: ContentStore, busybox: Path, tmp_path: Path
) -> None:
    try:
        old = private.start(tmp_path / "worker", release=WORKER)
        assert old.client.version()["Version"].startswith("20.10.")
        printed = {"printed": b"zstd"}
        for count, file in enumerate(({"a": b"1"}, {"b": b"2"})):
            whole = image(layer(store, {"cat": busybox.read_bytes()}), layer(store, printed | file))
            loaded = loading.load(old, whole, store, f"training:{count}")
            assert loaded.image_id == whole.config_digest
            assert ran(old, f"training:{count}") == b"zstd"
    finally:
        private.remove(tmp_path / "worker")
