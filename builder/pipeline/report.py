"""What an image is, for a colleague: what proves it, where its bytes lie, on which GPUs it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final

from builder import __version__
from builder.config import image_yaml
from builder.core.display import size
from builder.core.errors import FactoryError, InputError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.devicecode.library import Library
from builder.devicecode.verdict import Audit, Support, carries
from builder.engine import Engine
from builder.engine.discovery import connect
from builder.facts import frameworks
from builder.image import content_store
from builder.pipeline import advisories, make, records
from builder.pipeline.page import Bar, Page, Section
from builder.pipeline.prove_any import Judgement
from builder.pipeline.records import ImageRecord
from builder.prove import audit, fleet, receipts, spread, suites, told, waste
from builder.prove.checks import contents
from builder.prove.image import Image
from builder.prove.receipts import CheckResult
from builder.reading import images, tars
from builder.reading.images import ImageContent
from builder.registry import manifests
from builder.trust import sbom

_DRAWN: Final = 15
"""Libraries and packages that a picture has."""

_ANSWERS: Final = (
    "Native: kernels for this GPU. Older minor: those for an older one of its generation. PTX: "
    "compiled before they run."
)


@dataclass(frozen=True)
class ReportRequest:
    root: Path | None
    """The project's folder; None outside of one."""
    settings: Settings
    gpu: str | None = None
    """The GPU to judge an image for that is no target's."""
    osv: str = ""
    """The address of OSV's API; "" asks for no advisories."""


@dataclass(frozen=True)
class ImageReport:
    """An image, and what proves it."""

    name: str
    """As it was asked for."""
    state: str
    facts: Mapping[str, str]
    image: Image
    suite: str
    checks: tuple[CheckResult, ...]
    problem: str = ""
    """Why nothing proves it."""
    debian: Mapping[str, str] | None = None
    """Version of each Debian package; None where no lock names them."""
    advisories: tuple[tuple[str, str, str], ...] | None = None
    """Package, advisory, and the reason why it is accepted; None where none were looked up."""
    gap: str = ""
    """Why they could not be."""

    @cached_property
    def packages(self) -> Mapping[str, str]:
        found = contents.packages(self.image)
        return {name: ", ".join(sorted(found[name])) for name in sorted(found)}

    @cached_property
    def waste(self) -> Sequence[waste.Waste]:
        gpu = self.image.gpu
        return waste.of_image(self.image.content, gpu.capability if gpu else None)

    @cached_property
    def layers(self) -> Mapping[str, Mapping[str, int]]:
        """The bytes of each layer by kind, the lowest first, by diff id."""
        return {each.diff_id: sizes for each, sizes in spread.of_layers(self.image.content)}

    @property
    def sizes(self) -> Mapping[str, int]:
        return {kind: sum(row[kind] for row in self.layers.values()) for kind in spread.KINDS}

    @cached_property
    def made_by(self) -> Mapping[str, str]:
        """The line of the history that made each layer, by diff id."""
        return waste.lines_of(self.image.content)

    @cached_property
    def matrix(self) -> fleet.Matrix:
        return fleet.matrix(self.image)

    @property
    def gpus(self) -> Mapping[str, str]:
        """What each known GPU finds in it; nothing where it has no device code."""
        return {gpu: self.matrix.answer(gpu) for gpu in self.matrix.gpus}


def of(name: str, request: ReportRequest, today: date, on_event: OnEvent = ignore) -> ImageReport:
    """Return what is known of a target's last build, or of an image in files, on the engine or in a
    registry. Nothing of it runs.

    Raises InputError for a target that was not built, or has changed since, and for a name that
    leads nowhere; OutsideError.
    """
    engine = cache(partial(connect, request.settings, on_event=on_event))
    targets = image_yaml.targets(request.root) if request.root else ()
    if request.root and name in targets:
        return _of_target(request.root, name, request, engine, today, on_event)
    content = audit.image_content(
        request.settings, engine, name, on_event, dict.fromkeys(targets, "")
    )
    image = Image(content, audit.gpu_of(None, name, request.gpu))
    return of_image(name, image, suites.IMAGE.judge(image))


