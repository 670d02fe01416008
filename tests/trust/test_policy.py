"""Whose receipts count: [trust] of builder.toml."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builder.core.errors import InputError
from builder.core.settings import Identity, TrustSettings
from builder.pipeline.push import LocalImage
from builder.trust import policy
from builder.trust.policy import Policy
from tests.pipeline.pushing import proof

DAY = policy.DAY
NOW = datetime(2026, 11, 22, tzinfo=UTC)
IDENTITY = Identity(identity="ci@example.com", issuer="https://accounts.google.com")
DIGEST = f"sha256:{'a' * 64}"


def of(*prove: str | Identity, **more: object) -> Policy:
    trusted = policy.of(TrustSettings(prove=prove, **more))  # type: ignore[arg-type]
    assert trusted
    return trusted


@pytest.mark.parametrize(
    ("suite", "age", "receipt", "reason"),
    [
        (None, None, {"suite": "program", "made_at": NOW.isoformat()}, ""),
        ("trainer", None, {"suite": "trainer"}, ""),
        ("program", None, {"suite": "trainer"}, ""),
        ("trainer", None, {"suite": "program"}, "of the suite program, and trainer is the least"),
        ("trainer", None, {"suite": "strange"}, "of the suite strange, and trainer is the least"),
        (None, 30 * DAY, {"made_at": (NOW - timedelta(days=29)).isoformat()}, ""),
        (None, 30 * DAY, {"made_at": (NOW - timedelta(days=40)).isoformat()},
         "proven 40.0 days ago, and 30.0 days are the most"),
        (None, 30 * DAY, {"made_at": "whenever"}, "gives no time that can be read"),
        (None, 30 * DAY, {"made_at": "2026-11-22T00:00:00"}, "gives no time that can be read"),
    ],
)  # fmt: skip
def test_the_least_suite_and_the_greatest_age(
    suite: str | None, age: float | None, receipt: dict[str, str], reason: str
) -> None:
    trusted = of(IDENTITY, suite=suite, age=age)
    refusal = policy.refusal(proof(LocalImage("x", DIGEST, DIGEST), **receipt), trusted, NOW)
    assert reason in refusal and bool(refusal) == bool(reason)


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
    assert policy.of(TrustSettings()) is None
    with pytest.raises(InputError, match="there is no such key"):
        of(str(tmp_path / "none.pub"))
