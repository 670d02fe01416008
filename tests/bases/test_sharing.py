"""Layers and images in a real registry: found by key, sent once, and what breaks on the way."""

import resource
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from builder.bases import sharing
from builder.bases.layer import Layer
from builder.bases.store import Store
from builder.core.errors import CheckFailed, OutsideError
from builder.core.events import Event, StepDone, StepProgress, ignore
from builder.core.retry import Retry
from builder.registry import Reference, Registry, manifests
from tests.bases import making
from tests.emulators.registry_faults import Fault, faulty
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer, program

pytestmark = pytest.mark.network
QUICK = Retry(attempts=3, first=0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def there(server: RegistryServer) -> Iterator[Registry]:
    with Registry(server.host, QUICK) as opened:
        yield opened


@pytest.fixture
def repository() -> str:
    return f"team/{secrets.token_hex(4)}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "layers")


def made(store: Store, size: int = 2_000_000) -> Layer:
    """A layer that nobody else has."""
    return making.layer(store, {"a": secrets.token_bytes(size)})


def left(store: Store) -> list[Path]:
    """The files of a store."""
    return [path for path in store.folder.rglob("*") if path.is_file()]


def test_another_machine_finds_a_layer_by_its_key(
    there: Registry, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    assert sharing.take(there, repository, layer.key) is None
    sharing.offer(there, repository, [layer], store.path, ignore)
    found = sharing.take(there, repository, layer.key)
    assert found == layer
    sharing.fetch(there, repository, found, other)
    assert other.find(layer.key) == layer
    assert other.path(layer).read_bytes() == store.path(layer).read_bytes()


def test_what_is_offered_a_second_time_or_put_into_an_image_does_not_travel_again(
    server: RegistryServer, repository: str, store: Store
) -> None:
    layers = [made(store), made(store)]
    to = Reference(server.host, repository, "base-1")
    seen: list[Event] = []
    with faulty(server.host) as proxy, Registry(proxy.host, QUICK) as there:
        sharing.offer(there, repository, layers, store.path, seen.append)
        sent = proxy.count("PUT .*/blobs/uploads/")
        sharing.offer(there, repository, layers, store.path, seen.append)
        assert proxy.count("PUT .*/blobs/uploads/") == sent == 3  # two layers, and "{}"
        assert proxy.count("PUT .*/manifests/") == 2
        found = [sharing.take(there, repository, layer.key) for layer in layers]
        image = making.image(*filter(None, found))
        sharing.publish(there, to, image, Store(Path("nothing here")).path, seen.append)
        assert proxy.count("PUT .*/blobs/uploads/") == sent + 1  # the configuration
    assert server.tags(repository)["base-1"] == image.digest
    first, again, whole = (one for one in seen if isinstance(one, StepDone))
    assert (first.cached, again.cached, whole.cached) == (False, True, True)
    assert first.detail == "4 MB of 4 sent" and whole.detail == "0 MB of 4 sent"
    assert max(one.current for one in seen if isinstance(one, StepProgress)) == sum(
        layer.blob.size for layer in layers
    )


def test_an_image_without_an_engine_is_one_that_others_read(
    there: Registry, server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    image = making.image(made(store), made(store))
    sharing.publish(there, Reference(server.host, repository, "base-1"), image, store.path)
    copied = tmp_path / "copied"
    source = f"docker://{server.host}/{repository}@{image.digest}"
    command = ["copy", "--src-tls-verify=false", "--insecure-policy", source, f"dir:{copied}"]
    subprocess.run([program("skopeo"), *command], check=True, capture_output=True)
    assert (copied / "manifest.json").read_bytes() == image.manifest.data


def test_a_registry_that_mounts_gets_no_bytes(
    server: RegistryServer, repository: str, store: Store
) -> None:
    layer = made(store)
    with faulty(server.host) as proxy, Registry(proxy.host, QUICK) as there:
        sharing.offer(there, repository, [layer], store.path, ignore)
        sent = proxy.count("PUT .*/blobs/uploads/")
        to = Reference(server.host, f"{repository}/other", "base-1")
        nothing = Store(Path("nothing here")).path
        sharing.publish(there, to, making.image(layer), nothing, also_in=repository)
        assert proxy.count("PUT .*/blobs/uploads/") == sent + 1  # the configuration
        elsewhere = Reference(server.host, f"{repository}/third", "base-1")
        sharing.publish(there, elsewhere, making.image(layer), store.path, also_in="unknown")
        assert proxy.count("PUT .*/blobs/uploads/") == sent + 3
        assert proxy.count("DELETE .*/blobs/uploads/") == 1, "an upload that was not needed is open"


# --- what is there is not what it should be -------------------------------------------------------


def test_a_blob_that_the_registry_lost_counts_as_not_there_and_is_put_again(
    there: Registry, server: RegistryServer, repository: str, store: Store
) -> None:
    layer = made(store)
    sharing.offer(there, repository, [layer], store.path, ignore)
    server.blob_file(layer.blob.digest).unlink()
    assert sharing.take(there, repository, layer.key) is None
    sharing.offer(there, repository, [layer], store.path, ignore)
    assert sharing.take(there, repository, layer.key) == layer
    assert server.blob_file(layer.blob.digest).read_bytes() == store.path(layer).read_bytes()


def test_a_blob_that_is_lost_in_between_is_no_layer(
    there: Registry, server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    sharing.offer(there, repository, [layer], store.path, ignore)
    server.blob_file(layer.blob.digest).unlink()
    with pytest.raises(CheckFailed, match="the registry has lost this blob"):
        sharing.fetch(there, repository, layer, other)
    assert left(other) == []


def test_a_tag_that_leads_to_something_else_is_no_layer(
    there: Registry, repository: str, store: Store
) -> None:
    layer = made(store)
    sharing.offer(there, repository, [layer], store.path, ignore)
    twin = layer.key[:32] + "0" * 32
    assert sharing.tag_of(twin) == sharing.tag_of(layer.key)
    assert sharing.take(there, repository, twin) is None
    there.put_manifest(
        repository,
        sharing.tag_of(layer.key),
        manifests.artifact("application/other", layer.blob, {}),
    )
    assert sharing.take(there, repository, layer.key) is None


def test_other_bytes_in_the_registry_do_not_get_into_the_store(
    there: Registry, server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    sharing.offer(there, repository, [layer], store.path, ignore)
    file = server.blob_file(layer.blob.digest)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckFailed, match="the registry has other bytes"):
        sharing.fetch(there, repository, layer, other)
    assert left(other) == []


def test_other_bytes_in_the_store_do_not_get_into_the_registry(
    there: Registry, server: RegistryServer, repository: str, store: Store
) -> None:
    layer = made(store)
    file = store.path(layer)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckFailed, match="its bytes are not those of"):
        sharing.offer(there, repository, [layer], store.path, ignore)
    assert not server.blob_file(layer.blob.digest).exists()
    assert server.tags(repository) == {}


# --- what breaks on the way -----------------------------------------------------------------------


@pytest.mark.parametrize("status", [None, 503, 404], ids=["torn", "busy", "session forgotten"])
def test_an_upload_that_breaks_off_starts_again(
    server: RegistryServer, repository: str, store: Store, status: int | None
) -> None:
    layer = made(store)
    fault = Fault("PUT", "/blobs/uploads/", status, after=1_000_000)
    with faulty(server.host, fault) as proxy, Registry(proxy.host, QUICK) as there:
        sharing.offer(there, repository, [layer], store.path, ignore)
        assert fault.happened == 1
        assert sharing.take(there, repository, layer.key) == layer
    assert server.blob_file(layer.blob.digest).read_bytes() == store.path(layer).read_bytes()


def test_an_upload_that_never_gets_through_leaves_no_key(
    server: RegistryServer, repository: str, store: Store
) -> None:
    fault = Fault("PUT", "/blobs/uploads/", None, after=1_000_000, times=None)
    with (
        faulty(server.host, fault) as proxy,
        Registry(proxy.host, QUICK) as there,
        pytest.raises(OutsideError, match="the connection failed"),
    ):
        sharing.offer(there, repository, [made(store), made(store)], store.path, ignore)
    assert server.tags(repository) == {}


@contextmanager
def tearing(registry: str, times: int) -> Iterator[str]:
    """A way to the registry on which the first `times` downloads of blobs end in the middle."""
    torn: list[int] = []

    def pump(source: socket.socket, to: socket.socket, answers: bool) -> None:
        large = 0
        try:
            while data := source.recv(1 << 16):
                large += len(data)
                if answers and large > 1_000_000 and len(torn) < times:
                    torn.append(large)
                    break
                to.sendall(data)
        except OSError:
            pass
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        host, _, port = registry.partition(":")
        while True:
            try:
                mine, _ = listener.accept()
            except OSError:
                return
            theirs = socket.create_connection((host, int(port)))
            for pair in ((mine, theirs, False), (theirs, mine, True)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_download_that_breaks_off_starts_again(
    there: Registry, server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    sharing.offer(there, repository, [layer], store.path, ignore)
    said: list[str] = []
    with tearing(server.host, 2) as host, Registry(host, QUICK, said.append) as far:
        sharing.fetch(far, repository, layer, other)
    assert len(said) == 2
    assert other.path(layer).read_bytes() == store.path(layer).read_bytes()


def test_a_download_that_never_gets_through_leaves_nothing(
    there: Registry, server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    sharing.offer(there, repository, [layer], store.path, ignore)
    with (
        tearing(server.host, 3) as host,
        Registry(host, QUICK) as far,
        pytest.raises(OutsideError, match="tried 3 times"),
    ):
        sharing.fetch(far, repository, layer, other)
    assert left(other) == []


def test_a_full_disk_leaves_nothing_and_is_named(
    there: Registry, repository: str, store: Store, tmp_path: Path
) -> None:
    layer, other = made(store), Store(tmp_path / "other")
    sharing.offer(there, repository, [layer], store.path, ignore)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            sharing.fetch(there, repository, layer, other)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.filename == str(other.folder)
    assert left(other) == []
    sharing.fetch(there, repository, layer, other)
    assert other.find(layer.key) == layer


def test_two_machines_that_offer_and_fetch_the_same_layers_at_once(
    server: RegistryServer, repository: str, store: Store, tmp_path: Path
) -> None:
    layers = [made(store) for _ in range(4)]
    other = Store(tmp_path / "other")

    def offer(_: int) -> None:
        with Registry(server.host, QUICK) as there:
            sharing.offer(there, repository, layers, store.path, ignore)

    def fetch(number: int) -> None:
        with Registry(server.host, QUICK) as there:
            sharing.fetch(there, repository, layers[number // 2], other)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(offer, range(3)))
        list(threads.map(fetch, range(8)))
    for layer in layers:
        assert other.find(layer.key) == layer
        assert other.path(layer).read_bytes() == store.path(layer).read_bytes()
    assert len(left(other)) == 8
