"""Tags in a real registry: their names, how they move, and how they go back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed, OutsideError
from builder.engine import Engine
from builder.pipeline.tags import history_tag, promote, rollback, tags_for
from builder.tensorflow import suite as suites
from tests.emulators.registry_faults import Fault, faulty
from tests.pipeline.pushing import NEWER, REPOSITORY, Build, sent, settings
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network]


def test_promote_moves_a_tag_and_every_step_leads_back(
    engine: Engine, build: Build, server: RegistryServer
) -> None:
    where = settings(server.host)
    images = [build(f"image{number}") for number in range(4)]
    for number, image in enumerate(images):
        sent(engine, image, server.host, f"version-{number}")
    a, b, c, d = (image.digest for image in images)

    def now() -> str:
        return server.tags(REPOSITORY)["production"]

    assert promote("version-0", "production", where).previous is None
    for number in (1, 2):
        promote(f"version-{number}", "production", where)
    assert now() == c
    assert not promote("version-2", "production", where).moved

    assert rollback("production", where).digest == b == now()
    assert rollback("production", where).digest == a == now()
    with pytest.raises(OutsideError, match="no way back"):
        rollback("production", where)

    # a promotion after going back drops the entries that the tag had left
    promote("version-1", "production", where)
    promote("version-3", "production", where)
    assert now() == d
    assert rollback("production", where).digest == b
    assert rollback("production", where).digest == a


def test_a_push_can_be_taken_back(engine: Engine, build: Build, server: RegistryServer) -> None:
    where = settings(server.host)
    first, second = build("first"), build("second")
    sent(engine, first, server.host)
    with pytest.raises(OutsideError, match="it never moved, so there is no way back"):
        rollback("v100", where)
    sent(engine, second, server.host)
    assert server.tags(REPOSITORY)[history_tag("v100")]
    back = rollback("v100", where)
    assert (back.digest, back.previous) == (first.digest, second.digest)
    assert server.tags(REPOSITORY)["v100"] == first.digest


def test_what_is_not_proven_is_not_promoted(
    engine: Engine, build: Build, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build("trainer")
    sent(engine, image, server.host)
    monkeypatch.setattr(suites, "of_image", lambda _: NEWER)
    with pytest.raises(CheckFailed):
        promote("v100", "production", settings(server.host))
    assert "production" not in server.tags(REPOSITORY)


@pytest.mark.parametrize("place", ["production", "production-history"])
def test_a_torn_promotion_leaves_the_tag_and_the_way_back(
    engine: Engine, build: Build, server: RegistryServer, place: str
) -> None:
    images = [build(f"image{number}") for number in range(3)]
    for number, image in enumerate(images):
        sent(engine, image, server.host, f"version-{number}")
    where = settings(server.host)
    promote("version-0", "production", where)
    promote("version-1", "production", where)
    torn = Fault("PUT", f"/manifests/{place}$", 400, times=None)
    with faulty(server.host, torn) as proxy, pytest.raises(OutsideError):
        promote("version-2", "production", settings(proxy.host))
    assert server.tags(REPOSITORY)["production"] == images[1].digest
    assert rollback("production", where).digest == images[0].digest


def test_going_back_is_read_back(engine: Engine, build: Build, server: RegistryServer) -> None:
    where = settings(server.host)
    for number in range(2):
        sent(engine, build(f"image{number}"), server.host, f"version-{number}")
        promote(f"version-{number}", "production", where)
    lies = Fault("PUT", "/manifests/production$", 201, after=1, times=None)
    with faulty(server.host, lies) as proxy, pytest.raises(CheckFailed, match="registry says"):
        rollback("production", settings(proxy.host))
    assert lies.happened


# Tags -------------------------------------------------------------------------------------------


def test_tags_carry_the_commit_and_say_when_the_tree_differs(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
    git("init", "-q")
    assert tags_for("v100", "2.21.0", tmp_path) == ("v100-2.21.0", "v100")
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
