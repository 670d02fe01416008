"""What is known against the locked packages: asked of OSV, which has PyPI's and Debian's data.

What an image.yaml accepts (builder/spec/advisories.py) is told apart from what it does not.

A package that could not be looked up is a failure, never "none found". A service that answers, but
has no data, is caught too: each ecosystem is also asked about a version that is known to be bad.

Sources: OSV's API (google.github.io/osv.dev, POST /v1/querybatch: results in the order of the
queries, at most 1000 of them, next_page_token where there is more). Debian's advisories there are
by source package, in the ecosystem `Debian:<release>`. GET /v1/vulns/ID has the other ids of an
advisory: `aliases`, and `upstream` where it was made from others (OSV schema 1.7).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final
from urllib.parse import quote

from builder.core import web
from builder.core.errors import InputError, OutsideError
from builder.lock.model import Lock
from builder.spec.advisories import AcceptedAdvisory
from builder.trust import sbom

ADDRESS: Final = "https://api.osv.dev"
RELEASES: Final = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14"}
"""The number of a Debian release, by the name of its suite."""

DEBIAN: Final = "DEBIAN-"
"""What Debian's id of a CVE begins with, at OSV."""

_BATCH: Final = 1000
_PAGES: Final = 20
_LARGEST: Final = 64 * 1024 * 1024
_REBUILD: Final = re.compile(r"\+b\d+$")


@dataclass(frozen=True, order=True)
class PackageVersion:
    """A version of a package, as OSV names it. name: of Debian's the source package."""

    ecosystem: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.ecosystem})"


@dataclass(frozen=True, order=True)
class Known:
    """What is known against a package: the ids of advisories."""

    package: PackageVersion
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """What is known against a target: what nobody accepts, and what is accepted, each by what.

    used: the exceptions that match something, whether they still hold or not.
    """

    open: tuple[Known, ...]
    accepted: tuple[tuple[Known, AcceptedAdvisory], ...]
    used: frozenset[AcceptedAdvisory]


CANARIES: Final = {
    "PyPI": PackageVersion("PyPI", "jinja2", "2.10"),  # CVE-2019-10906
    "Debian": PackageVersion("Debian", "openssl", "3.0.0-1"),  # CVE-2022-3602 and others
}
"""Versions that advisories are known against; a service that knows none has no data."""


def packages(lock: Lock) -> tuple[PackageVersion, ...]:
    """What a lock holds, each once. Raises InputError for a Debian release without a number."""
    found = {PackageVersion("PyPI", pin.name, pin.version) for pin in lock.packages.values()}
    if lock.root:
        found |= {
            debian(lock.root.suite, sbom.debian_source(deb), deb.version)
            for _, deb in sbom.debian_packages(lock)
        }
    return tuple(sorted(found))


def debian(suite: str, source: str, version: str) -> PackageVersion:
    """A Debian package, by its source. Raises InputError for a release without a number.

    A binary package that was only built again (+b1) has the version of its source.
    """
    if suite not in RELEASES:
        raise InputError(
            f"Debian {suite}: the number of this release is not known here",
            "add it to RELEASES in builder/trust/advisories.py",
        )
    return PackageVersion(f"Debian:{RELEASES[suite]}", source, _REBUILD.sub("", version))


def look_up(asked: Sequence[PackageVersion], address: str = ADDRESS) -> tuple[Known, ...]:
    """What is known against these packages; those with nothing against them are left out.

    Raises OutsideError where one of them could not be looked up, or the service has no data.
    """
    canaries = {
        ecosystem: replace(CANARIES[ecosystem.partition(":")[0]], ecosystem=ecosystem)
        for ecosystem in {one.ecosystem for one in asked}
    }
    with web.Client() as client:
        found = _ids(client, address, (*canaries.values(), *asked))
    for ecosystem, canary in sorted(canaries.items()):
        if not found[canary]:
            raise OutsideError(
                f"{address}: knows nothing against {canary.name} {canary.version}, so it has no"
                f" advisories of {ecosystem}, and nothing was looked up",
                "name a service with OSV's data: --osv ADDRESS",
            )
    return tuple(Known(one, found[one]) for one in asked if found[one])


