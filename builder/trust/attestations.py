"""Attestations of an image in a registry: signed and attached as referrers, found and verified.

Each is an OCI artifact whose subject is the image's manifest, as cosign 3 writes it. The image and
its digest stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from builder import registry
from builder.core import parallel
from builder.core.errors import CheckFailed
from builder.registry import Descriptor, Manifest, Registry, referrers
from builder.registry.referrers import Referrer
from builder.trust import dsse
from builder.trust.dsse import Statement
from builder.trust.identities import OidcIdentity
from builder.trust.keyless import KeylessSigner
from builder.trust.keys import PublicKey, SigningKey

Signer = SigningKey | KeylessSigner
Trusted = PublicKey | OidcIdentity
"""A key or identity whose attestations count."""

PREDICATE_TYPE: Final = "dev.sigstore.bundle.predicateType"
"""Annotation of an attestation: the predicate type of its statement."""
_CONTENT: Final = "dev.sigstore.bundle.content"


@dataclass(frozen=True)
class Attestation:
    """A statement whose signature was verified."""

    statement: Statement
    signer: Trusted
    digest: str
    """Of the manifest of the referrer."""


@dataclass(frozen=True)
class Attestations:
    """The attestations of an image, the newest first, and why other referrers do not count."""

    verified: tuple[Attestation, ...]
    problems: tuple[str, ...]


def verify(bundle: bytes, trusted: Sequence[Trusted]) -> tuple[Statement, Trusted]:
    """Return the statement in a bundle, and which of `trusted` signed it.

    Raises CheckFailed where none of them did, or where these bytes are no such bundle.
    """
    refused = CheckFailed("it is signed by none of the keys that are trusted")
    for signer in trusted:
        try:
            payload = signer.verify(bundle)
        except CheckFailed as error:
            refused = error
        else:
            return dsse.statement(payload), signer
    raise refused


def find(
    client: Registry,
    repository: str,
    image: str,
    predicate_type: str | None,
    trusted: Sequence[Trusted],
) -> Attestations:
    """Return what `trusted` attest of the image with this digest.

    predicate_type: None for all. Raises OutsideError.
    """

    def chosen(entry: Descriptor) -> bool:
        return predicate_type in (None, entry.annotations.get(PREDICATE_TYPE, predicate_type))

    verified, problems = [], []
    for referrer in referrers.read(client, repository, image, dsse.BUNDLE, chosen):
        try:
            attestation = _verified(referrer, image, trusted)
        except CheckFailed as error:
            problems.append(error.message)
            continue
        if predicate_type in (None, attestation.statement.predicate_type):
            verified.append(attestation)
    return Attestations(tuple(verified), tuple(problems))


def attach(
    client: Registry,
    repository: str,
    image: Manifest,
    statements: Sequence[Statement],
    signer: Signer,
    created: str,
) -> tuple[str, ...]:
    """Sign the statements that this signer has not attested yet, and attach them to the image.

    created: ISO 8601, for the list of referrers. Returns the digests of the new manifests.
    """
    attested = find(client, repository, image.digest, None, (signer.public,)).verified
    known = [attestation.statement for attestation in attested]
    missing = [statement for statement in statements if statement not in known]
    if not missing:
        return ()

    def upload(statement: Statement) -> Manifest:
        bundle = signer.seal(statement.payload)
        client.put_blob(repository, bundle, new=True)
        annotations = {
            _CONTENT: "dsse-envelope",
            PREDICATE_TYPE: statement.predicate_type,
            referrers.CREATED: created,
        }
        content = Descriptor.of(dsse.BUNDLE, bundle)
        return registry.artifact(dsse.BUNDLE, content, annotations, image.descriptor)

    manifests, _ = parallel.both(
        lambda: parallel.each(upload, missing),
        lambda: client.put_blob(repository, registry.EMPTY),
    )
    referrers.attach(client, repository, *manifests)
    return tuple(manifest.digest for manifest in manifests)


def _verified(referrer: Referrer, image: str, trusted: Sequence[Trusted]) -> Attestation:
    """Verify an attestation of the image. Raises CheckFailed where it does not count."""
    if referrer.problem:
        raise CheckFailed(referrer.problem)
    statement, signer = verify(referrer.content, trusted)
    if statement.subject != image:
        raise CheckFailed(f"the attestation that refers to it is about {statement.subject}")
    return Attestation(statement, signer, referrer.digest)
