"""The receipt of an image in a registry: attached to the image, and the image verified against it.

The receipt is an OCI artifact that refers to the image's manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from builder import registry
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.facts import accelerators
from builder.pipeline import asked, repository
from builder.pipeline.asked import Asked
from builder.prove import receipts, suites
from builder.prove.checks import gpu
from builder.prove.image import ACCELERATOR
from builder.prove.receipts import Receipt, Validity
from builder.prove.suite import Suite
from builder.registry import Manifest, Reference, Registry, referrers
from builder.trust import policy
from builder.trust.policy import ListedReceipt, Policy

RECEIPT_TYPE: Final = "application/vnd.training-image-factory.receipt.v1+json"

Judge = Callable[[Receipt, Sequence[str], Mapping[str, str]], Validity]
"""Whether a receipt proves the image with these names (digest, id) and labels."""


@dataclass(frozen=True)
class Verification:
    """An image in a registry that its receipt proves."""

    reference: str
    digest: str
    image_id: str
    """Digest of its config."""
    receipt: Receipt
    signer: str = ""
    """The key or identity that signed the receipt; "" where [trust] names none."""
    on_gpu: ListedReceipt | None = None
    """That of a run on its GPU, where one is asked for."""


def verify(
    reference: str,
    settings: Settings,
    root: Path | None = None,
    *,
    suite: Suite | None = None,
    on_gpu: bool = False,
    on_event: OnEvent = ignore,
) -> Verification:
    """Verify an image in a registry against the receipt that refers to it.

    reference: a whole one, or a tag or digest of the project's own repository. root: the project,
    whose images/pushed.lock says where its tags lead. suite: which the receipt has to be of, of any
    target; by default that of the target that the tag names, else of the image's own label. on_gpu:
    whether its program has to have run on its GPU, also where [trust] does not ask for that.
    Raises CheckFailed where the image is not proven or not the one that git names, OutsideError
    where there is none.
    """
    wanted = asked.of(root, reference, settings)
    if suite:
        wanted = Asked(wanted.named, wanted.digests, wanted.locked)
    rules = policy.of(settings.trust, on_gpu)
    with repository.opened(wanted.named, on_event, f"verify {wanted.named}") as client:
        wanted.require(client)
        found = proven(client, wanted, judge_of(suite) if suite else None, rules)[0]
    if on_gpu and found.on_gpu is None:
        what = f"{wanted.named} is for {found.receipt.accelerator}, and no GPU runs it"
        raise CheckFailed(what, "leave out --require gpu")
    return found


def proof(wanted: Asked, settings: Settings, on_event: OnEvent = ignore) -> Verification:
    """Return the image that was asked for, verified, wherever the registry's tag leads that git
    leads to it. Raises what `verify` raises."""
    rules = policy.of(settings.trust)
    with repository.opened(wanted.named, on_event, f"verify {wanted.named}") as client:
        return proven(client, wanted, None, rules)[0]


def attach(client: Registry, image: Reference, manifest: Manifest, receipt: Receipt) -> str:
    """Attach the receipt to the image, unless it is; return the digest of its manifest."""
    data = receipts.dump(receipt)
    artifact = registry.artifact(
        RECEIPT_TYPE,
        registry.Descriptor.of(RECEIPT_TYPE, data),
        {referrers.CREATED: receipt.made_at, "training-image-factory.target": receipt.target},
        manifest.descriptor,
    )
    listed = client.referrers(image.repository, manifest.digest, RECEIPT_TYPE)
    if all(referrer.digest != artifact.digest for referrer in listed):
        client.put_blob(image.repository, registry.EMPTY)
        client.put_blob(image.repository, data)
        referrers.attach(client, image.repository, artifact)
    return artifact.digest


def judge_of(suite: Suite | None = None) -> Judge:
    """Return what judges by this suite; by default, by the suite that the image's label names."""
    return lambda receipt, names, labels: (suite or suites.of_image(labels)).holds(receipt, names)


def ran_on(accelerator: str) -> Judge:
    """Return what judges whether a receipt is of a run on this GPU."""

    def judge(receipt: Receipt, names: Sequence[str], _labels: Mapping[str, str]) -> Validity:
        result = receipt.result(gpu.NAME)
        if result is None or result.status == "not there":
            return Validity("its receipt is of no run on a GPU (builder prove --on-gpu)")
        if receipt.accelerator != accelerator:
            return Validity(f"its receipt is of a run on {receipt.accelerator}")
        return suites.ON_GPU.holds(receipt, names)

    return judge


