"""Bases: found on the engine, in the registry, or assembled; sent without an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bases import sharing, store
from builder.bases.assembled import AssembledImage, assemble
from builder.bases.layer import Compression, Layer
from builder.bases.tarball import LayerWriter
from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone, StepProgress, step
from builder.core.settings import Settings
from builder.engine import Engine
from builder.pipeline import bases, prepare, push
from builder.registry import Registry, parse
from tests.pipeline.pushing import settings
from tests.registry.server import RegistryServer

TAG = "base-0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def made_as(key: str) -> Layer:
    """A layer of 5 MB that does not compress, in the store under a key."""
    kept = store.of_this_machine()
    with kept.writing() as out:
        writer = LayerWriter(out, Compression())
        writer.file("content", os.urandom(5_000_000))
        return kept.keep(out, writer.close(key))


@pytest.fixture
def made() -> AssembledImage:
    """A base of one layer."""
    return assemble([(made_as("ab" * 32), "tests")], {"Labels": {"made": "for a test"}})


@pytest.fixture
def uploaded(made: AssembledImage, server: RegistryServer) -> Iterator[Settings]:
    where = settings(server.host)
    bases.upload(parse(str(where.registry)), TAG, made, lambda _: None)
    yield where


@pytest.mark.network
def test_a_base_is_found_in_the_registry_as_it_was_sent(
    made: AssembledImage, uploaded: Settings
) -> None:
    found = bases.in_registry(uploaded, TAG)
    assert found
    assert (found.digest, found.config_digest) == (made.digest, made.config_digest)
    assert [one.diff_id for one in found.layers] == [one.diff_id for one in made.layers]
    assert bases.in_registry(uploaded, "base-1") is None
    assert bases.in_registry(Settings(), TAG) is None


@pytest.mark.network
def test_a_second_upload_sends_nothing(made: AssembledImage, uploaded: Settings) -> None:
    events: list[Event] = []
    bases.upload(parse(str(uploaded.registry)), TAG, made, events.append)
    put = [one for one in events if isinstance(one, StepDone) and one.name.startswith("put ")]
    assert [one.cached for one in put] == [True]


@pytest.mark.network
def test_a_push_sends_a_base_as_it_was_assembled(
    made: AssembledImage, server: RegistryServer
) -> None:
    store.of_this_machine().keep_image(TAG, made)
    base = SimpleNamespace(reference=f"training:{TAG}", digest=made.digest, image_id="", labels={})
    no_engine: Any = None  # Docker 20.10 would pack it anew, into another manifest
    where = parse(str(settings(server.host).registry))
    with step("push", lambda _: None) as pushing, Registry(server.host) as there:
        push._Sender(no_engine, there, where, push.ENGINE_RETRY, pushing, lambda: None).base(base)
        assert there.head(where.repository, TAG) == made.digest
        assert there.head(where.repository, sharing.tag_of("ab" * 32)), "offered by its key"


@pytest.mark.network
def test_an_engine_that_reads_no_zstd_does_not_pull_a_base(
    made: AssembledImage, uploaded: Settings
) -> None:
    plan: Any = SimpleNamespace(tag=TAG)
    old: Any = SimpleNamespace(product="Docker", release=(20, 10))
    assert bases._to_pull(uploaded, old, plan) is None
    new: Any = SimpleNamespace(product="Docker", release=(23, 0))
    assert bases._to_pull(uploaded, new, plan)


@pytest.mark.network
def test_a_plan_looks_at_this_machine_then_at_the_registry_and_fetches_nothing(
    root: Path, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, item = settings(server.host), prepare.prepare(root, "cpu")
    plan, kept = item.plan.base, store.of_this_machine()
    assert plan
    here, offered = (made_as(one.key) for one in plan.layers[:2])
    with Registry(server.host) as there:
        sharing.offer(there, parse(str(where.registry)).repository, [offered], kept.path, print)
    kept.forget(offered.key)
    empty: Any = SimpleNamespace(images=lambda _: [])
    engine: Any = SimpleNamespace(
        product="Docker", release=(28, 5), knows_content=True, containerd_store=True,
        image=lambda _: None, client=SimpleNamespace(api=empty),
    )  # fmt: skip
    seen = bases.outlook(where, engine, bases.by_hash([item]))
    assert list(seen.assembled) == [plan.hash]
    assert (seen.looked.here, seen.looked.offered) == (
        {here.key: here},
        {offered.key: offered},
    )
    count = len(plan.layers)
    assert (seen.forecast.layers, seen.forecast.missing) == (count, count - 2)
    assert kept.find(offered.key) is None, "it is only looked"
    again = bases.outlook(where, engine, bases.by_hash([item]), no_cache=True)
    assert again.forecast.missing == count


@pytest.mark.engine
@pytest.mark.network
def test_a_base_is_pulled_under_its_local_name(
    engine: Engine, made: AssembledImage, uploaded: Settings
) -> None:
    local = f"bases-test:{TAG}"
    events: list[Event] = []
    try:
        with step("pull", events.append) as pulling:
            bases._pull(engine, parse(str(uploaded.registry)).tagged(TAG), local, pulling)
        found = engine.image(local)
        assert found
        assert found.image_id in (made.digest, made.config_digest)
    finally:
        for name in (f"{uploaded.registry}:{TAG}", local):
            engine.client.images.remove(name)
    assert all(event.unit == "bytes" for event in events if isinstance(event, StepProgress))


@pytest.mark.engine
@pytest.mark.network
def test_a_base_that_the_registry_lost_is_an_error_of_one_line(
    engine: Engine, server: RegistryServer
) -> None:
    there = parse(str(settings(server.host).registry)).tagged("base-9")
    with pytest.raises(OutsideError, match="base-9"), step("pull", lambda _: None) as pulling:
        bases._pull(engine, there, "bases-test:base-9", pulling)
