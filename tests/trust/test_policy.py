"""Whose receipts count: [trust] of builder.toml."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.core.settings import TrustSettings
from builder.pipeline.push import LocalImage
from builder.trust import policy
from tests.pipeline.pushing import proof

NOW = datetime(2026, 11, 22, tzinfo=UTC)
DIGEST = f"sha256:{'a' * 64}"


def test_a_receipt_of_the_future_is_known_by_its_time() -> None:
    for made_at, future in (
        ((NOW + timedelta(days=1)).isoformat(), True),
        ((NOW + timedelta(minutes=5)).isoformat(), False),
        ("whenever", False),
        ("2099-01-01T00:00:00", False),  # no time zone
    ):
        made = proof(LocalImage("x", DIGEST, DIGEST), made_at=made_at)
        assert policy.is_of_the_future(made, NOW) == future


def test_without_signers_nothing_is_asked(tmp_path: Path) -> None:
    assert policy.of(TrustSettings()) == ()
    with pytest.raises(InputError, match="there is no such key"):
        policy.of(TrustSettings(prove=(str(tmp_path / "none.pub"),)))