def of_any_version(receipt: Receipt, names: Sequence[str], labels: Mapping[str, str]) -> Validity:
    """Judge a receipt by the checks that it holds, whatever their version."""
    needed = suites.of_image(labels).name
    if receipt.suite != needed or not receipt.checks:
        return Validity(f"the receipt is of the suite {receipt.suite}, not {needed}")
    return receipts.valid_for(receipt, names, {})


def proven(
    client: Registry, wanted: Asked, judge: Judge | None, rules: Policy
) -> tuple[Verification, Manifest]:
    """Return the image with the newest receipt that proves it, and its manifest.

    judge: None judges by the suite of the target, or of the image's label. rules: whose receipts
    count, and how old they may be. Raises what `verify` raises.
    """
    image, manifest = wanted.reference, wanted.manifest(client)
    labels = client.labels(image.repository, manifest)
    entry = _counting(client, wanted, manifest, labels, judge, rules)
    sign = " --key KEY" if rules.trusted else ""
    if isinstance(entry, str):
        raise CheckFailed(
            f"{wanted.named} ({manifest.digest}) is not proven: {entry}",
            "do not use it; prove and push it again: builder smoke TARGET, builder push"
            f" TARGET{sign}",
        )
    assert entry.receipt
    verification = Verification(
        reference=str(image.at(manifest.digest)),
        digest=manifest.digest,
        image_id=manifest.config.digest,
        receipt=entry.receipt,
        signer=entry.signer,
    )
    accelerator = entry.receipt.accelerator
    if rules.on_gpu and accelerators.kind_of(accelerator) == "gpu":
        whatever = Asked(wanted.named, wanted.digests, wanted.locked)
        ran = _counting(client, whatever, manifest, labels, ran_on(accelerator), rules.on_gpu)
        if isinstance(ran, str):
            name, sign = verification.reference, " --key KEY" if rules.on_gpu.trusted else ""
            raise CheckFailed(
                f"{wanted.named} ({manifest.digest}) was seen on no {accelerator}: {ran}",
                f"on a machine that has one: docker pull {name}; builder prove {name}"
                f" --gpu {accelerator} --on-gpu --push-receipt{sign}",
            )
        verification = replace(verification, on_gpu=ran)
    return verification, manifest


def _counting(
    client: Registry,
    wanted: Asked,
    image: Manifest,
    labels: Mapping[str, str],
    judge: Judge | None,
    rules: Policy,
) -> ListedReceipt | str:
    """Return the newest receipt of an image that counts, else why the newest does not."""
    repository = wanted.reference.repository
    listed = (
        policy.signed_receipts(client, repository, image.digest, rules.trusted)
        if rules.trusted
        else _unsigned(client, repository, image.digest)
    )
    problems = []
    for entry in listed:
        problem = entry.problem
        if entry.receipt is not None:
            judged = judge or judge_of(wanted.suite_of(entry.receipt))
            problem = (
                _problem(entry.receipt, image, labels, judged)
                or wanted.problem(entry.receipt)
                or rules.refusal(entry.receipt, datetime.now(UTC))
            )
            if not problem:
                return entry
        problems.append(problem)
    return problems[0] if problems else "no receipt refers to it"


def _unsigned(client: Registry, repository: str, image: str) -> Iterator[ListedReceipt]:
    """Yield the receipts of the image with this digest, whoever wrote them, the newest first."""
    for referrer in referrers.read(client, repository, image, RECEIPT_TYPE):
        receipt, problem = None, referrer.problem
        try:
            if not problem:
                receipt = receipts.parse(referrer.content, f"receipt {referrer.digest}")
        except InputError as error:
            problem = error.message
        yield ListedReceipt(receipt, problem, referrer.digest)


def _problem(receipt: Receipt, image: Manifest, labels: Mapping[str, str], judge: Judge) -> str:
    """Return why a receipt does not prove an image; "" where it does."""
    try:
        validity = judge(receipt, [image.digest if receipt.digest else image.config.digest], labels)
    except InputError as error:  # an accelerator that this factory does not know
        return error.message
    if not validity:
        return validity.reason
    labelled = labels.get(ACCELERATOR, receipt.accelerator)
    if labelled != receipt.accelerator:
        return f"its label says {labelled}, its receipt {receipt.accelerator}"
    return ""
