"""Whose receipts count: [trust] of builder.toml, and the same for a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from builder.core.errors import InputError
from builder.core.settings import Identity, TrustSettings
from builder.pipeline.push import LocalImage
from builder.registry import parse
from builder.trust import admission, dsse, policy
from builder.trust.policy import Policy
from tests.pipeline.pushing import proof
from tests.trust.signing import pair

DAY = policy.DAY
NOW = datetime(2026, 11, 22, tzinfo=UTC)
REPOSITORY = parse("h.example.com/team/training_1")
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
        (None, None, {"made_at": (NOW + timedelta(days=1)).isoformat()}, "is of the future"),
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


def test_without_signers_nothing_is_asked(tmp_path: Path) -> None:
    assert policy.of(TrustSettings()) is None
    with pytest.raises(InputError, match="there is no such key"):
        of(str(tmp_path / "none.pub"))


# For a cluster ------------------------------------------------------------------------------------


def test_a_cluster_is_asked_for_the_same(tmp_path: Path) -> None:
    trusted = of(IDENTITY, str(pair(tmp_path, "ours").public), suite="trainer", age=30 * DAY)
    text = admission.image_policy(REPOSITORY, trusted)
    assert "sigstore/policy-controller#1958" in text.partition("apiVersion")[0]  # keys are left out
    spec = YAML(typ="safe").load(text)["spec"]
    assert spec["images"][0]["glob"] == "h.example.com/team/training_1@*"
    (authority,) = spec["authorities"]
    assert authority["signatureFormat"] == "bundle"
    assert authority["keyless"]["identities"] == [
        {"issuer": IDENTITY.issuer, "subject": IDENTITY.identity}
    ]
    (attestation,) = authority["attestations"]
    assert attestation["predicateType"] == dsse.RECEIPT
    rule = attestation["policy"]["data"]
    assert '["trainer"][_] == input.predicate.suite' in rule
    assert f"<= {30 * 86400}000000000" in rule


def test_what_a_cluster_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bundles of identities only"):
        admission.image_policy(REPOSITORY, of(str(pair(tmp_path, "ours").public)))
    own = of(IDENTITY, trusted_root="root.json")
    with pytest.raises(InputError, match="a Sigstore that a cluster has to be told about"):
        admission.image_policy(REPOSITORY, own)


def test_the_document_shows_the_policy(root: Path) -> None:
    """docs/trust.md holds what `builder show policy` writes."""
    github = "https://token.actions.githubusercontent.com"
    workflow = "https://github.com/acme/training/.github/workflows/image.yml@refs/heads/main"
    text = admission.image_policy(
        parse("europe-west4-docker.pkg.dev/acme/images/training"),
        of(Identity(identity=workflow, issuer=github), suite="trainer", age=30 * DAY),
    )
    shown = "".join(f"    {line}" for line in text.splitlines(keepends=True))
    assert shown in (root / "docs" / "trust.md").read_text(encoding="utf-8")
