"""A page about an image for a colleague: one HTML file, which runs no script and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.filters import do_filesizeformat as size

from builder import __version__
from builder.core.display import plain
from builder.core.errors import FactoryError, InputError
from builder.devicecode.verdict import Audit, Support, carries
from builder.facts import frameworks
from builder.image.content_store import base_layers
from builder.pipeline import advisories, make, records
from builder.prove import receipts, waste
from builder.prove.checks import contents
from builder.prove.image import Image
from builder.prove.receipts import CheckResult
from builder.prove.waste import Waste
from builder.trust import sbom

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class ImagePage:
    """What a page says: tables, by the columns that report.html.j2 gives them."""

    title: str
    state: str
    """In one word."""
    facts: Mapping[str, str]
    """By name."""
    problem: str = ""
    """Why nothing proves it."""
    checks: Rows = ()
    problems: Rows = ()
    findings: Rows = ()
    waste: Rows = ()
    layers: Rows = ()
    gpu: str = ""
    """What `libraries` says of each."""
    libraries: Rows = ()
    advisories: Rows | None = None
    """None where none are looked up."""
    gap: str = ""
    """Why they could not be."""
    packages: Rows = ()


def html(page: ImagePage) -> str:
    """Return the page as one file."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    return environment.get_template("report.html.j2").render(page=page).lstrip()


def of_target(root: Path, target: str, address: str, today: date) -> ImagePage:
    """Return the page of a target's last build. address: of OSV's API.

    Raises InputError where it was not built, or has changed since.
    """
    record = records.read(root, target)
    if record is None:
        raise InputError(f"{target}: not built yet", f"builder image {target}")
    item = make.prepare(root, target)
    if item.inputs != record.inputs:
        raise InputError(f"{target}: its files changed since the build", f"builder image {target}")
    receipt = receipts.read(records.folder(root, target) / receipts.FILE)
    validity = receipts.valid_for(receipt, [record.digest or "", record.image_id], {})
    proof = receipt if validity else None
    libraries = proof.seen("device-code").get("libraries") if proof else None
    seen = libraries if isinstance(libraries, dict) else {}
    known, gap = [], ""
    try:
        findings = advisories.check(root, [target], address, today).targets[target]
        known = [
            (str(finding.package), finding.id, entry.reason if entry else "open")
            for finding, entry in findings.items()
        ]
    except FactoryError as error:
        gap = error.message
    layers = base_layers(item.base, item.layers.layers) if item.base else ()
    packages = [text.partition(" ")[::2] for layer in layers for text in layer["packages"]]
    return ImagePage(
        title=target,
        state="proven" if proof and not proof.ended else "not proven",
        facts={
            "image": record.reference,
            "digest": record.digest or record.image_id,
            "accelerator": item.spec.accelerator,
            frameworks.of(record.framework).title: record.release,
            "device code pruned": record.prune,
            "made by": record.engine,
            **({"proof": f"{proof.verdict}, {proof.made_at}"} if proof else {}),
        },
        problem=validity.reason,
        checks=[
            (check.name, "passed" if check.passed else "failed", _words(check.seen.items()))
            for check in (proof.checks if proof else ())
        ],
        layers=[
            (
                layer["name"],
                size(layer["packed_bytes"] or layer["download_bytes"] or 0),
                f"{len(layer['packages'])} packages",
                layer["why"],
            )
            for layer in layers
        ],
        gpu="on this GPU",
        libraries=[(path, str(status)) for path, status in sorted(seen.items())],
        advisories=sorted(known, key=lambda row: row[2] != "open"),
        gap=gap,
        packages=[(name, version, sbom.licence(name)) for name, version in packages if version],
    )


def _words(seen: Iterable[tuple[str, Any]]) -> str:
    """Return what a check saw, with the number of entries in place of a list or a mapping."""
    return ", ".join(
        f"{name}: {len(value) if isinstance(value, list | dict) else value}" for name, value in seen
    )


def of_results(
    name: str, image: Image, results: Sequence[CheckResult], wasted: Sequence[Waste]
) -> ImagePage:
    """Return the page of what `builder prove` says of an image."""
    layers, line = image.content.layers, waste.lines_of(image.content)
    bytes_of = [sum(entry.size for entry in layer.files.values()) for layer in layers]
    libraries = Audit(image.content.libraries)
    if image.gpu:
        findings = libraries.verdict(image.gpu.capability).findings
        code = [(f.library.path, str(f)) for f in findings if f.status != Support.NO_DEVICE_CODE]
    else:
        code = [
            (each.path, ", ".join(carries(each))) for each in libraries.libraries if each.groups
        ]
    command = [*(image.config.get("Entrypoint") or ()), *(image.config.get("Cmd") or ())]
    return ImagePage(
        title=name,
        state="refused" if any(result.problems for result in results) else "passed",
        facts={
            "judged for": f"{image.gpu.name} ({image.gpu.capability})" if image.gpu else "CPU",
            "size": f"{size(sum(bytes_of))} in {len(layers)} layers, unpacked",
            "user": str(image.config.get("User") or "root"),
            "command": " ".join(map(str, command)) or "none",
            "read": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, by the factory {__version__}",
        },
        checks=[(result.name, result.status, result.note) for result in results],
        problems=[(r.name, d.message, d.fix) for r in results for d in r.problems],
        findings=[(r.name, d.message, d.fix) for r in results for d in r.findings],
        waste=[
            (size(w.size), f"{w.kind}, {w.files} files", w.example, w.line, w.fix)
            for w in waste.largest(wasted)
        ],
        layers=[
            (layer.diff_id[7:19], size(count), f"{len(layer.files)} files", line[layer.diff_id])
            for layer, count in zip(layers, bytes_of, strict=True)
        ],
        gpu=f"on {image.gpu.name}" if image.gpu else "carries",
        libraries=code,
        packages=[
            (package, ", ".join(sorted(versions)), "")
            for package, versions in sorted(contents.packages(image).items())
        ],
    )
