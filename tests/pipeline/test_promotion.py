"""Tags in a real registry: their names, how they move, back, and to another repository."""

from __future__ import annotations

import subprocess
from pathlib import Path
from socket import gethostname

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.frameworks import suites
from builder.image import content_store
from builder.pipeline.tags import previous_tag, promote, rollback, tags_for
from builder.pipeline.verify import verify
from builder.registry import Registry
from builder.trust import dsse
from tests.emulators.referrers_api import with_referrers
from tests.emulators.registry_faults import Fault, faulty
from tests.pipeline.pushing import NEWER
from tests.trust.programs import accepts
from tests.trust.signing import Pair, Repository

network = pytest.mark.network


def test_tags_carry_the_commit_and_say_when_the_tree_differs(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert tags_for("v100", "2.21.0", tmp_path, ("mine",)) == (
        f"v100-2.21.0-{commit}",
        "mine",
        "v100",
    )
    (tmp_path / "file").write_text("2")
    assert tags_for("v100", "2.21.0", tmp_path)[0] == f"v100-2.21.0-{commit}-dirty"


@network
def test_a_tag_moves_and_goes_back(repository: Repository) -> None:
    where = repository.settings()
    a, b = (repository.proven(name, name) for name in "ab")
    assert promote("a", "production", where).previous is None
    with pytest.raises(OutsideError, match="nothing says where it led before"):
        rollback("production", where)
    assert promote("b", "production", where).previous == a.digest
    assert not promote("b", "production", where).moved
    assert repository.head(previous_tag("production")) == a.digest
    for digest in (a.digest, b.digest, a.digest):  # the second time undoes the first
        assert rollback("production", where).digest == digest == repository.head("production")
    with pytest.raises(InputError, match="only a tag goes back"):
        rollback(a.digest, where)


@network
def test_only_what_is_proven_is_promoted_and_newer_checks_close_no_way_back(
    repository: Repository, ours: Pair, other: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"made_at": "2020-01-01T00:00:00+00:00"}
    first = repository.signed(ours, "first", "first", **old)
    second = repository.signed(ours, "second", "second")
    for tag in ("first", "second"):
        promote(tag, "production", repository.settings(ours))
    monkeypatch.setattr(suites, "of_image", lambda _: NEWER)
    with pytest.raises(CheckFailed, match=r"check loader is version \d+, now it is"):
        promote("second", "staging", repository.settings(ours))
    assert repository.head("staging") is None
    with pytest.raises(CheckFailed, match="signed by none"):
        rollback("production", repository.settings(other))
    assert repository.head("production") == second.digest
    back = rollback("production", repository.settings(ours, age=86400.0))
    assert back.digest == first.digest


@network
def test_a_torn_move_leaves_the_tag_where_it_was(repository: Repository) -> None:
    a, b, c = (repository.proven(name, name) for name in "abc")
    for tag in "ab":
        promote(tag, "production", repository.settings())
    for torn in ("production", "production-previous"):
        fault = Fault("PUT", f"/manifests/{torn}$", 400, times=None)
        with faulty(repository.client.host, fault) as proxy, pytest.raises(OutsideError):
            promote("c", "production", repository.settings(host=proxy.host))
        assert repository.head("production") == b.digest
    lies = Fault("PUT", "/manifests/production$", 201, after=1, times=None)
    with (
        faulty(repository.client.host, lies) as proxy,
        pytest.raises(CheckFailed, match="registry says"),
    ):
        promote("c", "production", repository.settings(host=proxy.host))
    assert lies.happened and repository.head("production") == b.digest
    assert promote("c", "production", repository.settings()).digest == c.digest
    assert rollback("production", repository.settings()).digest == b.digest != a.digest


# To another repository ----------------------------------------------------------------------------


@network
def test_attestations_travel_to_another_registry_and_back(
    repository: Repository, ours: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a registry that knows the fallback tag only to one with the referrers API."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = content_store.of_this_machine()
    store.folder.mkdir()
    (store.folder / f".new.{gethostname()},1,7.killed").write_bytes(b"half a layer")
    made = repository.signed(ours)
    path = repository.reference.repository
    with with_referrers(repository.client.host) as proxy:
        for number, (source, host) in enumerate(
            [(repository.client.host, proxy.host), (proxy.host, repository.client.host)]
        ):
            where = repository.settings(ours, host=source)
            start = f"{source}/{path}{'-copy' * number}:{'v100' if not number else 'live'}"
            to = f"{host}/{path}{'-copy' * (number + 1)}"
            moved = promote(start, f"{to}:live", where)
            assert (moved.reference, moved.previous) == (f"{to}@{made.digest}", None)
            verified = verify(f"{to}:live", where)
            assert (verified.digest, verified.signer) == (made.digest, str(ours.public))
            assert verify(f"{to}:live", Settings()).receipt == verified.receipt  # the unsigned one
            for kind in (dsse.SIGNATURE, dsse.RECEIPT):
                assert accepts(moved.reference, ours.public, kind), kind
    assert not list(store.folder.iterdir()), "nor what a killed run left"


@network
def test_nothing_travels_twice_or_without_need(repository: Repository, ours: Pair) -> None:
    made = repository.signed(ours, "first", "first")
    second = repository.signed(ours, "second", "second")
    path = repository.reference.repository
    with faulty(repository.client.host) as proxy:
        where, to = repository.settings(ours, host=proxy.host), f"{proxy.host}/{path}-copy:live"
        promote("first", to, where)
        for blob in made.layers:  # the registry takes them over itself
            assert proxy.count(f"mount={blob.digest}&from={path}") == 1
            assert proxy.count(f"GET .*/blobs/{blob.digest}") == 0
        proxy.seen.clear()
        assert not promote("first", to, where).moved
        assert proxy.count("^POST") == 0
        assert promote("second", to, where).previous == made.digest
        assert rollback(to, where).digest == made.digest
        with Registry(proxy.host) as client:
            assert client.head(f"{path}-copy", "live-previous") == second.digest


@network
def test_what_is_not_trusted_goes_nowhere(repository: Repository, ours: Pair, other: Pair) -> None:
    repository.signed(other)
    to = f"{repository.reference}-copy"
    with pytest.raises(CheckFailed, match="signed by none of the keys"):
        promote("v100", f"{to}:live", repository.settings(ours))
    path = registry.parse(to).repository
    assert repository.client.tags(path, "") == ()
    for name in (to, f"{to}@sha256:{'a' * 64}"):
        with pytest.raises(InputError, match="a promotion moves a tag, and this names none"):
            promote("v100", name, repository.settings(ours))
