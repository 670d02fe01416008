"""Fixtures of the pipeline's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.pipeline import plan
from builder.render import dockerfiles as render
from builder.spec import catalogue, compatibility


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
