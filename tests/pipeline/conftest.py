"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.settings import Settings
from builder.engine import BuildRequest, Engine, connect
from builder.pipeline import plan
from builder.pipeline.verify import ACCELERATOR
from builder.render import dockerfiles as render
from builder.spec import catalogue, compatibility
from builder.tensorflow import suite as suites
from tests.pipeline.pushing import Build, Image
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer


@pytest.fixture
def calls(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stage runs, and each file of the target's folder is read."""
    found: Counter[str] = Counter()

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return function(*arguments, **options)

        return call

    for module, name in (
        (catalogue, "load"),
        (compatibility, "resolve"),
        (render, "render"),
        (plan, "plan"),
    ):
        monkeypatch.setattr(module, name, counted(getattr(module, name), name))
    whole = Path.read_text

    def read_text(path: Path, *arguments: Any, **options: Any) -> str:
        if path.is_relative_to(copy / "images"):
            found[path.name] += 1
        return whole(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    return found


@pytest.fixture(scope="module")
def engine() -> Engine:
    return connect(Settings())


@pytest.fixture
def build(engine: Engine, tmp_path: Path) -> Iterator[Build]:
    """Builds the smallest image with some random bytes in it; gone again after the test."""
    made: list[str] = []

    def build(
        text: str,
        base: Image | None = None,
        megabytes: int = 0,
        tag: str = "",
        suite: str = "",
    ) -> Image:
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
        found = engine.build(BuildRequest(folder / "Dockerfile", folder, (reference,)))
        labels = engine.client.images.get(reference).labels
        return Image(reference, found.digest, found.image_id, labels)

    yield build
    for reference in reversed(made):
        engine.client.images.remove(reference, force=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RegistryServer]:
    """An empty registry."""
    with registry_server.registry(tmp_path / "registry") as running:
        yield running
