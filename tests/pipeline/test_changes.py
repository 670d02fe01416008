"""Which targets a build has to make, and what it means not to know."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.settings import Settings
from builder.pipeline import changes, make, verify

ELSEWHERE = Settings(registry="h.example.com/team/training")


def test_where_the_registry_cannot_tell_a_target_counts_as_changed(copy: Path) -> None:
    def change(settings: Settings) -> tuple[bool, str]:
        (change,) = changes.changed(copy, settings, ["cpu"])
        return change.changed, change.why

    assert change(Settings()) == (True, "no registry to compare with")
    changed, why = change(Settings(registry="127.0.0.1:9/team/training"))
    assert changed and "the registry cannot say" in why
    (copy / "images/cpu/cuda.lock").write_text("")
    changed, why = change(ELSEWHERE)
    assert changed and why.startswith("cannot be prepared: images/cpu/")
    with pytest.raises(InputError, match="no target is called 'v10'"):
        changes.changed(copy, Settings(), ["v10"])


def test_the_receipt_in_the_registry_decides(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make.prepare(root, "cpu").inputs
    monkeypatch.setattr(registry.Registry, "head", lambda *_: "sha256:x")
    for receipt, changed, why in (
        (SimpleNamespace(inputs=inputs, made_at="today"), False, "the registry has it"),
        (SimpleNamespace(inputs="x", made_at="today"), True, "made from other files"),
        (CheckFailed("no receipt refers to it"), True, "not proven in the registry"),
        (OutsideError("no answer"), True, "the registry cannot say"),
    ):
        raised = receipt if isinstance(receipt, Exception) else None
        answer = Mock(return_value=SimpleNamespace(receipt=receipt), side_effect=raised)
        monkeypatch.setattr(verify, "verify", answer)
        (change,) = changes.changed(root, ELSEWHERE, ["cpu"])
        assert change.changed is changed and change.why.startswith(why)
