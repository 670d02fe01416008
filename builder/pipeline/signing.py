"""What a push signs about an image and its base: from the files that they were made of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from builder.core import parallel, project
from builder.core.errors import InputError
from builder.core.trustsettings import KEYLESS, TrustSettings
from builder.lock import model
from builder.lock.model import Lock
from builder.pipeline import prepare, tags
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord
from builder.prove import wheels
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry, manifests
from builder.spec.advisories import AcceptedAdvisory
from builder.trust import beside, keys, layers, sbom, statements, tagged, vex
from builder.trust.bundle import Signer, Statement
from builder.trust.keyless import KeylessSigner
from builder.trust.keys import KeySigner
from builder.trust.provenance import HowMade


@dataclass(frozen=True)
class About:
    """All that is signed about an image besides its receipt.

    lock, read: what its bill of materials is written from. accepted: the advisories that its
    image.yaml accepts. program: the name of the program in it.
    made, base_made: how the image and its base were made; None for a published base.
    """

    lock: Lock
    read: wheels.Read
    accepted: tuple[AcceptedAdvisory, ...]
    program: str
    made: HowMade
    base_made: HowMade | None


def key_of(trust: TrustSettings) -> KeySigner | None:
    """The key that a push signs with; None where it signs nothing, or without a key."""
    return keys.signer(trust.key) if trust.key and trust.key != KEYLESS else None


def about(root: Path, record: ImageRecord, version: str) -> About:
    """What can be said of the image that the last build of a target made.

    version: of the factory. Raises InputError where the target's files are no longer those of the
    build, besides what prepare.prepare raises.
    """
    item = prepare.prepare(root, record.target)
    if item.plan.inputs_hash != record.inputs:
        raise InputError(
            f"{record.target}: its files changed since the build, and only what is true is signed",
            f"builder image {record.target}",
        )
    source = tags.source(root)
    tag = item.plan.base.tag if item.plan.base else ""
    locks = _locks(item)
    base = record.base_digest
    made = HowMade(
        record.target,
        tag,
        record.inputs,
        locks | _program(item) | ({tag: base.removeprefix("sha256:")} if base else {}),
        source,
        record.engine,
        version,
    )
    base_made = None
    if item.plan.base:
        base_made = HowMade("", tag, item.plan.base.hash, locks, source, record.engine, version)
    program, accepted = item.spec.trainer.package, item.spec.advisories
    return About(item.lock, wheels.read(root), accepted, program, made, base_made)


def said(
    there: Registry, where: Reference, image: Manifest, receipt: Receipt, known: About | None
) -> dict[Manifest, tuple[Statement, ...]]:
    """What is said about an image, and about the base that lies beside it in the registry.

    known: None says nothing of what they are made of.
    """
    tag = known.base_made.base if known and known.base_made else None
    of_image, base = parallel.both(
        lambda: _of_image(there, where, image, receipt, known),
        lambda: there.manifest(where.repository, tag) if tag else None,
    )
    found = {image: of_image}
    if known and known.base_made and base:
        made = statements.of_provenance(base.digest, known.base_made, os.environ)
        found[base] = (statements.signature(base.digest), made)
    return found


def _of_image(
    there: Registry, where: Reference, image: Manifest, receipt: Receipt, known: About | None
) -> tuple[Statement, ...]:
    said = [statements.signature(image.digest), statements.of_receipt(image.digest, receipt)]
    if known:
        configuration = there.configuration(where.repository, image)
        subject = sbom.BillSubject(
            where=where,
            digest=image.digest,
            labels=manifests.labels_in(configuration),
            layers=layers.of(image, configuration),
            program=known.program,
            libraries=_libraries(receipt),
            made_at=receipt.made_at,
            made_by=receipt.made_by,
        )
        said.append(statements.of_bill(image.digest, sbom.bill(subject, known.lock, known.read)))
        said.append(statements.of_provenance(image.digest, known.made, os.environ))
        told = vex.document(subject.purl, known.accepted, known.lock, receipt.made_at, _today())
        if told["statements"]:
            said.append(statements.of_vex(image.digest, told))
    return tuple(said)


def sign(
    there: Registry,
    where: Reference,
    said: Mapping[Manifest, tuple[Statement, ...]],
    signer: Signer,
    created: str,
) -> tuple[str, ...]:
    """Sign what does not lie beside each image yet; the digests of the new manifests.

    created: ISO 8601, for the list of referrers.
    """
    deeds: list[Callable[[], Sequence[str] | None]] = []
    for image, each in said.items():
        deeds.append(partial(beside.attach, there, where, image, each, signer, created))
        if not isinstance(signer, KeylessSigner):
            receipts = (one for one in each if one.kind == statements.RECEIPT)
            deeds += [partial(tagged.attach, there, where, image, one, signer) for one in receipts]
    return tuple(
        digest for made in parallel.each(lambda deed: deed(), deeds) for digest in made or ()
    )


def _today() -> date:
    return datetime.now(UTC).date()


def _libraries(receipt: Receipt) -> tuple[str, ...]:
    """The libraries that the check of device code saw in the image."""
    seen = (check.seen.get("libraries") for check in receipt.checks if check.name == "device-code")
    return tuple(path for found in seen if isinstance(found, dict) for path in found)


def _locks(item: Prepared) -> dict[str, str]:
    """The committed files that decide a base: path -> sha256 in hex."""
    folder = f"{project.IMAGES}/{item.target}"
    texts = {f"{folder}/{name}": text for name, text in item.lock.files.items()}
    texts[f"{folder}/{model.FILE}"] = item.lock.document
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _program(item: Prepared) -> dict[str, str]:
    """The files of the program in the image: path -> sha256 in hex."""
    return {
        f"/{name}": hashlib.sha256(file.content).hexdigest()
        for name, file in item.plan.image.files.items()
    }
