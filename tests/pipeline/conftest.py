"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import registry
from builder.engine import BuildRequest, Engine, buildx
from builder.pipeline.push import LocalImage
from builder.prove import suites
from builder.prove.image import ACCELERATOR
from builder.registry import Registry
from tests.pipeline.pushing import Build
from tests.registry.server import RegistryServer
from tests.trust.signing import Pair, Repository, pair


@pytest.fixture
def build(engine: Engine, tmp_path: Path) -> Iterator[Build]:
    """Builds the smallest image with some random bytes in it; gone again after the test."""
    made: list[str] = []

    def build(
        text: str,
        base: LocalImage | None = None,
        megabytes: int = 0,
        tag: str = "",
        suite: str = "",
    ) -> LocalImage:
        folder = tmp_path / f"context-{len(made)}"
        folder.mkdir()
        (folder / "file").write_bytes(text.encode() + os.urandom(megabytes * 1_000_000 or 16))
        source = base.reference if base else "scratch"
        (folder / "Dockerfile").write_text(
            f'FROM {source}\nCOPY --link file /{text}\nENTRYPOINT ["/{text}"]\n'
            f'LABEL {ACCELERATOR}="V100"\n' + (f'LABEL {suites.LABEL}="{suite}"\n' if suite else "")
        )
        reference = (
            f"push-test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}:{tag or 't'}"
        )
        made.append(reference)
        built = buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (reference,)))
        labels = engine.client.images.get(reference).labels
        return LocalImage(reference, built.digest, built.image_id, labels)

    yield build
    for reference in reversed(made):
        engine.client.images.remove(reference, force=True)


@pytest.fixture
def repository(registry_server: RegistryServer) -> Iterator[Repository]:
    """An empty repository of its own in the registry of the whole run."""
    name = f"{registry_server.host}/tests/{uuid.uuid4().hex[:12]}"
    with Registry(registry_server.host) as client:
        yield Repository(client, registry.parse(name))


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A key pair that counts."""
    return pair(tmp_path_factory.mktemp("keys"), "ours")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Another key pair."""
    return pair(tmp_path_factory.mktemp("keys"), "other")
