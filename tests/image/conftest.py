"""Fixtures of the tests of images."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.engine import Engine
from builder.image.content_store import ContentStore
from tests.emulators.index import Files, serving


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "layers")


@pytest.fixture
def index() -> Iterator[Files]:
    """A server that has wheels and Debian packages."""
    with serving() as server:
        yield server


@pytest.fixture
def on_engine(engine: Engine) -> Iterator[str]:
    """A repository whose images go away with the test."""
    name = f"factory-test-{secrets.token_hex(6)}"
    yield name
    for image in engine.client.images.list(name):
        for tag in image.tags:
            engine.client.images.remove(tag, force=True)
