"""Whose statements about an image count, and whether they do: the table [trust] of builder.toml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from builder.core.errors import CheckFailed
from builder.core.trustsettings import SUITES, NamedIdentity, TrustSettings
from builder.prove.receipts import Receipt
from builder.registry import Reference, Registry
from builder.trust import beside, keys, provenance, statements
from builder.trust.bundle import Trusted
from builder.trust.identities import OidcIdentity

DAY: Final = 86400.0


@dataclass(frozen=True)
class Policy:
    """The table [trust], its public keys read. suite, age: as TrustSettings has them."""

    prove: tuple[Trusted, ...]
    build: tuple[Trusted, ...]
    suite: str
    age: float | None


@dataclass(frozen=True)
class ListedReceipt:
    """A receipt beside an image, or why one there does not count.

    digest: of the manifest that holds it. signer: the key or identity that signed it, "" for none.
    """

    receipt: Receipt | None
    problem: str = ""
    digest: str = ""
    signer: str = ""


def of(trust: TrustSettings) -> Policy | None:
    """What counts; None where no keys are named. Raises InputError for a key that is none."""
    if not trust.prove:
        return None
    prove = tuple(_trusted(one, trust.trusted_root) for one in trust.prove)
    build = tuple(_trusted(one, trust.trusted_root) for one in trust.build)
    return Policy(prove, build or prove, trust.suite, trust.age)


def _trusted(written: str | NamedIdentity, root: str | None) -> Trusted:
    if isinstance(written, NamedIdentity):
        return OidcIdentity(written.identity, written.issuer, root)
    return keys.public(written)


def receipts(
    there: Registry, where: Reference, image: str, policy: Policy
) -> Iterator[ListedReceipt]:
    """The receipts of the image with this digest that one of `prove` signed, newest first.

    Those that do not count come last, each with its reason.
    """
    found = beside.find(there, where, image, statements.RECEIPT, policy.prove)
    for one in found.signed:
        try:
            receipt = statements.receipt_in(one.statement)
        except CheckFailed as error:
            yield ListedReceipt(None, error.message)
            continue
        problem = refusal(receipt, policy, datetime.now(UTC))
        yield ListedReceipt(None if problem else receipt, problem, one.digest, one.signer.source)
    yield from (ListedReceipt(None, problem) for problem in found.problems)
    if not found.signed and not found.problems:
        yield ListedReceipt(None, "no signed receipt lies beside it")


def refusal(receipt: Receipt, policy: Policy, now: datetime) -> str:
    """Why a receipt is not enough for `policy`; "" where it is."""
    if policy.suite and SUITES.index(receipt.suite) < SUITES.index(policy.suite):
        return f"its receipt is of the suite {receipt.suite}, and {policy.suite} is the least"
    if policy.age is None:
        return ""
    try:
        made = datetime.fromisoformat(receipt.made_at)
        age = (now - made).total_seconds()
    except (ValueError, TypeError):
        return f"its receipt says no time that can be read: {receipt.made_at!r}"
    if age > policy.age:
        return (
            f"it was proven {age / DAY:.1f} days ago, and {policy.age / DAY:.1f} days are the most"
        )
    return ""


def check_base(there: Registry, where: Reference, digest: str, tag: str, policy: Policy) -> None:
    """Raise CheckFailed where none of `build` signed that this is the base of this tag.

    digest: of the manifest that the tag leads to. The provenance names the tag, so that the tag
    cannot be moved to another base, however well that one is signed.
    """
    found = beside.find(there, where, digest, provenance.KIND, policy.build)
    tags = {provenance.base_of(one.statement.predicate) for one in found.signed}
    if tag in tags:
        return
    why = f"it is signed as {', '.join(sorted(tags))}" if tags else found.problem
    raise CheckFailed(
        f"{where.tagged(tag)} ({digest}) is not trusted: {why}",
        "do not build on it; push it signed: builder push TARGET --key KEY",
    )
