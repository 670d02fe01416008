"""Planted vulnerable pins are found; what could not be looked up is a failure.

The service on loopback speaks OSV's querybatch with a handful of advisories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import CheckFailed, OutsideError
from builder.core.project import find_root
from builder.lock import model
from builder.spec.advisories import AcceptedAdvisory
from builder.trust import advisories
from builder.trust.advisories import Known, PackageVersion
from tests.emulators.osv import BAD, Osv, serving

ROOT = find_root(Path(__file__).parent)
TODAY = date(2026, 11, 22)


@pytest.fixture
def osv() -> Iterator[Osv]:
    with serving() as service:
        yield service


PLANTED = (
    PackageVersion("Debian:12", "expat", "2.5.0-1"),
    PackageVersion("Debian:12", "zlib", "1:1.2.13.dfsg-1"),
    PackageVersion("PyPI", "keras", "3.15.1"),
    PackageVersion("PyPI", "pillow", "9.0.0"),
)


def test_planted_pins_are_found_and_nothing_else(osv: Osv) -> None:
    found = advisories.look_up(PLANTED, osv.address)
    assert [(one.package.name, one.ids) for one in found] == [
        ("expat", ("DEBIAN-CVE-2023-52425",)),
        ("pillow", ("PYSEC-2022-10",)),
    ]


def test_every_page_is_read(osv: Osv) -> None:
    osv.page = 1
    osv.known["PyPI", "pillow", "9.0.0"] = ["A-1", "A-2", "A-3"]
    found = advisories.look_up(PLANTED, osv.address)
    assert found[-1].ids == ("A-1", "A-2", "A-3")


@pytest.mark.parametrize("target", ["v100", "cpu", "tpu"])
def test_every_locked_package_is_asked_about(osv: Osv, target: str) -> None:
    lock = model.read(ROOT, target)
    assert advisories.look_up(advisories.packages(lock), osv.address) == ()
    names = {(ecosystem, name) for ecosystem, name, _ in osv.asked}
    assert {("PyPI", pin.name) for pin in lock.packages.values()} <= names
    assert ("Debian:12", "expat") in names and ("Debian:12", "glibc") in names
    assert not any(version.endswith("+b1") for _, _, version in osv.asked)


def test_a_service_without_data_is_a_failure(osv: Osv) -> None:
    """A mirror that answers and knows nothing would call everything clean."""
    for gone, ecosystem in ((("PyPI", "jinja2", "2.10"), "PyPI"),
                            (("Debian:12", "openssl", "3.0.0-1"), "Debian:12")):  # fmt: skip
        osv.known = {name: ids for name, ids in BAD.items() if name != gone}
        with pytest.raises(OutsideError, match=f"it has no advisories of {ecosystem}"):
            advisories.look_up(PLANTED, osv.address)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda results: (503, b"busy"), "it answered 503"),
        (lambda results: (404, b""), "it answered 404"),
        (lambda results: (200, b"<html>a proxy's page</html>"), "not one result for each package"),
        (lambda results: (200, json.dumps({"results": results[1:]}).encode()), "not one result"),
        (lambda results: (200, b'{"results": null}'), "not one result"),
        (lambda results: (200, json.dumps({"results": [{"vulns": [{}]}] * len(results)}).encode()),
         "not one result"),
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_a_failure(
    osv: Osv, answer: Callable[[list[Any]], tuple[int, bytes]], says: str
) -> None:
    osv.answer = answer
    with pytest.raises(OutsideError, match=f"nothing was looked up.*{says}"):
        advisories.look_up(PLANTED, osv.address)


def test_no_network_is_a_failure() -> None:
    with pytest.raises(OutsideError, match="nothing was looked up") as caught:
        advisories.look_up(PLANTED, "http://127.0.0.1:9")
    assert caught.value.exit_code == 3


def test_the_command_names_the_package_and_its_targets(
    osv: Osv, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    clean = CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address])
    assert clean.exit_code == 0 and "nothing is known against them" in clean.output
    keras = model.read(root, "cpu").packages["keras"]
    osv.known["PyPI", "keras", keras.version] = ["GHSA-planted"]
    found = CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address])
    assert isinstance(found.exception, CheckFailed) and found.exception.exit_code == 4
    assert f"keras {keras.version} (PyPI): GHSA-planted; in a100, cpu" in found.output


# What is accepted --------------------------------------------------------------------------------

EXPAT = Known(PackageVersion("Debian:12", "expat", "2.5.0-1"), ("DEBIAN-CVE-1", "DEBIAN-CVE-2"))


def accepted(id_: str, package: str, until: str = "2026-11-22") -> AcceptedAdvisory:
    fields = {"id": id_, "package": package, "reason": "no XML", "until": until}
    return AcceptedAdvisory.model_validate(fields)


def test_an_exception_covers_one_advisory_until_its_day() -> None:
    one = accepted("CVE-1", "expat")
    judged = advisories.judge([EXPAT], [one], {}, TODAY)
    assert judged.open == (Known(EXPAT.package, ("DEBIAN-CVE-2",)),)
    assert judged.accepted == ((Known(EXPAT.package, ("DEBIAN-CVE-1",)), one),)

    expired = accepted("CVE-1", "expat", "2026-11-21")
    judged = advisories.judge([EXPAT], [expired], {}, TODAY)
    assert (judged.open, judged.accepted) == ((EXPAT,), ()) and judged.used == {expired}

    elsewhere = advisories.judge([EXPAT], [accepted("CVE-1", "openssl")], {}, TODAY)
    assert elsewhere.open == (EXPAT,) and not elsewhere.used


def test_an_exception_names_an_advisory_by_any_of_its_ids(osv: Osv) -> None:
    pillow = Known(PackageVersion("PyPI", "pillow", "9.0.0"), ("GHSA-x", "PYSEC-2022-10"))
    osv.details = {
        "GHSA-x": {"aliases": ["CVE-2022-1"]},
        "PYSEC-2022-10": {"aliases": ["CVE-2022-1"]},
    }
    by = [accepted("CVE-2022-1", "Pillow")]
    also = advisories.other_ids([pillow], by, osv.address)
    assert advisories.judge([pillow], by, also, TODAY).open == ()


def test_to_accept_one_of_several_is_not_to_accept_them_all(osv: Osv) -> None:
    found = Known(EXPAT.package, ("DSA-1-1", "DSA-2-1"))
    osv.details = {
        "DSA-1-1": {"upstream": ["CVE-1", "CVE-2"]},
        "DSA-2-1": {"upstream": ["CVE-1"]},
    }
    by = [accepted("CVE-1", "expat")]
    also = advisories.other_ids([found], by, osv.address)
    assert advisories.judge([found], by, also, TODAY).open[0].ids == ("DSA-1-1",)


def test_an_advisory_that_cannot_be_looked_up_is_a_failure(osv: Osv) -> None:
    found = Known(EXPAT.package, ("DSA-1-1",))
    with pytest.raises(OutsideError, match="it answered 404 to DSA-1-1"):
        advisories.other_ids([found], [accepted("CVE-1", "expat")], osv.address)
    assert advisories.other_ids([found], [accepted("CVE-1", "zlib")], osv.address) == {}
    osv.details["DSA-1-1"] = {"id": "another"}
    with pytest.raises(OutsideError, match="its answer is not the advisory DSA-1-1"):
        advisories.other_ids([found], [accepted("CVE-1", "expat")], osv.address)
