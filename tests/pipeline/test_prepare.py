"""A target is prepared in one pass: everything is loaded, resolved, read and rendered once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from builder.core.errors import CheckFailed
from builder.pipeline import prepare, to_registry

TARGET = "v100"


STAGES = {"load", "resolve", "render", "plan"}
READ = {
    "image.lock",
    "apt.lock",
    "cuda.lock",
    "tensorflow.lock",
    "extra.lock",
    "os-bookworm.lock",
    "Dockerfile",
}


def test_each_stage_runs_once_and_each_file_is_read_once(copy: Path, calls: Counter[str]) -> None:
    prepared = prepare.prepare(copy, TARGET)
    assert prepared.target == TARGET
    assert calls.keys() >= STAGES | READ
    assert set(calls.values()) == {1}, calls


def test_a_build_to_a_registry_prepares_once(copy: Path, calls: Counter[str]) -> None:
    assert to_registry.prepared(copy, TARGET).target == TARGET
    assert {name: calls[name] for name in STAGES | READ} == dict.fromkeys(STAGES | READ, 1)


def test_nothing_is_rendered_for_a_stale_lock(copy: Path, calls: Counter[str]) -> None:
    path = copy / "images" / TARGET / "cuda.lock"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(CheckFailed, match="was edited"):
        prepare.prepare(copy, TARGET)
    assert calls["render"] == 0
