"""An image in a real registry is verified against its receipt."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from builder import registry
from builder.core.errors import CheckFailed, OutsideError
from builder.pipeline.verify import RECEIPT_TYPE, attach, verify
from builder.prove import receipts, suites
from builder.registry import Descriptor, client, manifests, referrers
from builder.trust import attestations, dsse
from tests.pipeline.pushing import NEWER, results
from tests.prove.reading import PROGRAM as OF_A_PROGRAM
from tests.prove.reading import TRAINER
from tests.trust.signing import Pair, Repository, receipt

pytestmark = pytest.mark.network

PROGRAM = OF_A_PROGRAM.required("V100")
"""The checks of an image with a program that is not our trainer."""


def test_verify_says_what_is_wrong(repository: Repository) -> None:
    settings = repository.settings()
    with pytest.raises(OutsideError, match="has no such image"):
        verify("nothing", settings)
    repository.image("bare", "bare")
    with pytest.raises(CheckFailed, match="no receipt refers to it") as caught:
        verify(f"{repository.reference}:bare", settings)
    assert caught.value.exit_code == 4

    made = repository.proven()
    assert verify("v100", settings).receipt == receipt(made)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
    repository.proven("early", "early", made_at=tomorrow)
    with pytest.raises(CheckFailed, match=f"its receipt is of the future: {re.escape(tomorrow)}"):
        verify("early", settings)
    with pytest.raises(CheckFailed, match=r"check loader is version \d+, now it is"):
        verify(made.digest, settings, suite=NEWER)
    repository.client.put_manifest(repository.path, "list", manifests.index((made.descriptor,)))
    with pytest.raises(CheckFailed, match="is a list of images"):
        verify("list", settings)


def test_an_odd_receipt_beside_a_valid_one_is_skipped(repository: Repository, ours: Pair) -> None:
    made, name = repository.signed(ours), repository.path
    odd = receipt(made, made_at="2027-01-01T00:00:00+00:00").model_dump(mode="json")
    odd["checks"][0]["name"] = ["size"]
    statement = dsse.Statement(made.digest, dsse.RECEIPT, odd)
    created = "2027-01-01T00:00:00+00:00"
    attestations.attach(repository.client, name, made, [statement], ours.signer, created)
    content = Descriptor.of(RECEIPT_TYPE, json.dumps(odd).encode())
    repository.client.put_blob(name, json.dumps(odd).encode())
    newest = {referrers.CREATED: created}
    artifact = registry.artifact(RECEIPT_TYPE, content, newest, made.descriptor)
    referrers.attach(repository.client, name, artifact)
    for settings in (repository.settings(), repository.settings(ours)):
        assert verify("v100", settings).receipt == receipt(made)
    alone = repository.image("alone", "alone")
    statement = dsse.Statement(alone.digest, dsse.RECEIPT, odd)
    attestations.attach(repository.client, name, alone, [statement], ours.signer, created)
    with pytest.raises(CheckFailed, match=r"checks\.0\.name: Input should be a valid string"):
        verify("alone", repository.settings(ours))


def test_a_receipt_of_another_image_proves_nothing(repository: Repository) -> None:
    """Someone lists a receipt that holds elsewhere for an image without one."""
    proven, made = repository.proven(), repository.image("other", "other")
    name = repository.path
    content = Descriptor.of(RECEIPT_TYPE, receipts.dump(receipt(proven)))
    moved = registry.artifact(RECEIPT_TYPE, content, {}, made.descriptor)
    referrers.attach(repository.client, name, moved)
    with pytest.raises(CheckFailed, match="the receipt is for another image"):
        verify("other", repository.settings())

    (theirs,) = repository.client.referrers(name, proven.digest, RECEIPT_TYPE)
    entry = replace(theirs, artifact_type=RECEIPT_TYPE)
    repository.client.put_manifest(
        name, client.fallback_tag(made.digest), manifests.index((entry,))
    )
    with pytest.raises(CheckFailed, match=f"refers to {proven.digest}"):
        verify("other", repository.settings())


def test_a_receipt_cannot_choose_the_weaker_suite(repository: Repository) -> None:
    """Whether it names that suite, or holds only the checks of it."""
    program = {"suite": "program", "checks": results(PROGRAM)}
    made = repository.proven("trainer", **program)
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("v100", repository.settings())
    weaker = receipt(made, suite="trainer", made_at="2026-11-22", checks=results(PROGRAM))
    attach(repository.client, repository.reference, made, weaker)
    with pytest.raises(CheckFailed, match="holds no check size"):
        verify("v100", repository.settings())

    labelled = repository.image("script", "script", **{suites.LABEL: "program"})
    attach(repository.client, repository.reference, labelled, receipt(labelled, **program))
    assert verify("script", repository.settings()).receipt.suite == "program"
    with pytest.raises(CheckFailed, match="of the suite program, the image needs trainer"):
        verify("script", repository.settings(), suite=TRAINER)
    easy = repository.image("easy", "easy", **{suites.LABEL: "easy"})
    attach(repository.client, repository.reference, easy, receipt(easy))
    with pytest.raises(CheckFailed, match="says 'easy', and there is no such suite"):
        verify("easy", repository.settings())
