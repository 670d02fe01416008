"""What a push attests of an image and its base: from the files that they were built from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.config import lockfile
from builder.config.lockfile import Lock
from builder.config.targets import TargetFiles
from builder.core import parallel, project
from builder.core.errors import InputError
from builder.core.settings import KEYLESS, TrustSettings
from builder.pipeline.make import prepared
from builder.pipeline.records import ImageRecord
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry
from builder.trust import attestations, dsse, keyless, keys, provenance
from builder.trust.attestations import Signer
from builder.trust.dsse import Statement
from builder.trust.keys import SigningKey
from builder.trust.provenance import Build


@dataclass(frozen=True)
class Contents:
    """What is attested of an image besides its receipt."""

    lock: Lock
    """What its bill of materials is written from."""
    program: str
    build: Build
    base_build: Build | None
    """`build` and `base_build`: of the image and of its base, None for a published base."""


def key_of(trust: TrustSettings) -> SigningKey | None:
    """Return the key that a push signs with; None where it signs nothing, or without a key."""
    return keys.read_private(trust.key) if trust.key and trust.key != KEYLESS else None


def signer_of(trust: TrustSettings) -> Signer:
    """Return whoever signs by [trust]. Raises InputError where it names nobody."""
    if trust.key is None:
        raise InputError("no key is named to sign with", "name one: --key FILE.key, or keyless")
    return key_of(trust) or keyless.signer(trust, os.environ)


def contents(target: TargetFiles, record: ImageRecord, version: str) -> Contents:
    """Return what can be attested of the image that the last build of a target made.

    version: of the factory. Raises InputError where the target's files are no longer those of the
    build, besides what make.prepared raises.
    """
    item = prepared(target)
    if item.inputs != record.inputs:
        raise InputError(
            f"{record.target}: its files changed since the build, and only what is true is signed",
            f"builder image {record.target}",
        )
    folder, source = f"{project.IMAGES}/{item.name}", provenance.source_of(target.root)
    texts = {**item.lock.files, lockfile.FILE: item.lock.document}
    locks = _hashes({f"{folder}/{name}": text.encode() for name, text in texts.items()})
    program = {f"/{name}": file.content for name, file in item.image.files.items()}
    tag, base_build, files = "", None, locks | _hashes(program)
    if base := item.base:
        tag = base.tag
        base_build = Build("", tag, base.hash, locks, source, record.engine, version)
        if record.base_digest:
            files |= {tag: record.base_digest.removeprefix("sha256:")}
    build = Build(record.target, tag, record.inputs, files, source, record.engine, version)
    chosen = item.spec.program
    named = Path(chosen.folder).name or chosen.module
    return Contents(item.lock, named, build, base_build)


def statements(
    client: Registry,
    image: Reference,
    manifest: Manifest,
    receipt: Receipt,
    contents: Contents | None,
) -> dict[Manifest, tuple[Statement, ...]]:
    """Return the statements about an image, and about its base in the same repository.

    contents: None says nothing of what they are made of.
    """
    digest = manifest.digest
    about_image = (
        Statement(digest, dsse.SIGNATURE, {}),
        Statement(digest, dsse.RECEIPT, receipt.model_dump(mode="json")),
    )
    if contents is None:
        return {manifest: about_image}
    from builder.trust import sbom  # slow to import

    described = sbom.DescribedImage(
        name=image,
        digest=digest,
        program=contents.program,
        pruned=client.labels(image.repository, manifest).get(f"{sbom.PREFIX}.runs-on", ""),
        made_at=receipt.made_at,
        made_by=receipt.made_by,
    )
    build = provenance.predicate(contents.build, os.environ)
    about: dict[Manifest, tuple[Statement, ...]] = {
        manifest: (
            *about_image,
            Statement(digest, dsse.SBOM, sbom.bill(described, contents.lock)),
            Statement(digest, dsse.PROVENANCE, build),
        )
    }
    base_build = contents.base_build
    if base_build and (base := client.manifest(image.repository, base_build.base)):
        build = provenance.predicate(base_build, os.environ)
        about[base] = (
            Statement(base.digest, dsse.SIGNATURE, {}),
            Statement(base.digest, dsse.PROVENANCE, build),
        )
    return about


def attest(
    client: Registry,
    image: Reference,
    manifest: Manifest,
    receipt: Receipt,
    contents: Contents | None,
    trust: TrustSettings,
    key: SigningKey | None,
) -> tuple[str, ...]:
    """Attest an image and its base where [trust] says who signs; return the digests of what was
    signed now. key: what `key_of` returned, None for an identity."""
    if not trust.key:
        return ()
    about = statements(client, image, manifest, receipt, contents)
    # a certificate is for ten minutes, and to send the image may have taken longer
    signer = key or keyless.signer(trust, os.environ)
    return sign(client, image.repository, about, signer, receipt.made_at)


def sign(
    client: Registry,
    repository: str,
    statements: Mapping[Manifest, tuple[Statement, ...]],
    signer: Signer,
    created: str,
) -> tuple[str, ...]:
    """Attach the statements that this signer has not attested yet; return their digests.

    created: ISO 8601, for the list of referrers.
    """
    attached = parallel.each(
        lambda each: attestations.attach(client, repository, *each, signer, created),
        statements.items(),
    )
    return tuple(digest for digests in attached for digest in digests)


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
