"""A build's source in a bucket: one new object, for as long as the build needs it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cloudbuild.clients import Clients
from builder.cloudbuild.submission import staging
from builder.core.errors import FactoryError
from tests.cloudbuild.test_source import packed, tree
from tests.emulators.cloud_build import PROJECT, LoopbackCloud

BUCKET = f"{PROJECT}_cloudbuild"
Connect = Callable[..., Clients]


def test_it_lies_in_a_bucket_while_it_is_needed(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    tree(tmp_path, "a", "b/c")
    with staging.staged(connected().storage, BUCKET, tmp_path) as there:
        (name,) = cloud.storage.objects(f"{BUCKET}/source/")
        assert name == f"{BUCKET}/{there.object.name}"
        held = cloud.storage.get(BUCKET, there.object.name)
        assert held.data == packed(tmp_path)
        assert held.generation == there.object.generation
    assert cloud.storage.objects() == []


def test_it_is_kept_where_that_is_asked_for(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    with staging.staged(connected().storage, BUCKET, tree(tmp_path, "a"), keep=True):
        pass
    assert len(cloud.storage.objects()) == 1


def test_whatever_ends_the_build_nothing_is_left(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        staging.staged(connected().storage, BUCKET, tree(tmp_path, "a")),
    ):
        raise KeyboardInterrupt
    assert cloud.storage.objects() == []


def test_a_large_source_goes_up_in_pieces_through_503s(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(random.Random(0).randbytes(9_000_000))
    cloud.faults.bursts = [("PUT /upload", 503, 2)]
    with staging.staged(connected().storage, BUCKET, tmp_path) as there:
        assert cloud.storage.get(BUCKET, there.object.name).data == packed(tmp_path)


def test_an_object_of_another_is_never_overwritten(
    cloud: LoopbackCloud,
    connected: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging.time, "time", lambda: 1.0)
    monkeypatch.setattr(staging.uuid, "uuid4", lambda: type("U", (), {"hex": "same"})())
    cloud.storage.make(BUCKET)
    cloud.storage.put(BUCKET, "source/1.000000-same.tgz", b"someone else's")
    with (
        pytest.raises(FactoryError, match=f"gs://{BUCKET}: refused"),
        staging.staged(connected().storage, BUCKET, tree(tmp_path, "a")),
    ):
        raise AssertionError("not reached")
    assert cloud.storage.get(BUCKET, "source/1.000000-same.tgz").data == b"someone else's"


def test_a_default_bucket_of_another_project_is_refused(
    cloud: LoopbackCloud, connected: Connect, tmp_path: Path
) -> None:
    cloud.storage.make(BUCKET, owner="somebody")
    with (
        pytest.raises(FactoryError, match="belongs to another project") as raised,
        staging.staged(connected().storage, BUCKET, tree(tmp_path, "a")),
    ):
        raise AssertionError("not reached")
    assert "staging_bucket" in raised.value.fix
    assert cloud.storage.objects() == []
