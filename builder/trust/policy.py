"""Whose attestations of an image count: the table [trust] of builder.toml, applied to a registry.

docs/trust.md has the same policy for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from builder.core.errors import CheckFailed, InputError
from builder.core.settings import SUITES, Identity, Suite, TrustSettings
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.registry import Reference, Registry
from builder.trust import attestations, dsse, keys, provenance
from builder.trust.attestations import Trusted
from builder.trust.identities import OidcIdentity

DAY: Final = 86400.0
_CLOCKS: Final = 600.0
"""Seconds that the clocks of two machines may differ by."""


@dataclass(frozen=True)
class Policy:
    """The table [trust], its public keys read. suite, age: as TrustSettings has them."""

    prove: tuple[Trusted, ...]
    build: tuple[Trusted, ...]
    suite: Suite | None
    age: float | None

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites of checks that are enough."""
        return SUITES[SUITES.index(self.suite) if self.suite else 0 :]


@dataclass(frozen=True)
class ListedReceipt:
    """A receipt that refers to an image, or why it does not count.

    digest: of the referrer. signer: the key or identity that signed it, "" for none.
    """

    receipt: Receipt | None
    problem: str = ""
    digest: str = ""
    signer: str = ""


def of(trust: TrustSettings) -> Policy | None:
    """Return what counts; None where no signer is named. Raises InputError for an unusable key."""
    if not trust.prove:
        return None
    prove = tuple(_trusted(name, trust.trusted_root) for name in trust.prove)
    build = tuple(_trusted(name, trust.trusted_root) for name in trust.build)
    return Policy(prove, build or prove, trust.suite, trust.age)


def _trusted(name: str | Identity, root: str | None) -> Trusted:
    if isinstance(name, Identity):
        return OidcIdentity(name.identity, name.issuer, root)
    return keys.read_public(name)


def signed_receipts(
    client: Registry, repository: str, image: str, policy: Policy
) -> Iterator[ListedReceipt]:
    """Yield the receipts of the image with this digest that one of `prove` signed, newest first.

    Those that do not count come last, each with its reason.
    """
    listed = attestations.find(client, repository, image, dsse.RECEIPT, policy.prove)
    for attestation in listed.verified:
        try:
            receipt = receipts.of_json(attestation.statement.predicate, "the signed receipt")
        except InputError as error:
            yield ListedReceipt(None, error.message)
            continue
        problem = refusal(receipt, policy, datetime.now(UTC))
        yield ListedReceipt(
            None if problem else receipt, problem, attestation.digest, attestation.signer.source
        )
    yield from (ListedReceipt(None, problem) for problem in listed.problems)
    if not listed.verified and not listed.problems:
        yield ListedReceipt(None, "no signed receipt is attached to it")


def refusal(receipt: Receipt, policy: Policy, now: datetime) -> str:
    """Return why a receipt is not enough for the policy; "" where it is."""
    if receipt.suite not in policy.suites:
        return f"its receipt is of the suite {receipt.suite}, and {policy.suites[0]} is the least"
    try:
        age = (now - datetime.fromisoformat(receipt.made_at)).total_seconds()
    except (ValueError, TypeError):
        return f"its receipt gives no time that can be read: {receipt.made_at!r}"
    if policy.age is not None and age > policy.age:
        return (
            f"it was proven {age / DAY:.1f} days ago, and {policy.age / DAY:.1f} days are the most"
        )
    return ""


def is_of_the_future(receipt: Receipt, now: datetime) -> bool:
    """Return whether a receipt was made later than now, whatever clocks differ by."""
    try:
        made_at = datetime.fromisoformat(receipt.made_at)
        return (made_at - now).total_seconds() > _CLOCKS
    except (ValueError, TypeError):
        return False


def check_base(
    client: Registry, repository: Reference, digest: str, tag: str, policy: Policy
) -> None:
    """Raise CheckFailed where none of `build` attests that this is the base of this tag.

    digest: of the manifest that the tag leads to. The provenance names the tag, so that the tag
    cannot be moved to another base, however well that one is signed.
    """
    listed = attestations.find(client, repository.repository, digest, dsse.PROVENANCE, policy.build)
    tags = {provenance.base_of(each.statement.predicate) for each in listed.verified}
    if tag not in tags:
        problem = next(iter(listed.problems), "nothing signed is attached to it")
        reason = f"it is signed as {', '.join(sorted(tags))}" if tags else problem
        raise CheckFailed(
            f"{repository.tagged(tag)} ({digest}) is not trusted: {reason}",
            "do not build on it; push it signed: builder push TARGET --key KEY",
        )
