"""A page about an image for a colleague: one HTML file, from the last build of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder import frameworks
from builder.config.accepted_advisories import AcceptedAdvisory
from builder.core.errors import FactoryError, InputError
from builder.image.content_store import base_layers
from builder.pipeline import advisories as project
from builder.pipeline import make, records, signing
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.trust import sbom
from builder.trust.advisories import Finding

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

    facts: by name. proof: the receipt that holds; problem: why none does. advisories: package, id,
    and why it is accepted, or "open". not_looked_up: why no advisories were, "" where they were.
    """

    title: str
    facts: Mapping[str, str]
    layers: Sequence[PageLayer]
    proof: Receipt | None
    problem: str = ""
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
            frameworks.of(record.framework).title: record.release,
            "device code pruned": record.prune,
            "made by": record.engine,
        },
        layers=layers,
        proof=receipt if validity else None,
        problem=validity.reason,
        advisories=known,
        not_looked_up=reason,
    )


def html(page: ImagePage) -> str:
    """Return the page as one file that runs no script and loads nothing."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["licence"] = sbom.licence
    return environment.get_template("report.html.j2").render(page=page)


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
