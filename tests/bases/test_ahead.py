"""The lower layers of a base are in the engine before the whole base is made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.bases import ahead, loading
from builder.bases.assembled import assemble
from builder.bases.layer import Layer, LayerPlan
from builder.bases.store import Store
from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone
from builder.engine import Engine
from tests.bases import making

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Plan:
    """A base of some layers, as much of it as is asked for here."""

    layers: tuple[LayerPlan, ...]
    tag: str = "base"
    settings: tuple[Any, ...] = ()


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
def layers(store: Store) -> list[Layer]:
    return [making.layer(store, {name: secrets.token_bytes(600_000)}) for name in ("a", "b", "c")]


def planned(layers: list[Layer]) -> Any:
    return Plan(tuple(LayerPlan(one.key, name, (), 0, "") for one, name in zip(layers, "abc")))  # noqa: B905


def waited(lower: ahead.Ahead) -> None:
    """Wait until all that was asked for is done."""
    lower._pool.submit(lambda: None).result()


def loads(events: list[Event]) -> list[str]:
    return [one.detail for one in events if isinstance(one, StepDone)]


def test_what_is_there_without_a_gap_is_loaded_and_not_sent_again(
    engine: Engine,
    store: Store,
    repository: str,
    layers: list[Layer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not loading.reuses_layers(engine):
        pytest.skip("this engine gets every image whole")
    monkeypatch.setattr(ahead, "LEAST", 1_000_000)
    events: list[Event] = []
    low, middle, high = layers
    with ahead.loading(engine, [planned(layers)], store.path, repository, events.append) as lower:
        lower.made(low)  # too little alone
        lower.made(high)  # not the next one
        waited(lower)
        assert not loads(events)
        lower.made(middle)
        waited(lower)
        lower.settle()
        name = f"{repository}:base.lower"
        assert engine.image(name)
        assert loads(events) == ["2 MB of 2"]
        whole = assemble([(one, "") for one in layers], {})
        loading.load(engine, whole, store.path, f"{repository}:base", events.append)
    assert loads(events) == ["2 MB of 2", "0 MB of 2"]
    assert engine.image(name) is None
    assert engine.image(f"{repository}:base")


def test_an_engine_that_refuses_is_not_asked_again(
    engine: Engine,
    store: Store,
    repository: str,
    layers: list[Layer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The load of the whole base meets the error again, and says so."""
    asked: list[str] = []

    def refused(*given: Any) -> None:
        asked.append(given[3])
        raise OutsideError("the engine's disk is full")

    monkeypatch.setattr(ahead, "LEAST", 0)
    monkeypatch.setattr(ahead, "load", refused)
    with ahead.loading(engine, [planned(layers)], store.path, repository) as lower:
        for one in layers:
            lower.made(one)
            waited(lower)
    assert asked == [f"{repository}:base.lower"]
