"""Planted vulnerable pins are found; what could not be looked up is a failure.

The service on loopback speaks OSV's API with a handful of advisories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config import lockfile
from builder.config.fields import AcceptedAdvisory
from builder.core.errors import OutsideError
from builder.trust import advisories, sbom
from builder.trust.advisories import FoundAdvisory, PackageVersion
from tests.emulators.osv import BAD, Osv, serving

EXPAT = PackageVersion("Debian:12", "expat", "2.5.0-1")
PILLOW = PackageVersion("PyPI", "pillow", "9.0.0")
PLANTED = (EXPAT, PackageVersion("PyPI", "keras", "3.15.1"), PILLOW)


@pytest.fixture
def osv() -> Iterator[Osv]:
    with serving() as service:
        yield service


def accepted(id_: str, package: str) -> AcceptedAdvisory:
    fields = {"id": id_, "package": package, "reason": "no XML", "until": "2026-11-22"}
    return AcceptedAdvisory.model_validate(fields)


def test_planted_pins_are_found_and_nothing_else(osv: Osv) -> None:
    osv.page = 1  # every page is read
    osv.known["PyPI", "pillow", "9.0.0"] = ["PYSEC-2", "PYSEC-1", "PYSEC-3"]
    assert advisories.look_up(PLANTED, osv.address) == (
        FoundAdvisory(EXPAT, "DEBIAN-CVE-2023-52425"),
        *(FoundAdvisory(PILLOW, f"PYSEC-{number}") for number in (1, 2, 3)),
    )


def test_every_locked_package_is_looked_up(osv: Osv, root: Path) -> None:
    lock = lockfile.read(root, "v100")
    versions = advisories.package_versions(each.purl for each in sbom.locked(lock) if each.purl)
    assert advisories.look_up(versions, osv.address) == ()
    names = {(ecosystem, name) for ecosystem, name, _ in osv.looked_up}
    assert {("PyPI", pin.name) for pin in lock.packages.values()} <= names
    assert {("Debian:12", "expat"), ("Debian:12", "glibc")} <= names
    assert not any(version.endswith("+b1") for _, _, version in osv.looked_up)


def test_headers_of_the_kernel_have_none_of_its_advisories(root: Path) -> None:
    lock = lockfile.read(root, "v100-torch")
    locked = {deb.name for packages in lock.apt.values() for deb in packages}
    versions = advisories.package_versions(each.purl for each in sbom.locked(lock) if each.purl)
    names = {version.name for version in versions}
    assert "linux-libc-dev" in locked and "linux" not in names and "gcc-12" in names


def test_a_service_without_data_or_network_is_a_failure(osv: Osv) -> None:
    """A mirror that answers and knows nothing would call everything clean."""
    for missing in (("PyPI", "jinja2", "2.10"), ("Debian:12", "openssl", "3.0.0-1")):
        osv.known = {name: ids for name, ids in BAD.items() if name != missing}
        with pytest.raises(OutsideError, match=f"it has no advisories of {missing[0]}"):
            advisories.look_up(PLANTED, osv.address)
    with pytest.raises(OutsideError, match="nothing was looked up"):
        advisories.look_up(PLANTED, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda results: (503, b"busy"), "it answered 503"),
        (lambda results: (200, b"<html>a proxy's page</html>"), "not one of OSV's"),
        (lambda results: (200, json.dumps({"results": results[1:]}).encode()), "not one result"),
        (lambda results: (200, b'{"results": [{"vulns": [{}]}]}'), "not one of OSV's"),
    ],
)
def test_an_answer_that_says_nothing_is_a_failure(
    osv: Osv, answer: Callable[[list[Any]], tuple[int, bytes]], reason: str
) -> None:
    osv.answer = answer
    with pytest.raises(OutsideError, match=f"nothing was looked up.*{reason}"):
        advisories.look_up(PLANTED, osv.address)


def test_an_entry_names_an_advisory_by_the_id_that_is_shown_or_by_debian_s_cve(osv: Osv) -> None:
    debian, python = advisories.look_up((EXPAT, PILLOW), osv.address)
    assert python.is_named_by(accepted("PYSEC-2022-10", "Pillow"))
    assert debian.is_named_by(accepted("CVE-2023-52425", "expat"))
    assert debian.is_named_by(accepted("DEBIAN-CVE-2023-52425", "expat"))
    assert not debian.is_named_by(accepted("CVE-2023-52425", "zlib"))
