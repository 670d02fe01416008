"""What is proven where: an engine of another architecture builds and audits, and proves nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import CheckFailed, OutsideError
from builder.devicecode.verdict import Audit
from builder.pipeline import prepare, prove
from builder.prove.audit import named

ARM: Any = SimpleNamespace(
    architecture="arm64",
    client=None,
    image=lambda reference: SimpleNamespace(image_id="sha256:1"),
)
"""An engine on arm64 that has every image."""


def test_an_engine_on_arm64_says_where_the_image_is_proven(root: Path) -> None:
    with pytest.raises(
        OutsideError, match=r"cpu: built, .* not proven here: .*engine is arm64"
    ) as e:
        prove.prove(root, ARM, prepare.prepare(root, "cpu"), record=None)  # type: ignore[arg-type]
    assert e.value.fix.startswith("builder cloud build cpu, or ")


def test_an_image_for_a_gpu_is_audited_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "of_image", lambda client, image: Audit(()))
    with pytest.raises(CheckFailed, match="v100: "):
        prove.prove(root, ARM, prepare.prepare(root, "v100"), record=None)  # type: ignore[arg-type]