def _of_target(
    root: Path,
    target: str,
    request: ReportRequest,
    engine: Callable[[bool], Engine],
    today: date,
    on_event: OnEvent,
) -> ImageReport:
    record = records.read(root, target)
    if record is None:
        raise InputError(f"{target}: not built yet", f"builder image {target}")
    item = make.prepare(root, target)
    if item.inputs != record.inputs:
        raise InputError(f"{target}: its files changed since the build", f"builder image {target}")
    receipt = receipts.read(records.folder(root, target) / receipts.FILE)
    validity = receipts.valid_for(receipt, [record.digest or "", record.image_id], {})
    proof = receipt if validity else None
    content = _stored(record) or audit.image_content(
        request.settings, engine, target, on_event, {target: record.image_id}
    )
    known, gap = _advisories(root, target, request.osv, today) if request.osv else (None, "")
    image = Image(content, audit.gpu_of(root, target, None))
    rootfs = item.lock.rootfs.packages if item.lock.rootfs else ()
    debs = [*rootfs, *(deb for debs in item.lock.apt.values() for deb in debs)]
    return ImageReport(
        name=target,
        state="proven" if proof and not proof.ended else "not proven",
        facts={
            "image": record.reference,
            "digest": record.digest or record.image_id,
            "accelerator": item.spec.accelerator,
            frameworks.of(record.framework).title: record.release,
            "pull": size(record.compressed_bytes) if record.compressed_bytes else "",
            **_facts(image),
            "made by": record.engine,
            "proof": f"{proof.verdict}, {proof.made_at}" if proof else "",
        },
        image=image,
        suite=proof.suite if proof else "",
        checks=proof.checks if proof else (),
        problem=validity.reason,
        debian={deb.name: deb.version for deb in sorted(debs)},
        advisories=known,
        gap=gap,
    )


def _stored(record: ImageRecord) -> ImageContent | None:
    """Return what the layers in this machine's cache hold; None where it lacks one."""
    store = content_store.of_this_machine()
    image = store.find_image((record.digest or "").removeprefix("sha256:"))
    if image is None:
        return None
    layers = store.paths(image.layers)
    try:
        diff_ids = [layer.diff_id for layer in image.layers]
        content = images.of_saved(diff_ids, dict[str, Any]().items, layers)
        configuration = manifests.configuration_in(image.configuration)
    except (*tars.BROKEN, OSError, FactoryError):
        return None
    return replace(content, configuration=configuration)


def _advisories(
    root: Path, target: str, address: str, today: date
) -> tuple[tuple[tuple[str, str, str], ...] | None, str]:
    """Return what is known against a target's packages, or why nobody could say."""
    try:
        found = advisories.check(root, [target], address, today).targets[target]
    except FactoryError as error:
        return None, error.message
    rows = [(str(each.package), each.id, row.reason if row else "") for each, row in found.items()]
    return tuple(sorted(rows, key=lambda row: (row[2] != "", row))), ""


def of_judgement(judgement: Judgement) -> ImageReport:
    return of_image(judgement.name, judgement.image, judgement.results)


def of_image(name: str, image: Image, checks: Sequence[CheckResult]) -> ImageReport:
    """Return what was asked of an image that was read."""
    gpu = f"{image.gpu.name} ({image.gpu.capability})" if image.gpu else "CPU"
    read = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, by the factory {__version__}"
    return ImageReport(
        name=name,
        state="refused" if any(result.problems for result in checks) else "passed",
        facts={"judged for": gpu, **_facts(image), "read": read},
        image=image,
        suite=suites.IMAGE.name,
        checks=tuple(checks),
    )


def _facts(image: Image) -> dict[str, str]:
    layers = image.content.layers
    count = sum(entry.size for layer in layers for entry in layer.files.values())
    command = [*(image.config.get("Entrypoint") or ()), *(image.config.get("Cmd") or ())]
    return {
        "unpacked": f"{size(count)} in {len(layers)} layers",
        "user": str(image.config.get("User") or "root"),
        "command": " ".join(map(str, command)) or "none",
    }


# --- the page -------------------------------------------------------------------------------------


def page(report: ImageReport) -> Page:
    return Page(
        report.name,
        report.state,
        report.facts,
        report.problem,
        (*_of_checks(report), *_of_bytes(report), *_of_gpus(report), *_of_packages(report)),
    )


def _of_checks(report: ImageReport) -> Iterator[Section]:
    checks = report.checks
    rows = [(check.name, check.status, told.sentence(check)) for check in checks]
    yield Section("Checks", "", ("check", "state", "saw"), rows)
    problems = [(r.name, d.message, d.fix) for r in checks for d in r.problems]
    yield Section("Why it is refused", "", ("check", "problem", "fix"), problems)
    findings = [(r.name, d.message, d.fix) for r in checks for d in r.findings]
    yield Section("What to change", "", ("check", "finding", "instead"), findings)


