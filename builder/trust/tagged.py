"""The signature and the receipt once more, under the tags where cosign 2 put them.

Admission controllers still read these tags alone where a key signs: Google's Binary Authorization
(`.sig`) and Sigstore's policy-controller (`.att`); its checkOptsFromAuthority in
pkg/webhook/validator.go takes bundles of identities only. Sources: sigstore/cosign,
specs/SIGNATURE_SPEC.md and specs/ATTESTATION_SPEC.md.
"""

from __future__ import annotations

import base64
import functools
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from builder import registry
from builder.core import parallel
from builder.core.errors import CheckFailed, OutsideError
from builder.registry import Descriptor, Manifest, Reference, Registry, fallback_tag, manifests
from builder.trust import envelope
from builder.trust.bundle import Statement
from builder.trust.keys import KeySigner

_SIMPLE: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
_ENVELOPE: Final = "application/vnd.dsse.envelope.v1+json"
_SIGNATURE: Final = "dev.cosignproject.cosign/signature"
_KIND: Final = "predicateType"
_ATTEMPTS: Final = 10


@dataclass(frozen=True)
class TaggedEntry:
    """One layer of a tag. data: what is signed; descriptor: as the manifest lists it."""

    data: bytes
    descriptor: Descriptor


def attach(
    there: Registry, where: Reference, image: Manifest, receipt: Statement, signer: KeySigner
) -> None:
    """Put a signature and a signed receipt under the image's tags, unless they are there.

    Raises OutsideError where others keep overwriting the tags.
    """
    payload = _payload(where, image)

    def signed(one: Descriptor) -> bool:
        return one.digest == registry.digest_of(payload) and _accepted(one, payload, signer)

    def says(one: Descriptor) -> bool:
        if one.annotations.get(_KIND) != receipt.kind:
            return False
        sealed = b'{"dsseEnvelope":%s}' % there.blob(where.repository, one)
        try:
            return signer.public.opened(sealed) == receipt.payload
        except CheckFailed:
            return False

    tag = fallback_tag(image.digest)
    parallel.both(
        lambda: _put(there, where, f"{tag}.sig", signed, lambda: _entry(payload, signer)),
        lambda: _put(there, where, f"{tag}.att", says, lambda: _sealed(receipt, signer)),
    )


def copy(
    source: Registry, where: Reference, target: Registry, to: Reference, image: Manifest
) -> None:
    """Put what lies under the image's tags under those of another repository, beside what is there.

    Raises what `attach` raises.
    """
    for suffix in ("sig", "att"):
        tag = f"{fallback_tag(image.digest)}.{suffix}"
        found = source.manifest(where.repository, tag)
        for layer in found.layers if found else ():
            brought = functools.partial(_brought, source, where, layer)
            _put(target, to, tag, functools.partial(operator.eq, layer), brought)


def _brought(source: Registry, where: Reference, layer: Descriptor) -> TaggedEntry:
    return TaggedEntry(source.blob(where.repository, layer), layer)


def _payload(where: Reference, image: Manifest) -> bytes:
    """What `cosign sign` of version 2 signs: which image, and where it lay."""
    content = {
        "critical": {
            "identity": {"docker-reference": where.name},
            "image": {"docker-manifest-digest": image.digest},
            "type": "cosign container image signature",
        },
        "optional": None,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _entry(payload: bytes, signer: KeySigner) -> TaggedEntry:
    signature = base64.b64encode(signer.sign(payload)).decode()
    described = replace(Descriptor.of(_SIMPLE, payload), annotations={_SIGNATURE: signature})
    return TaggedEntry(payload, described)


def _sealed(statement: Statement, signer: KeySigner) -> TaggedEntry:
    content = envelope.content(statement.payload, signer.sign(envelope.signed(statement.payload)))
    data = json.dumps(content, separators=(",", ":")).encode()
    notes = {_SIGNATURE: "", _KIND: statement.kind}
    return TaggedEntry(data, replace(Descriptor.of(_ENVELOPE, data), annotations=notes))


def _accepted(one: Descriptor, payload: bytes, signer: KeySigner) -> bool:
    """Whether this key made the signature of a layer."""
    try:
        signature = base64.b64decode(one.annotations.get(_SIGNATURE, ""), validate=True)
    except ValueError:
        return False
    return signer.public.accepts(signature, payload)


def _put(
    there: Registry,
    where: Reference,
    tag: str,
    is_there: Callable[[Descriptor], bool],
    make: Callable[[], TaggedEntry],
) -> None:
    """Add a layer to a tag, beside those of others, and read back that it is there."""
    made: TaggedEntry | None = None
    for _ in range(_ATTEMPTS):
        found = there.manifest(where.repository, tag)
        held = found.layers if found else ()
        if (made and made.descriptor in held) or any(is_there(one) for one in held):
            return
        made = made or make()
        layers = (*held, made.descriptor)
        config = manifests.of_blobs(layers)
        parallel.each(
            lambda data: there.put_blob(where.repository, data, new=True), (made.data, config)
        )
        listed = manifests.image(Descriptor.of(manifests.OCI_CONFIG, config), layers)
        there.put_manifest(where.repository, tag, listed)
    raise OutsideError(
        f"{where.name}:{tag}: others keep overwriting this tag",
        "run this again when no other push of this image runs",
    )
