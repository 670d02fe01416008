"""A base that lies in the registry is pulled, and not built again."""

from __future__ import annotations

import pytest

from builder.core.events import Event, StepDone, StepProgress
from builder.core.settings import Settings
from builder.engine import Engine
from builder.pipeline import build as building
from tests.pipeline.pushing import Build, sent, settings
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network]


def test_a_base_is_pulled_under_its_local_name(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    base = build("base", megabytes=20, tag="base-0123456789abcdef")
    sent(engine, build("trainer", base), server.host, base=base)
    tag, local = "base-0123456789abcdef", "push-test-pulled:base-0123456789abcdef"
    where = settings(server.host)
    events: list[Event] = []
    assert building.in_registry(where, tag)
    try:
        found = building._pulled(where, engine, tag, local, events.append)
        assert found
        assert (found.reference, found.digest) == (local, base.digest)
    finally:
        engine.client.images.remove(f"{where.registry}:{tag}")
        engine.client.images.remove(local)
    assert isinstance(events[-1], StepDone)
    assert {event.name for event in events} == {f"pull {tag}"}
    assert all(event.unit == "bytes" for event in events if isinstance(event, StepProgress))


def test_a_base_that_is_nowhere_is_not_pulled(engine: Engine, server: RegistryServer) -> None:
    for where in (Settings(), settings(server.host)):
        assert not building.in_registry(where, "base-1")
        assert building._pulled(where, engine, "base-1", "x:base-1", lambda _: None) is None
