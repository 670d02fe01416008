"""Signed statements beside an image in a registry: laid there, and found again.

Each is an OCI artifact that refers to the image's manifest, as cosign 3 writes it. The image and
its digest stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from builder import registry
from builder.core.errors import CheckFailed
from builder.registry import Descriptor, Manifest, Reference, Registry, referrers
from builder.trust import bundle
from builder.trust.bundle import Signer, Statement, Trusted

_CONTENT: Final = "dev.sigstore.bundle.content"
KIND: Final = "dev.sigstore.bundle.predicateType"
"""Annotation of a statement: its type."""
_CREATED: Final = "org.opencontainers.image.created"


@dataclass(frozen=True)
class Signed:
    """A statement whose signature was checked. digest: of the manifest that holds it."""

    statement: Statement
    signer: Trusted
    digest: str
    size: int


@dataclass(frozen=True)
class Statements:
    """The statements beside an image, the newest first, and why others do not count."""

    signed: tuple[Signed, ...]
    problems: tuple[str, ...]

    @property
    def problem(self) -> str:
        """One line for a person: why nothing counts."""
        return self.problems[0] if self.problems else "no signed statement lies beside it"


def find(
    there: Registry, where: Reference, image: str, kind: str | None, trusted: Sequence[Trusted]
) -> Statements:
    """What these signers say of this kind, or of any, about the image with this digest.

    Raises CheckFailed where the registry has other bytes than a digest names, OutsideError.
    """
    listed = there.referrers(where.repository, image, bundle.MEDIA_TYPE)
    signed, problems = [], []
    for one in sorted(listed, key=_created, reverse=True):
        if kind and one.annotations.get(KIND, kind) != kind:
            continue
        try:
            found = _read(there, where, one, image, trusted)
        except CheckFailed as error:
            problems.append(error.message)
            continue
        if kind in (None, found.statement.kind):
            signed.append(found)
    return Statements(tuple(signed), tuple(problems))


def attach(
    there: Registry,
    where: Reference,
    image: Manifest,
    statements: Sequence[Statement],
    signer: Signer,
    created: str,
) -> tuple[str, ...]:
    """Sign the statements that do not lie beside the image yet, and put them there.

    created: ISO 8601, for the list of referrers. Returns the digests of the new manifests.
    """
    known = find(there, where, image.digest, None, (signer.public,)).signed
    made = []
    for statement in statements:
        if any(one.statement == statement for one in known):
            continue
        data = bundle.seal(statement, signer)
        there.put_blob(where.repository, data)
        made.append(
            registry.artifact(
                bundle.MEDIA_TYPE,
                Descriptor.of(bundle.MEDIA_TYPE, data),
                {_CONTENT: "dsse-envelope", KIND: statement.kind, _CREATED: created},
                image.descriptor,
            )
        )
    if made:
        there.put_blob(where.repository, registry.EMPTY)
        referrers.attach(there, where.repository, *made)
    return tuple(one.digest for one in made)


def _read(
    there: Registry, where: Reference, one: Descriptor, image: str, trusted: Sequence[Trusted]
) -> Signed:
    """The statement in one artifact. Raises CheckFailed where it does not count."""
    held = there.manifest(where.repository, one.digest)
    if held is None:
        raise CheckFailed(f"the statement {one.digest} is gone")
    if held.subject != image:
        raise CheckFailed(f"the statement that lies beside it refers to {held.subject}")
    if [layer.media_type for layer in held.layers] != [bundle.MEDIA_TYPE]:
        raise CheckFailed(f"what lies beside it as {bundle.MEDIA_TYPE} holds no bundle")
    data = there.blob(where.repository, held.layers[0])
    statement, signer = bundle.unseal(data, trusted)
    if statement.digest != image:
        raise CheckFailed(f"the statement that lies beside it is about {statement.digest}")
    return Signed(statement, signer, one.digest, len(data))


def _created(one: Descriptor) -> str:
    return one.annotations.get(_CREATED, "")
