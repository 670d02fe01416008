"""A page about an image for a colleague: one HTML file, from the last build or from a registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packageurl import PackageURL

from builder.config.accepted_advisories import AcceptedAdvisory
from builder.core.errors import CheckFailed, FactoryError, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.image.content_store import base_layers
from builder.pipeline import advisories as project
from builder.pipeline import make, records, repository, signing, verify
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry, manifests
from builder.trust import advisories, attestations, dsse, policy, sbom
from builder.trust.advisories import Finding
from builder.trust.policy import Policy

_NAME_AND_VERSION = re.compile(r"[\w.+-]+ [\w.+!~:-]*\d[\w.+!~:-]*")
Findings = Mapping[Finding, AcceptedAdvisory | None]


@dataclass(frozen=True)
class PageLayer:
    """A layer. size: packed, in bytes; of its downloads where it was never packed on this machine.
    packages: `name version` each."""

    name: str
    size: int
    packages: Sequence[str]


@dataclass(frozen=True)
class ImagePage:
    """What the page says.

    facts: by name. proof: the receipt that holds; problem: why none does. attested: predicate type
    and signer of each attestation. advisories: package, id, and why it is accepted, or "open".
    not_looked_up: why no advisories were, "" where they were.
    """

    title: str
    facts: Mapping[str, str]
    layers: Sequence[PageLayer]
    proof: Receipt | None
    problem: str = ""
    attested: tuple[tuple[str, str], ...] = ()
    advisories: tuple[tuple[str, str, str], ...] = ()
    not_looked_up: str = ""

    @property
    def size(self) -> int:
        """The bytes that a pull transfers."""
        return sum(layer.size for layer in self.layers)

    @property
    def packages(self) -> dict[str, tuple[str, str]]:
        """Package -> its version, and its layer."""
        return {
            name: (version, layer.name)
            for layer in self.layers
            for name, _, version in (package.partition(" ") for package in layer.packages)
            if version
        }

    @property
    def libraries(self) -> Mapping[str, str]:
        """Library with device code -> what it means for the GPU, as the proof saw it."""
        return signing.libraries(self.proof) if self.proof else {}


def of_target(root: Path, target: str, address: str, today: date) -> ImagePage:
    """Return the page of a target's last build.

    Raises InputError where it was not built, or has changed since.
    """
    record = records.read(root, target)
    if record is None:
        raise InputError(f"{target}: not built yet", f"builder image {target}; or name an image")
    item = make.prepare(root, target)
    if item.inputs != record.inputs:
        raise InputError(f"{target}: its files changed since the build", f"builder image {target}")
    receipt = receipts.read(records.folder(root, target) / receipts.FILE)
    validity = receipts.valid_for(receipt, [record.digest or "", record.image_id], {})
    layers = [
        PageLayer(row["name"], row["packed_bytes"] or row["download_bytes"] or 0, row["packages"])
        for row in (base_layers(item.base) if item.base else ())
    ]
    known, reason = _looked_up(
        lambda: project.check(root, [target], address, today).targets[target]
    )
    return ImagePage(
        title=target,
        facts={
            "image": record.reference,
            "digest": record.digest or record.image_id,
            "accelerator": item.spec.accelerator,
            "TensorFlow": record.tensorflow,
            "device code pruned": record.prune,
            "made by": record.engine,
        },
        layers=layers,
        proof=receipt if validity else None,
        problem=validity.reason,
        advisories=known,
        not_looked_up=reason,
    )


def of_reference(
    reference: str, settings: Settings, address: str, on_event: OnEvent = ignore
) -> ImagePage:
    """Return the page of an image in a registry. What none of [trust]'s signers signed is left out.

    Raises OutsideError where there is no such image, CheckFailed for a list of images.
    """
    image, trusted = repository.resolve(reference, settings), policy.of(settings.trust)
    with repository.opened(image, on_event, f"read {image}") as client:
        manifest = verify.single(client, image)
        proof, problem, signer = None, "", ""
        try:
            verification, _ = verify.proven(client, image, verify.judge_of(), trusted)
            proof, signer = verification.receipt, verification.signer
        except CheckFailed as error:
            problem = error.message
        layers = _layers(client, image, manifest)
        bill, attested = _attested(client, image, manifest, trusted)
        labels = client.labels(image.repository, manifest)
    known, reason = _looked_up(lambda: _of_bill(bill, address))
    return ImagePage(
        title=str(image),
        facts={
            "image": str(image),
            "digest": manifest.digest,
            "accelerator": labels.get(verify.ACCELERATOR, "unknown"),
            "proven by": signer or ("whoever may write there" if proof else "nobody"),
        },
        layers=layers,
        proof=proof,
        problem=problem,
        attested=attested,
        advisories=known,
        not_looked_up=reason,
    )


def html(page: ImagePage, costs: Mapping[str, str]) -> str:
    """Return the page as one file that runs no script and loads nothing. costs: by name."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["licence"] = sbom.licence
    return environment.get_template("report.html.j2").render(page=page, costs=costs)


