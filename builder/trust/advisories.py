"""Advisories against locked packages, looked up at OSV, which has PyPI's and Debian's data.

A package that could not be looked up is a failure, never "none found". A service that answers, but
has no data, is noticed too: each ecosystem is also asked about a version that is known to be bad.

Sources: OSV's API (google.github.io/osv.dev, POST /v1/querybatch: results in the order of the
queries, at most 1000 of them, next_page_token where there is more). Debian's advisories there are
by source package, in the ecosystem `Debian:<release>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from packageurl import PackageURL
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ValidationError

from builder.config.fields import AcceptedAdvisory
from builder.core import web
from builder.core.errors import InputError, OutsideError

ADDRESS: Final = "https://api.osv.dev"
RELEASES: Final = {"bullseye": "11", "bookworm": "12", "trixie": "13", "forky": "14"}
"""The number of a Debian release, by the name of its suite."""

HEADERS: Final = "linux-libc-dev"
"""Debian's package of the kernel's headers: source code of the kernel, and no kernel."""

DEBIAN: Final = "DEBIAN-"
"""The prefix of Debian's id for a CVE, at OSV."""

_BATCH: Final = 1000
_PAGES: Final = 20
_LARGEST: Final = 64 * 1024 * 1024
_REBUILD: Final = re.compile(r"\+b\d+$")


@dataclass(frozen=True, order=True)
class PackageVersion:
    ecosystem: str
    name: str
    """Debian's source package."""
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.ecosystem})"


@dataclass(frozen=True, order=True)
class FoundAdvisory:
    """An advisory against a package, under its id at OSV."""

    package: PackageVersion
    id: str

    def __str__(self) -> str:
        return f"{self.package}: {self.id}"

    def is_named_by(self, entry: AcceptedAdvisory) -> bool:
        """Return whether an entry of an image.yaml means this advisory against this package."""
        names = map(canonicalize_name, (entry.package, self.package.name))
        return entry.id in (self.id, self.id.removeprefix(DEBIAN)) and len(set(names)) == 1


CANARIES: Final = {
    "PyPI": PackageVersion("PyPI", "jinja2", "2.10"),  # CVE-2019-10906
    "Debian": PackageVersion("Debian", "openssl", "3.0.0-1"),  # CVE-2022-3602 and others
}
"""Versions that have advisories; a service that knows none has no data."""


def package_versions(purls: Iterable[PackageURL]) -> frozenset[PackageVersion]:
    """Return what OSV calls these packages; what is neither PyPI's nor Debian's is left out, and
    HEADERS, whose advisories are those of the kernel, which is the host's.

    A binary package of Debian that was only built again (+b1) has the version of its source. Raises
    InputError for a Debian release without a number.
    """
    versions = set()
    for purl in purls:
        if purl.type == "pypi":
            name = canonicalize_name(purl.name)
            versions.add(PackageVersion("PyPI", name, str(purl.version)))
        elif purl.type == "deb" and purl.name != HEADERS:
            suite, source = (str(purl.qualifiers.get(key, "")) for key in ("distro", "upstream"))
            if suite not in RELEASES:
                raise InputError(
                    f"Debian {suite}: the number of this release is not known here",
                    "add it to RELEASES in builder/trust/advisories.py",
                )
            version = _REBUILD.sub("", str(purl.version))
            versions.add(PackageVersion(f"Debian:{RELEASES[suite]}", source, version))
    return frozenset(versions)


def look_up(
    packages: Iterable[PackageVersion], address: str = ADDRESS
) -> tuple[FoundAdvisory, ...]:
    """Return the advisories against these packages.

    Raises OutsideError where a package could not be looked up, or the service has no data.
    """
    packages = sorted(set(packages))
    canaries = {
        ecosystem: replace(CANARIES[ecosystem.partition(":")[0]], ecosystem=ecosystem)
        for ecosystem in {package.ecosystem for package in packages}
    }
    with web.Client() as client:
        ids = _query(client, address, (*canaries.values(), *packages))
        for ecosystem, canary in sorted(canaries.items()):
            if not ids[canary]:
                raise OutsideError(
                    f"{address}: knows nothing against {canary.name} {canary.version}, so it has no"
                    f" advisories of {ecosystem}, and nothing was looked up",
                    "name a service with OSV's data: --osv ADDRESS",
                )
    return tuple(
        FoundAdvisory(package, id_) for package in packages for id_ in sorted(ids[package])
    )


class _Advisory(BaseModel):
    id: str


class _Result(BaseModel):
    vulns: tuple[_Advisory, ...] = ()
    next_page_token: str = ""


class _Results(BaseModel):
    results: tuple[_Result, ...]


def _query(
    client: web.Client, address: str, packages: Iterable[PackageVersion]
) -> Mapping[PackageVersion, set[str]]:
    """Return the ids of the advisories against each package. Raises OutsideError."""
    ids: dict[PackageVersion, set[str]] = {package: set() for package in packages}
    waiting = [(package, "") for package in ids]
    for _ in range(_PAGES):
        if not waiting:
            return ids
        batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
        queries = [
            {
                "package": {"ecosystem": package.ecosystem, "name": package.name},
                "version": package.version,
                **({"page_token": token} if token else {}),
            }
            for package, token in batch
        ]
        results = _results(client, address, json.dumps({"queries": queries}).encode())
        if len(results) != len(batch):
            raise _not_looked_up(address, "its answer is not one result for each package")
        for (package, _), result in zip(batch, results, strict=True):
            ids[package] |= {advisory.id for advisory in result.vulns}
            if result.next_page_token:
                waiting.append((package, result.next_page_token))
    raise OutsideError(
        f"{address}: its answer has more than {_PAGES} pages", "look whether the address is right"
    )


def _results(client: web.Client, address: str, queries: bytes) -> tuple[_Result, ...]:
    """Return the service's answer to a batch of queries. Raises OutsideError for anything else."""
    from urllib3.exceptions import HTTPError

    url, headers = f"{address}/v1/querybatch", {"Content-Type": "application/json"}
    try:
        answer = client.answer("POST", url, headers=headers, body=queries, most=_LARGEST)
    except HTTPError as error:
        raise _not_looked_up(address, type(error).__name__) from None
    if answer.status != 200:
        raise _not_looked_up(address, f"it answered {answer.status} to {url}")
    try:
        return _Results.model_validate_json(answer.data).results
    except ValidationError:
        raise _not_looked_up(address, "its answer is not one of OSV's") from None


def _not_looked_up(address: str, reason: str) -> OutsideError:
    return OutsideError(
        f"{address}: nothing was looked up, which says nothing about the packages: {reason}",
        "run this where the service can be reached, or name a mirror: --osv ADDRESS",
    )
