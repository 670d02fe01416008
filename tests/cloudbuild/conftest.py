"""Google Cloud on loopback, and an image for the steps of builds that really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.cloudbuild import builds, clients
from builder.cloudbuild.clients import Clients
from builder.core.settings import CloudSettings
from builder.engine import Engine
from tests.cloudbuild import steps
from tests.emulators.cloud_build import PROJECT, LoopbackCloud, loopback_cloud

Connect = Callable[..., Clients]


@pytest.fixture(scope="session")
def steps_image(engine: Engine, busybox: Path) -> Iterator[str]:
    with steps.imported(engine, busybox) as reference:
        yield reference


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackCloud]:
    with loopback_cloud() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(builds, "wait", lambda seconds: None)
        yield running


@pytest.fixture
def connected(cloud: LoopbackCloud) -> Connect:
    """Clients for the loopback service."""

    def connect(**settings: object) -> Clients:
        values = {"project": PROJECT, **settings, "endpoint": cloud.url}
        return clients.connect(CloudSettings.model_validate(values))

    return connect
