"""An image goes to another repository, and what was said about it goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError
from builder.core.settings import Settings
from builder.pipeline.tags import history, promote
from builder.pipeline.verify import attach, verify
from builder.registry import Manifest, Registry, parse
from builder.trust import statements
from tests.emulators.registry_faults import faulty
from tests.pipeline.pushing import REPOSITORY
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair, at, image, pair, receipt, settings, sign
from tests.trust.strangers import OFFLINE, accepts, cosign

pytestmark = pytest.mark.network


@pytest.fixture
def ours(tmp_path: Path) -> Pair:
    return pair(tmp_path, "ours")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[RegistryServer]:
    """Another registry."""
    with registry_server.registry(tmp_path / "elsewhere") as running:
        yield running


def signed(host: str, key: Pair, text: str = "hello") -> Manifest:
    """A proven image of the project's repository, signed."""
    with Registry(host) as there:
        made = image(there, text, text)
        attach(there, at(host), made, receipt(made))
        sign(there, at(host), made, receipt(made), key.signer)
    return made


def test_to_another_registry_the_statements_travel_along(
    server: RegistryServer, elsewhere: RegistryServer, ours: Pair
) -> None:
    made = signed(server.host, ours)
    to = f"{elsewhere.host}/serving/training"
    moved = promote("hello", f"{to}:production", settings(server.host, ours))
    assert (moved.reference, moved.previous) == (f"{to}@{made.digest}", None)
    server.kill()  # nothing there is asked any more

    found = verify(f"{to}:production", settings(server.host, ours))
    assert (found.digest, found.signer) == (made.digest, str(ours.public))
    assert verify(f"{to}:production", Settings()).receipt == receipt(made)
    for kind in (statements.SIGNATURE, statements.RECEIPT):
        assert accepts(moved.reference, ours.public, kind), kind
    words = ("verify", "--new-bundle-format=false", "--key", ours.public, *OFFLINE)
    assert cosign(*words, moved.reference, folder=ours.path.parent).returncode == 0
    assert "production" not in server.tags(REPOSITORY)


def test_a_second_time_nothing_travels_and_the_tag_keeps_its_history(
    server: RegistryServer, elsewhere: RegistryServer, ours: Pair
) -> None:
    first, second = signed(server.host, ours, "first"), signed(server.host, ours, "second")
    where = settings(server.host, ours)
    with faulty(elsewhere.host) as proxy:
        to = f"{proxy.host}/serving/training:production"
        promote("first", to, where)
        proxy.seen.clear()
        assert not promote("first", to, where).moved
        assert proxy.count("^POST") == 0
        assert promote("second", to, where).previous == first.digest
        with Registry(proxy.host) as there:
            past = [one.digest for one in history(there, parse(to))]
    assert past == [second.digest, first.digest]


def test_inside_one_registry_no_layer_travels(server: RegistryServer, ours: Pair) -> None:
    made = signed(server.host, ours)
    with faulty(server.host) as proxy:
        where = settings(proxy.host, ours)
        promote("hello", f"{proxy.host}/serving/training:production", where)
        for blob in made.layers:
            assert proxy.count(f"mount={blob.digest}&from={REPOSITORY}") == 1
            assert proxy.count(f"GET .*/blobs/{blob.digest}") == 0
    assert server.tags("serving/training")["production"] == made.digest


def test_what_is_not_trusted_goes_nowhere(
    server: RegistryServer, elsewhere: RegistryServer, ours: Pair, tmp_path: Path
) -> None:
    signed(server.host, pair(tmp_path, "other"))
    to = f"{elsewhere.host}/serving/training"
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        promote("hello", f"{to}:production", settings(server.host, ours))
    assert elsewhere.digests("serving/training") == set()
    for name in (to, f"{to}@sha256:{'a' * 64}"):
        with pytest.raises(InputError, match="a promotion moves a tag, and this names none"):
            promote("hello", name, settings(server.host, ours))
