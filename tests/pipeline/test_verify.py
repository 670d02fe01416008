"""An image in a real registry is verified against its receipt."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from builder import registry
from builder.core.errors import CheckFailed, OutsideError
from builder.core.settings import TrustSettings
from builder.pipeline.tags import promote
from builder.pipeline.verify import RECEIPT_TYPE, attach, verify
from builder.prove import receipts, suites
from builder.prove.receipts import CheckResult
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


# --- a run on the GPU -----------------------------------------------------------------------------

RAN = {
    "suite": "image",
    "device": "Tesla V100-SXM2-16GB",
    "checks": results(suites.ON_GPU.required("V100")),
    "made_at": "2026-11-22T12:00:00+00:00",
}
"""What `builder prove --on-gpu` changes of a receipt."""


def without(what: str) -> dict[str, object]:
    """Return it with a check `gpu` that is not there, saw nothing, failed, or is of another GPU."""
    checks = [check for check in results(suites.ON_GPU.required("V100")) if check.name != "gpu"]
    ran = CheckResult(name="gpu", version=1, passed=what != "failed", seconds=1)
    if what == "other":
        return RAN | {"accelerator": "T4"}
    if what == "unseen":
        ran = ran.model_copy(update={"not_there": "no run"})
    return RAN | {"checks": (*checks, *(() if what == "absent" else (ran,)))}


def test_a_run_on_the_gpu_can_be_asked_for(repository: Repository) -> None:
    """The image has its own proof, and beside it the receipt of whoever has the GPU."""
    made, settings = repository.proven(), repository.settings()
    assert verify("v100", settings).on_gpu is None, "nobody asks"
    for what, says in (
        ("", "of no run on a GPU"),
        ("absent", "of no run on a GPU"),
        ("unseen", "of no run on a GPU"),
        ("failed", "the check gpu did not pass"),
        ("other", "of a run on T4"),
    ):
        alone = repository.proven(f"is {what}", what or "none")
        if what:
            repository.attach(alone, **without(what))
        with pytest.raises(CheckFailed, match=rf"was seen on no V100: .*{says}") as caught:
            verify(what or "none", settings, on_gpu=True)
        assert "--gpu V100 --on-gpu --push-receipt" in (caught.value.fix or "")
        assert verify(what or "none", settings).receipt.suite == "trainer", "the proof stands"
    repository.attach(made, **RAN)
    found = verify("v100", settings, on_gpu=True)
    assert found.receipt.suite == "trainer" and found.on_gpu and found.on_gpu.receipt
    assert found.on_gpu.receipt.verdict == "proven on Tesla V100-SXM2-16GB"
    assert verify(made.digest, settings, suite=suites.IMAGE, on_gpu=True).on_gpu


def test_builder_toml_says_whose_run_counts(
    repository: Repository, ours: Pair, other: Pair
) -> None:
    made = repository.signed(ours)
    settings = repository.settings(ours)
    asking = TrustSettings(**{**settings.trust.model_dump(), "on_gpu": (str(other.public),)})
    asks = settings.model_copy(update={"trust": asking})
    repository.sign(made, ours.signer, **RAN)
    assert verify("v100", settings, on_gpu=True).on_gpu, "ours counts where nobody else is named"
    with pytest.raises(CheckFailed, match=r"on no V100: .*none of the keys that are trusted"):
        verify("v100", asks)
    with pytest.raises(CheckFailed, match="on no V100"):
        promote("v100", "production", asks)
    repository.sign(made, other.signer, **RAN)
    found = verify("v100", asks)
    assert found.signer == str(ours.public)
    assert found.on_gpu and found.on_gpu.signer == str(other.public)
    promote("v100", "production", asks)


def test_an_image_for_the_cpu_is_asked_for_no_gpu(repository: Repository, other: Pair) -> None:
    cpu = {"accelerator": "CPU", "target": "cpu", "checks": results(TRAINER.required("CPU"))}
    repository.proven("for the CPU", "cpu", **cpu)
    settings = repository.settings()
    asks = settings.model_copy(update={"trust": TrustSettings(on_gpu=(str(other.public),))})
    assert verify("cpu", asks).on_gpu is None
    with pytest.raises(CheckFailed, match="is for CPU, and no GPU runs it"):
        verify("cpu", settings, on_gpu=True)
