"""Signed statements beside an image in a registry: laid there, and found again.

Each is an OCI artifact that refers to the image's manifest, as cosign 3 writes it. The image and
its digest stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from builder import registry
from builder.core import parallel
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
    asked = [
        one
        for one in sorted(listed, key=_created, reverse=True)
        if not kind or one.annotations.get(KIND, kind) == kind
    ]

    def fetched(one: Descriptor) -> bytes | CheckFailed:
        try:
            return _bundle(there, where, one, image)
        except CheckFailed as error:
            return error

    signed, problems = [], []
    for one, data in zip(asked, parallel.each(fetched, asked), strict=True):
        try:
            found = _opened(data, one, image, trusted)
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
    said = [one.statement for one in known]
    new = [one for one in statements if one not in said]
    if not new:
        return ()

    def put(statement: Statement) -> Manifest:
        data = bundle.seal(statement, signer)
        there.put_blob(where.repository, data, new=True)
        return registry.artifact(
            bundle.MEDIA_TYPE,
            Descriptor.of(bundle.MEDIA_TYPE, data),
            {_CONTENT: "dsse-envelope", KIND: statement.kind, _CREATED: created},
            image.descriptor,
        )

    made, _ = parallel.both(
        lambda: parallel.each(put, new), lambda: there.put_blob(where.repository, registry.EMPTY)
    )
    referrers.attach(there, where.repository, *made)
    return tuple(one.digest for one in made)


def _bundle(there: Registry, where: Reference, one: Descriptor, image: str) -> bytes:
    """The bundle in an artifact that refers to the image. Raises CheckFailed for any other."""
    held = there.manifest(where.repository, one.digest)
    if held is None:
        raise CheckFailed(f"the statement {one.digest} is gone")
    if held.subject != image:
        raise CheckFailed(f"the statement that lies beside it refers to {held.subject}")
    if [layer.media_type for layer in held.layers] != [bundle.MEDIA_TYPE]:
        raise CheckFailed(f"what lies beside it as {bundle.MEDIA_TYPE} holds no bundle")
    return there.blob(where.repository, held.layers[0])


def _opened(
    data: bytes | CheckFailed, one: Descriptor, image: str, trusted: Sequence[Trusted]
) -> Signed:
    """The statement in a bundle. Raises CheckFailed where it does not count."""
    if isinstance(data, CheckFailed):
        raise data
    statement, signer = bundle.unseal(data, trusted)
    if statement.digest != image:
        raise CheckFailed(f"the statement that lies beside it is about {statement.digest}")
    return Signed(statement, signer, one.digest, len(data))


def _created(one: Descriptor) -> str:
    return one.annotations.get(_CREATED, "")
