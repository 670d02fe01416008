"""Docker 20.10.24, which Cloud Build's workers have: it pulls layers of gzip, and none of zstd."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from builder import registry
from builder.bases import sharing
from builder.bases.assembled import AssembledImage
from builder.bases.layer import Compression
from builder.bases.store import Store
from builder.core.events import ignore
from builder.engine import Engine, private
from builder.engine.private.programs import WORKER
from builder.engine.transfers import Refused, told
from builder.registry import Registry
from tests.bases import making
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a private engine needs root"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[docker.DockerClient]:
    data = tmp_path_factory.mktemp("worker")
    endpoint = private.start(data, release=WORKER)
    try:
        yield docker.DockerClient(base_url=endpoint.host)
    finally:
        private.remove(data)


def published(
    server: RegistryServer, home: Path, busybox: Path, packed: str
) -> tuple[str, AssembledImage]:
    """An image of one compression in the registry, which prints `packed`."""
    store, compression = Store(home), Compression.of(packed)
    # other bytes each time: an engine takes a layer by what it unpacks to, however it was packed
    files = {"said": packed.encode(), "new": secrets.token_bytes(9)}
    lowest = making.layer(store, {"cat": busybox.read_bytes(), **files}, compression)
    image = making.image(lowest)
    where = f"{server.host}/team/training:{packed}"
    with Registry(server.host) as there:
        sharing.publish(there, registry.parse(where), image, store.path, ignore)
    return where, image


def test_it_pulls_and_runs_an_image_of_gzip_and_so_does_this_machines_engine(
    old: docker.DockerClient,
    engine: Engine,
    server: RegistryServer,
    tmp_path: Path,
    busybox: Path,
) -> None:
    where, image = published(server, tmp_path, busybox, "gzip")
    assert old.version()["Version"].startswith("20.10.")
    for client in (old, engine.client):
        found = client.images.pull(where)
        assert found.id in (image.config_digest, image.digest)
        assert found.attrs["RepoDigests"] == [f"{where.removesuffix(':gzip')}@{image.digest}"]
        container = client.containers.run(where, detach=True, network_mode="none")
        assert container.wait()["StatusCode"] == 0
        assert container.logs() == b"gzip"
        container.remove()
        client.images.remove(where)


def test_an_image_of_zstd_is_refused_in_the_middle(
    old: docker.DockerClient, server: RegistryServer, tmp_path: Path, busybox: Path
) -> None:
    where, _ = published(server, tmp_path, busybox, "zstd")
    with pytest.raises(Refused, match=r"failed to register layer.*invalid tar header"):
        list(told(old.api.pull(where, stream=True, decode=True)))
