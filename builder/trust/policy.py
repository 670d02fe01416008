"""Whose attestations of an image count: the table [trust] of builder.toml, applied to a registry.

docs/trust.md has the same policy for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from builder.core.errors import InputError
from builder.core.settings import Identity, TrustSettings
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.registry import Registry
from builder.trust import attestations, dsse, keys
from builder.trust.attestations import Trusted
from builder.trust.identities import OidcIdentity

_CLOCKS: Final = 600.0
"""Seconds that the clocks of two machines may differ by."""


@dataclass(frozen=True)
class ListedReceipt:
    """A receipt that refers to an image, or why it does not count.

    digest: of the referrer. signer: the key or identity that signed it, "" for none.
    """

    receipt: Receipt | None
    problem: str = ""
    digest: str = ""
    signer: str = ""


def of(trust: TrustSettings) -> tuple[Trusted, ...]:
    """Return whose receipts count; () asks for no signature. Raises InputError for an unusable
    key."""
    return tuple(
        OidcIdentity(name.identity, name.issuer, trust.trusted_root)
        if isinstance(name, Identity)
        else keys.read_public(name)
        for name in trust.prove
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


def is_of_the_future(receipt: Receipt, now: datetime) -> bool:
    """Return whether a receipt was made later than now, whatever clocks differ by."""
    try:
        made_at = datetime.fromisoformat(receipt.made_at)
        return (made_at - now).total_seconds() > _CLOCKS
    except (ValueError, TypeError):
        return False