def judge(
    found: Sequence[Known],
    accepted: Sequence[AcceptedAdvisory],
    also: Mapping[str, frozenset[str]],
    today: date,
) -> Judged:
    """Tell what is accepted today from what is not. also: id -> the advisory's other ids."""
    left: list[Known] = []
    lived_with: list[tuple[Known, AcceptedAdvisory]] = []
    used: set[AcceptedAdvisory] = set()
    for known in found:
        stays = []
        for id_ in known.ids:
            names = {id_, id_.removeprefix(DEBIAN)} | also.get(id_, frozenset())
            matching = [
                one for one in accepted if same(one.package, known.package.name) and one.id in names
            ]
            used.update(matching)
            if holds := [one for one in matching if one.until >= today]:
                lived_with.append((Known(known.package, (id_,)), holds[0]))
            else:
                stays.append(id_)
        if stays:
            left.append(Known(known.package, tuple(stays)))
    return Judged(tuple(left), tuple(lived_with), frozenset(used))


def same(name: str, other: str) -> bool:
    """Whether two names mean one package; PyPI's ignore case and kinds of dashes."""
    return name == other or sbom.normal(name) == sbom.normal(other)


def other_ids(
    found: Sequence[Known], accepted: Sequence[AcceptedAdvisory], address: str = ADDRESS
) -> dict[str, frozenset[str]]:
    """Id -> its other ids, for the advisories against packages that an exception names.

    An id that an exception names itself is not asked about, nor is Debian's own of a CVE. An
    advisory made from several others has none of their ids: to accept one is not to accept it.
    Raises OutsideError.
    """
    named = {one.id for one in accepted}
    asked = {
        id_
        for known in found
        if any(same(one.package, known.package.name) for one in accepted)
        for id_ in known.ids
        if id_ not in named and not id_.startswith(DEBIAN)
    }
    if not asked:
        return {}
    with web.Client() as client:
        return {id_: _aliases(client, address, id_) for id_ in sorted(asked)}


def _aliases(client: web.Client, address: str, id_: str) -> frozenset[str]:
    from urllib3.exceptions import HTTPError

    try:
        answer = client.answer("GET", f"{address}/v1/vulns/{quote(id_, safe='')}", most=_LARGEST)
    except HTTPError as error:
        raise _not_looked_up(address, type(error).__name__) from None
    if answer.status != 200:
        raise _not_looked_up(address, f"it answered {answer.status} to {id_}")
    try:
        said = json.loads(answer.data)
        if said["id"] != id_:
            raise ValueError
        aliases, upstream = (
            set(map(str, said.get(name) or ())) for name in ("aliases", "upstream")
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _not_looked_up(address, f"its answer is not the advisory {id_}") from None
    return frozenset(aliases | (upstream if len(upstream) == 1 else set()))


def _ids(
    client: web.Client, address: str, asked: Iterable[PackageVersion]
) -> dict[PackageVersion, tuple[str, ...]]:
    """The ids of the advisories against each package. Raises OutsideError."""
    found: dict[PackageVersion, list[str]] = {one: [] for one in asked}
    waiting = [(one, "") for one in found]
    for _ in range(_PAGES):
        if not waiting:
            return {one: tuple(sorted(set(ids))) for one, ids in found.items()}
        now, waiting = waiting[:_BATCH], waiting[_BATCH:]
        for (one, _), result in zip(now, _batch(client, address, now), strict=True):
            found[one] += [str(each["id"]) for each in result.get("vulns") or ()]
            if token := result.get("next_page_token"):
                waiting.append((one, str(token)))
    raise OutsideError(
        f"{address}: its answer has more than {_PAGES} pages", "look whether the address is right"
    )


def _batch(
    client: web.Client, address: str, asked: Sequence[tuple[PackageVersion, str]]
) -> list[dict[str, Any]]:
    """One answer: a result for each query. Raises OutsideError for anything else."""
    from urllib3.exceptions import HTTPError

    queries = [
        {
            "package": {"ecosystem": one.ecosystem, "name": one.name},
            "version": one.version,
            **({"page_token": token} if token else {}),
        }
        for one, token in asked
    ]
    try:
        answer = client.answer(
            "POST",
            f"{address}/v1/querybatch",
            headers={"Content-Type": "application/json"},
            body=json.dumps({"queries": queries}).encode(),
            most=_LARGEST,
        )
    except HTTPError as error:
        raise _not_looked_up(address, type(error).__name__) from None
    if answer.status != 200:
        raise _not_looked_up(address, f"it answered {answer.status} {answer.reason}")
    try:
        results = json.loads(answer.data)["results"]
        if len(results) != len(queries) or not all(
            isinstance(one, dict) and all("id" in each for each in one.get("vulns") or ())
            for one in results
        ):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _not_looked_up(address, "its answer is not one result for each package") from None
    return list(results)


def _not_looked_up(address: str, why: str) -> OutsideError:
    return OutsideError(
        f"{address}: nothing was looked up, which says nothing about the packages: {why}",
        "run this where the service can be reached, or name a mirror: --osv ADDRESS",
    )
