"""A loopback Google Cloud for each test, and clients that lead there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from builder.cloudbuild import clients
from builder.cloudbuild.clients import Clients
from builder.settings import CloudSettings
from tests.emulators.cloud_build import PROJECT, LoopbackCloud, loopback_cloud


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackCloud]:
    with loopback_cloud() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(params=["rest", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connected(cloud: LoopbackCloud) -> Callable[..., Clients]:
    """Clients for the loopback service, over REST unless said otherwise."""

    def connect(transport: str = "rest", **settings: str) -> Clients:
        endpoint = cloud.grpc_url if transport == "grpc" else cloud.url
        return clients.connect(
            CloudSettings(
                **{"project": PROJECT, **settings},  # type: ignore[arg-type]
                endpoint=endpoint,
                transport=transport,
            )
        )

    return connect
