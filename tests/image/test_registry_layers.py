"""Layers and images in a real registry: sent once, and what is there and should not be."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed
from builder.core.events import Event, StepDone, StepProgress
from builder.core.retry import Retry
from builder.image import registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.registry import Reference, Registry
from tests.emulators.registry_faults import faulty
from tests.image import layers
from tests.registry.server import RegistryServer, skopeo

pytestmark = pytest.mark.network
QUICK = Retry(attempts=3, first=0.01)
NOWHERE = ContentStore(Path("nothing here"))


@pytest.fixture
def client(registry_server: RegistryServer) -> Iterator[Registry]:
    with Registry(registry_server.host, QUICK) as opened:
        yield opened


@pytest.fixture
def repository() -> str:
    return f"team/{secrets.token_hex(4)}"


@pytest.fixture
def other(tmp_path: Path) -> ContentStore:
    """The content store of another machine."""
    return ContentStore(tmp_path / "other")


def made(store: ContentStore, size: int = 2_000_000) -> Layer:
    """A layer that nobody else has."""
    return layers.layer(store, {"a": secrets.token_bytes(size)})


def put(client: Registry, repository: str, layer: Layer, store: ContentStore) -> None:
    """Put an image of one layer into the repository."""
    to = Reference(client.host, repository, "base-1")
    registry_layers.publish(client, to, layers.image(layer), store)


def files(store: ContentStore) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


def test_what_is_there_does_not_travel_again(
    registry_server: RegistryServer, repository: str, store: ContentStore
) -> None:
    two = [made(store), made(store)]
    image, to = layers.image(*two), Reference(registry_server.host, repository, "base-1")
    events: list[Event] = []
    with faulty(registry_server.host) as proxy, Registry(proxy.host, QUICK) as client:
        registry_layers.publish(client, to, image, store, events.append)
        assert proxy.count("PUT .*/blobs/uploads/") == 3  # two layers and the configuration
        registry_layers.publish(client, to, image, NOWHERE, events.append)
        assert proxy.count("PUT .*/blobs/uploads/") == 3
        assert proxy.count("PUT .*/manifests/") == 1
    first, again = (event for event in events if isinstance(event, StepDone))
    assert (first.cached, again.cached) == (False, True)
    assert first.detail == "4 MB of 4 sent" and again.detail == "0 MB of 4 sent"
    progress = [event.current for event in events if isinstance(event, StepProgress)]
    assert max(progress) == sum(layer.blob.size for layer in two)
    name = f"docker://{registry_server.host}/{repository}:base-1"
    assert f'"Digest": "{image.digest}"' in skopeo("inspect", "--tls-verify=false", name)


# --- what is there is not what it should be -------------------------------------------------------


def test_a_blob_that_the_registry_lost_is_put_again_and_other_bytes_travel_neither_way(
    client: Registry,
    registry_server: RegistryServer,
    repository: str,
    store: ContentStore,
    other: ContentStore,
) -> None:
    layer = made(store)
    assert not client.has_blob(repository, layer.blob.digest)
    put(client, repository, layer, store)
    registry_layers.fetch(client, repository, [layer], other)
    assert other.find(layer.key) == layer, "another machine gets it"
    shutil.rmtree(other.folder)
    blob = registry_server.blob_file(layer.blob.digest)
    blob.unlink()
    assert not client.has_blob(repository, layer.blob.digest)
    events: list[Event] = []
    assert registry_layers.fetch(client, repository, [layer], other, events.append) == {layer.key}
    assert "the registry has lost this blob: it is made here" in str(events)
    put(client, repository, layer, store)
    assert client.has_blob(repository, layer.blob.digest)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    events.clear()
    assert registry_layers.fetch(client, repository, [layer], other, events.append) == {layer.key}
    assert "the registry has other bytes" in str(events)
    assert files(other) == []
    poisoned = made(store)
    store.path(poisoned).write_bytes(store.path(poisoned).read_bytes()[:-1] + b"?")
    with pytest.raises(CheckFailed, match="its bytes are not those of"):
        put(client, repository, poisoned, store)
    assert not registry_server.blob_file(poisoned.blob.digest).exists()
