"""The targets of a project, and what is known against what they lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from builder.core import findings
from builder.lock import model
from builder.spec import catalogue
from builder.spec.advisories import AcceptedAdvisory
from builder.spec.catalogue import ImageSpec
from builder.trust import advisories
from builder.trust.advisories import Judged, Known


@dataclass(frozen=True)
class Advised:
    """What is known against targets. asked: how many packages were asked about.

    targets: target -> what is known against it. told: a line for each package and each exception
    that a person should see. failed: how many of these lines are failures.
    """

    asked: int
    targets: Mapping[str, Judged]
    told: tuple[str, ...]
    failed: int


def check(root: Path, targets: Sequence[str], address: str, today: date) -> Advised:
    """Look up what these targets lock. today: in UTC.

    Raises InputError for a target without a lock, OutsideError for what could not be looked up.
    """
    specs = [catalogue.load(root, target) for target in targets]
    locks = {spec.name: model.read(root, spec.name) for spec in specs}
    asked = {name: advisories.packages(lock) for name, lock in locks.items()}
    packages = sorted({one for of_target in asked.values() for one in of_target})
    found = advisories.look_up(packages, address)
    accepted = [one for spec in specs for one in spec.advisories]
    also = advisories.other_ids(found, accepted, address)
    judged = {
        spec.name: advisories.judge(
            [one for one in found if one.package in asked[spec.name]], spec.advisories, also, today
        )
        for spec in specs
    }
    failures = (*_open(judged), *_expired(specs, today))
    told = (*failures, *_accepted(judged), *_unused(specs, judged))
    return Advised(len(packages), judged, told, len(failures))


def _open(judged: Mapping[str, Judged]) -> Iterator[str]:
    targets: dict[Known, list[str]] = {}
    for target, one in judged.items():
        for known in one.open:
            targets.setdefault(known, []).append(target)
    for known in sorted(targets):
        yield f"{known.package}: {', '.join(known.ids)}; in {', '.join(targets[known])}"


def _accepted(judged: Mapping[str, Judged]) -> Iterator[str]:
    targets: dict[tuple[Known, str], list[str]] = {}
    for target, one in judged.items():
        for known, by in one.accepted:
            targets.setdefault((known, f"accepted until {by.until}: {by.reason}"), []).append(
                target
            )
    for (known, why), names in sorted(targets.items()):
        yield f"{known.package}: {', '.join(known.ids)}: {why}; in {', '.join(names)}"


def _expired(specs: Sequence[ImageSpec], today: date) -> Iterator[str]:
    lines = {
        f"{_where(spec, number)}: {one.id} of {one.package} was accepted until {one.until}"
        for spec in specs
        for number, one in enumerate(spec.advisories)
        if one.until < today
    }
    yield from sorted(lines)


def _unused(specs: Sequence[ImageSpec], judged: Mapping[str, Judged]) -> Iterator[str]:
    """Exceptions that match nothing in any target of their file."""
    used: set[tuple[Path, AcceptedAdvisory]] = {
        (spec.source, by) for spec in specs for by in judged[spec.name].used
    }
    lines = {
        f"{_where(spec, number)}: {one.id} of {one.package} matches nothing that is known: take it"
        " out"
        for spec in specs
        for number, one in enumerate(spec.advisories)
        if (spec.source, one) not in used
    }
    yield from sorted(lines)


def _where(spec: ImageSpec, number: int) -> str:
    return findings.place(spec.source, catalogue.shown(spec.source), "advisories", number)
