"""What is known against a project's locks: advisories, which image.yaml may accept, and versions
that fail together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from builder.config import compatibility, image_yaml
from builder.config import targets as projects
from builder.config.fields import AcceptedAdvisory
from builder.config.image_yaml import ImageSpec
from builder.core.filemodel import location
from builder.facts.known_bad import FoundBad
from builder.trust import advisories, sbom
from builder.trust.advisories import FoundAdvisory, PackageVersion


@dataclass(frozen=True)
class AdvisoryReport:
    packages: int
    """How many were looked up."""
    targets: Mapping[str, Mapping[FoundAdvisory, AcceptedAdvisory | None]]
    """Target -> each finding, with the entry of its image.yaml that accepts it today."""
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    """`failures` and `notes`: lines for a person."""


def check(root: Path, targets: Sequence[str], address: str, today: date) -> AdvisoryReport:
    """Look up what these targets lock. today: in UTC.

    Raises InputError for a target without a lock, OutsideError for what could not be looked up.
    """
    files = projects.all_of(root, targets)
    specs = [target.spec for target in files]
    locked = {
        target.name: advisories.package_versions(
            package.purl for package in sbom.locked(target.lock) if package.purl
        )
        for target in files
    }
    versions = frozenset[PackageVersion]().union(*locked.values())
    findings = advisories.look_up(versions, address)
    judged: dict[str, dict[FoundAdvisory, AcceptedAdvisory | None]] = {}
    for spec in specs:
        accepted = [entry for entry in spec.advisories if entry.until >= today]
        judged[spec.name] = {
            finding: next((entry for entry in accepted if finding.is_named_by(entry)), None)
            for finding in findings
            if finding.package in locked[spec.name]
        }
    expired = [
        f"{text} was accepted until {entry.until}"
        for _, entry, text in _entries(specs)
        if entry.until < today
    ]
    unused = [
        f"{text} matches nothing that is known: take it out"
        for spec, entry, text in _entries(specs)
        if not any(finding.is_named_by(entry) for finding in judged[spec.name])
    ]
    together = {
        target.name: compatibility.known_bad_of_lock(target.spec, target.lock) for target in files
    }
    return AdvisoryReport(
        len(versions),
        judged,
        (*_lines(judged, accepted=False), *expired, *_together(together, fails=True)),
        (*_lines(judged, accepted=True), *unused, *_together(together, fails=False)),
    )


def _together(targets: Mapping[str, Sequence[FoundBad]], fails: bool) -> Iterator[str]:
    """Yield a line for each combination of versions that is known to fail, with its targets."""
    named: dict[str, list[str]] = {}
    for target, found in targets.items():
        for each in found:
            if each.row.fails == fails:
                named.setdefault(f"{each}; {each.row.fix}", []).append(target)
    yield from (f"{line}; in {', '.join(names)}" for line, names in sorted(named.items()))


def _lines(
    judged: Mapping[str, Mapping[FoundAdvisory, AcceptedAdvisory | None]], accepted: bool
) -> Iterator[str]:
    """Yield a line for each finding that is accepted, or is not, with its targets."""
    targets: dict[str, list[str]] = {}
    for target, findings in judged.items():
        for finding, entry in findings.items():
            if accepted == bool(entry):
                reason = f": accepted until {entry.until}: {entry.reason}" if entry else ""
                targets.setdefault(f"{finding}{reason}", []).append(target)
    yield from (f"{line}; in {', '.join(names)}" for line, names in sorted(targets.items()))


def _entries(specs: Sequence[ImageSpec]) -> Iterator[tuple[ImageSpec, AcceptedAdvisory, str]]:
    """Yield each entry of an image.yaml, with where it stands."""
    for spec in specs:
        for number, entry in enumerate(spec.advisories):
            where = location(spec.source, image_yaml.shown(spec.source), "advisories", number)
            yield spec, entry, f"{where}: {entry.id} of {entry.package}"
