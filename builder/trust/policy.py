"""Whose attestations of an image count: the table [trust] of builder.toml, applied to a registry.

docs/trust.md has the same policy for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from builder.core.errors import InputError
from builder.core.settings import Identity, TrustSettings
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.registry import Registry
from builder.trust import attestations, dsse, keys
from builder.trust.attestations import Trusted
from builder.trust.identities import OidcIdentity

_CLOCKS: Final = timedelta(minutes=10)
"""What the clocks of two machines may differ by."""


@dataclass(frozen=True)
class Policy:
    trusted: tuple[Trusted, ...] = ()
    """Those whose signature they need; () asks for none."""
    max_age: timedelta | None = None
    """None for any age."""
    on_gpu: Policy | None = None
    """Which receipts of a run on its GPU count, of which each image for a GPU then needs one; None
    asks for none."""

    def refusal(self, receipt: Receipt, now: datetime) -> str:
        """Return why the time of a receipt does not count; "" where it does."""
        age = now - receipt.time
        if age < -_CLOCKS:
            return f"its receipt is of the future: {receipt.made_at}"
        if self.max_age is not None and age > self.max_age + _CLOCKS:
            days = self.max_age / timedelta(days=1)
            return f"its receipt of {receipt.made_at} is older than [trust] max_age, {days:g} days"
        return ""


@dataclass(frozen=True)
class ListedReceipt:
    """A receipt that refers to an image, or why it does not count."""

    receipt: Receipt | None
    problem: str = ""
    digest: str = ""
    """Of the referrer."""
    signer: str = ""
    """The key or identity that signed it, "" for none."""


def of(trust: TrustSettings, on_gpu: bool = False) -> Policy:
    """Return which receipts count. on_gpu: ask for a run on the GPU, also where [trust] does not.
    Raises InputError for an unusable key."""
    who = trust.on_gpu or trust.prove
    asked = on_gpu or bool(trust.on_gpu)
    ran = Policy(signers(trust, who), trust.oldest) if asked else None
    return Policy(signers(trust, trust.prove), trust.oldest, ran)


def signers(trust: TrustSettings, names: Sequence[str | Identity]) -> tuple[Trusted, ...]:
    """Return the keys and identities of these names. Raises InputError for an unusable key."""
    return tuple(
        OidcIdentity(name.identity, name.issuer, trust.trusted_root)
        if isinstance(name, Identity)
        else keys.read_public(name)
        for name in names
    )


def signed_receipts(
    client: Registry, repository: str, image: str, prove: Sequence[Trusted]
) -> Iterator[ListedReceipt]:
    """Yield the receipts of the image with this digest that one of `prove` signed, newest first.

    Those that do not count come last, each with its reason.
    """
    listed = attestations.find(client, repository, image, dsse.RECEIPT, prove)
    for attestation in listed.verified:
        try:
            receipt = receipts.of_json(attestation.statement.predicate, "the signed receipt")
        except InputError as error:
            yield ListedReceipt(None, error.message)
            continue
        yield ListedReceipt(receipt, "", attestation.digest, attestation.signer.source)
    yield from (ListedReceipt(None, problem) for problem in listed.problems)
    if not listed.verified and not listed.problems:
        yield ListedReceipt(None, "no signed receipt is attached to it")
