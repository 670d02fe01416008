"""What is known against a project's targets: open, accepted, expired; exceptions of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli import app
from builder.core.errors import CheckFailed
from builder.lock import model
from tests.emulators.osv import Osv, serving


@pytest.fixture
def osv(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Osv]:
    """A service that knows an advisory against keras, and one against libexpat1."""
    monkeypatch.chdir(copy)
    lock = model.read(copy, "cpu")
    with serving() as service:
        service.known["PyPI", "keras", lock.packages["keras"].version] = ["GHSA-planted"]
        service.details["GHSA-planted"] = {"aliases": ["CVE-2026-1"]}
        yield service


def accepting(root: Path, *entries: str) -> None:
    """Accept advisories in each image.yaml. An entry: id, package and the last day."""
    text = "advisories:\n" + "".join(
        f"  - id: {id_}\n    package: {package}\n    reason: loads no model of others\n"
        f"    until: {until}\n"
        for id_, package, until in (entry.split() for entry in entries)
    )
    for path in (root / "images").glob("*/image.yaml"):
        path.write_text(path.read_text() + text)


def check(osv: Osv) -> Result:
    return CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address])


def test_what_is_accepted_is_shown_and_does_not_fail(osv: Osv, copy: Path) -> None:
    accepting(copy, "CVE-2026-1 keras 2999-12-31")
    found = check(osv)
    assert found.exit_code == 0, found.output
    assert "GHSA-planted: accepted until 2999-12-31: loads no model of others; in a100" in (
        found.output
    )
    assert "what is known against them is accepted" in found.output


def test_an_exception_that_expired_fails(osv: Osv, copy: Path) -> None:
    accepting(copy, "CVE-2026-1 keras 2026-01-31")
    found = check(osv)
    assert isinstance(found.exception, CheckFailed) and found.exception.exit_code == 4
    assert "images/cpu/image.yaml:" in found.output
    assert "advisories.0: CVE-2026-1 of keras was accepted until 2026-01-31" in found.output
    assert "(PyPI): GHSA-planted; in a100" in found.output


def test_an_exception_of_nothing_is_told(osv: Osv, copy: Path) -> None:
    accepting(copy, "CVE-2026-1 keras 2999-12-31", "CVE-2026-2 keras 2999-12-31")
    found = check(osv)
    assert found.exit_code == 0
    assert "advisories.1: CVE-2026-2 of keras matches nothing that is known" in found.output
    assert "advisories.0: " not in found.output


def test_what_is_accepted_changes_neither_lock_nor_image(copy: Path) -> None:
    from builder.pipeline import prepare

    before = prepare.prepare(copy, "cpu").plan.inputs_hash
    accepting(copy, "CVE-2026-1 keras 2999-12-31")
    assert prepare.prepare(copy, "cpu").plan.inputs_hash == before
