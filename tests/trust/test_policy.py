"""Whose receipts count: [trust] of builder.toml."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.core.settings import TrustSettings
from builder.pipeline.push import LocalImage
from builder.prove import receipts
from builder.trust import policy
from builder.trust.policy import Policy
from tests.pipeline.pushing import proof

NOW = datetime(2026, 11, 22, tzinfo=UTC)
DIGEST = f"sha256:{'a' * 64}"


def test_a_receipt_of_the_future_or_too_old_is_known_by_its_time() -> None:
    for age, refused in (
        (timedelta(days=-1), "of the future"),
        (timedelta(minutes=-5), ""),
        (timedelta(days=30), ""),
        (timedelta(days=31), r"older than [trust] max_age, 30 days"),
    ):
        made = proof(LocalImage("x", DIGEST, DIGEST), made_at=(NOW - age).isoformat())
        said = Policy(max_age=timedelta(days=30)).refusal(made, NOW)
        assert refused in said and bool(said) == bool(refused)
        assert "older" not in Policy().refusal(made, NOW)
    naive = proof(LocalImage("x", DIGEST, DIGEST), made_at="2099-01-01T00:00:00")
    assert "of the future" in Policy().refusal(naive, NOW)


@pytest.mark.parametrize("text", ["whenever", "", "2026-13-01", "NaN"])
def test_a_receipt_without_a_date_is_none(text: str) -> None:
    made = proof(LocalImage("x", DIGEST, DIGEST)).model_dump(mode="json")
    with pytest.raises(InputError, match="made_at: "):
        receipts.of_json({**made, "made_at": text}, "it")


def test_without_signers_nothing_is_asked(tmp_path: Path) -> None:
    assert policy.of(TrustSettings()) == Policy()
    assert policy.of(TrustSettings(max_age="2w")) == Policy((), timedelta(days=14))
    with pytest.raises(InputError, match="there is no such key"):
        policy.of(TrustSettings(prove=(str(tmp_path / "none.pub"),)))