def _looked_up(look_up: Callable[[], Findings]) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """Return the rows of advisories, the open ones first, or why nothing could be looked up."""
    try:
        findings = look_up()
    except FactoryError as error:
        return (), error.message
    rows = [
        (str(finding.package), finding.id, f"accepted until {entry.until}: {entry.reason}")
        if entry
        else (str(finding.package), finding.id, "open")
        for finding, entry in findings.items()
    ]
    return tuple(sorted(rows, key=lambda row: row[2] != "open")), ""


def _of_bill(bill: Mapping[str, Any] | None, address: str) -> Findings:
    """Look up the packages of a bill of materials. Raises OutsideError where there is none."""
    if bill is None:
        raise OutsideError("no signed bill of materials is attached, or [trust] names no signer")
    try:
        components = [each for each in bill["components"] if "purl" in each]
        purls = [PackageURL.from_string(component["purl"]) for component in components]
    except (ValueError, KeyError, TypeError) as error:
        raise OutsideError(f"its bill of materials cannot be read: {error}") from None
    return dict.fromkeys(advisories.look_up(advisories.package_versions(purls), address))


def _layers(client: Registry, image: Reference, manifest: Manifest) -> list[PageLayer]:
    """Return the layers, as the image's own history names them."""
    texts = manifests.history(client.configuration(image.repository, manifest))
    layers = []
    for text, layer in zip([*texts, *[""] * len(manifest.layers)], manifest.layers, strict=False):
        ours = re.fullmatch(r"builder: (?P<name>[^:]*)(?:: (?P<packages>.*))?", text)
        name = ours["name"] if ours else text[:80] or "a layer"
        packages = ours["packages"].split(", ") if ours and ours["packages"] else []
        if not packages and _NAME_AND_VERSION.fullmatch(name):
            packages = [name]
        layers.append(PageLayer(name, layer.size, packages))
    return layers


def _attested(
    client: Registry, image: Reference, manifest: Manifest, trusted: Policy | None
) -> tuple[Mapping[str, Any] | None, tuple[tuple[str, str], ...]]:
    """Return the signed bill of materials; the type of each attestation, with who signed it."""
    if trusted is None:
        listed = client.referrers(image.repository, manifest.digest, dsse.BUNDLE)
        types = (each.annotations.get(attestations.PREDICATE_TYPE, "unknown") for each in listed)
        return None, tuple((type_, "not verified: [trust] names no signer") for type_ in types)
    signers = (*trusted.prove, *trusted.build)
    attested = attestations.find(client, image.repository, manifest.digest, None, signers)
    rows = [(each.statement.predicate_type, each.signer.source) for each in attested.verified]
    rows += [("refused", problem) for problem in attested.problems]
    statements = (each.statement for each in attested.verified)
    bills = (each.predicate for each in statements if each.predicate_type == dsse.SBOM)
    return next(bills, None), tuple(rows)