def _of_bytes(report: ImageReport) -> Iterator[Section]:
    layers = [layer_bar(report, diff_id) for diff_id in report.layers]
    yield Section("Where the bytes lie, by layer", "Unpacked, the lowest layer first.", bars=layers)
    libraries = report.image.content.libraries
    drawn = sorted(libraries, key=lambda each: (-each.size, each.path))[:_DRAWN]
    more = len(libraries) - len(drawn)
    yield Section(
        "The largest libraries",
        f"{more:,} more are smaller." * (more > 0),
        bars=[Bar(each.name, spread.of_library(each), _origin(each)) for each in drawn],
    )
    yield Section(
        "Device code by GPU",
        bars=[Bar(name, row) for name, row in spread.by_gpu(libraries).items()],
    )
    lost = spread.pruned(libraries)
    gone, rest = (sum(row[k] for row in lost.values()) for k in (spread.PRUNED, spread.DEVICE_CODE))
    yield Section(
        "What pruning saved",
        f"{size(gone)} of {size(gone + rest)} of device code is for other GPUs, and was taken out."
        * bool(lost),
        bars=[Bar(name, row) for name, row in list(lost.items())[:_DRAWN]],
    )
    rows = [
        (size(w.size), f"{w.kind}, {w.files} files", w.example, w.line, w.fix)
        for w in waste.largest(report.waste)
    ]
    yield Section(
        "What could be saved", "", ("bytes", "what", "such as", "made by", "instead"), rows
    )


def _origin(library: Library) -> str:
    return library.origin if library.package else str(Path(library.path).parent)


def layer_bar(report: ImageReport, diff_id: str) -> Bar:
    """Return the bar of a layer, by the line of the history that made it; the factory's lines name
    the packages, too."""
    line, short = report.made_by[diff_id], diff_id[7:19]
    name, _, packages = line.removeprefix("builder: ").partition(": ")
    if not line.startswith("builder: "):
        name, packages = line, ""
    return Bar(name or short, report.layers[diff_id], packages or short * bool(name))


def _of_gpus(report: ImageReport) -> Iterator[Section]:
    matrix, gpu = report.matrix, report.image.gpu
    yield Section(
        "GPUs and drivers",
        _ANSWERS * bool(matrix.gpus),
        ("", *matrix.drivers),
        [(name, *answers) for name, answers in matrix.gpus.items()],
        matrix=True,
    )
    libraries = Audit(report.image.content.libraries)
    if gpu:
        findings = libraries.verdict(gpu.capability).findings
        rows = [(f.library.path, str(f)) for f in findings if f.status != Support.NO_DEVICE_CODE]
    else:
        rows = [
            (each.path, ", ".join(carries(each))) for each in libraries.libraries if each.groups
        ]
    yield Section(
        f"Libraries with device code ({len(rows)})",
        "",
        ("library", f"on {gpu.name}" if gpu else "carries"),
        rows,
        folded=True,
    )


def _of_packages(report: ImageReport) -> Iterator[Section]:
    if report.gap:
        yield Section("Advisories", f"Not looked up: {report.gap}")
    elif report.advisories is not None:
        rows = [(package, id_, reason or "open") for package, id_, reason in report.advisories]
        nothing = "" if rows else "Nothing is known against its packages."
        yield Section("Advisories", nothing, ("package", "advisory", "accepted"), rows)
    packages = [(name, text, sbom.licence(name)) for name, text in report.packages.items()]
    head = ("package", "version", "licence, where it is known")
    yield Section(f"Python packages ({len(packages)})", "", head, packages, folded=True)
    debian = list((report.debian or {}).items())
    yield Section(
        f"Debian packages ({len(debian)})", "", ("package", "version"), debian, folded=True
    )


def as_dict(report: ImageReport) -> dict[str, Any]:
    """Return the report as JSON-ready data. Sizes in bytes."""
    libraries = report.image.content.libraries
    return {
        "image": report.name,
        "state": report.state,
        "problem": report.problem,
        "facts": report.facts,
        "suite": report.suite,
        "checks": [
            {"check": c.name, "status": c.status, "said": told.sentence(c)} for c in report.checks
        ],
        "layers": report.layers,
        "device_code": spread.by_gpu(libraries),
        "pruned": spread.pruned(libraries),
        "could_be_saved": list(map(asdict, report.waste)),
        "gpus": asdict(report.matrix),
        "advisories": report.advisories,
        "packages": report.packages,
        "debian_packages": report.debian,
    }
