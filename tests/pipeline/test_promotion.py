"""Tags in a real registry: their names, how they move, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.pipeline.tags import previous_tag, promote, rollback, tags_for
from builder.prove import suites
from tests.commands import git
from tests.emulators.registry_faults import Fault, faulty
from tests.pipeline.pushing import NEWER
from tests.trust.signing import Pair, Repository

network = pytest.mark.network


def test_tags_carry_the_commit_and_say_when_the_tree_differs(tmp_path: Path) -> None:
    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
    assert tags_for("v100", "2.14.1+cu126", tmp_path)[0] == "v100-2.14.1-cu126", "a tag has no +"
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
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
    first = repository.signed(ours, "first", "first")
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
    assert rollback("production", repository.settings(ours)).digest == first.digest


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
