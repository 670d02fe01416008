"""Advisories against a project's targets: open, accepted, expired; entries of nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli.group import app
from builder.config import lockfile
from builder.core.errors import CheckFailed
from builder.pipeline import make
from tests.emulators.osv import Osv, serving


@pytest.fixture
def osv(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Osv]:
    """A service that knows an advisory against the keras of cpu."""
    monkeypatch.chdir(copy)
    lock = lockfile.read(copy, "cpu")
    with serving() as service:
        service.known["PyPI", "keras", lock.packages["keras"].version] = ["GHSA-planted"]
        yield service


def accept(root: Path, *entries: str) -> None:
    """Accept advisories in each image.yaml with TensorFlow. An entry: id, package, the last day."""
    text = "advisories:\n" + "".join(
        f"  - id: {id_}\n    package: {package}\n    reason: loads no model of others\n"
        f"    until: {until}\n"
        for id_, package, until in (entry.split() for entry in entries)
    )
    for lock in (root / "images").glob("*/tensorflow.lock"):
        path = lock.with_name("image.yaml")
        path.write_text(path.read_text() + text)


def check(osv: Osv, *options: str) -> Result:
    return CliRunner().invoke(app, ["check", "--advisories", "--osv", osv.address, *options])


def test_open_accepted_and_expired(osv: Osv, copy: Path) -> None:
    result, before = check(osv), make.prepare(copy, "cpu").inputs
    assert isinstance(result.exception, CheckFailed) and result.exception.exit_code == 4
    assert "(PyPI): GHSA-planted; in a100, cpu" in result.output
    assert "GHSA-planted" in str(json.loads(check(osv, "--json").stdout)["failures"])
    files = {path: path.read_text() for path in (copy / "images").glob("*/image.yaml")}
    accept(copy, "GHSA-planted keras 2999-12-31", "CVE-2026-2 keras 2999-12-31")
    result = check(osv)
    assert result.exit_code == 0, result.output
    line = "GHSA-planted: accepted until 2999-12-31: loads no model of others; in a100"
    assert line in result.output and "what is known against them is accepted" in result.output
    assert "advisories.1: CVE-2026-2 of keras matches nothing that is known" in result.output
    assert "advisories.0: " not in result.output
    assert make.prepare(copy, "cpu").inputs == before, "it changes nothing in the image"
    for path, text in files.items():
        path.write_text(text)
    accept(copy, "GHSA-planted keras 2026-01-31")
    result = check(osv)
    assert isinstance(result.exception, CheckFailed) and result.exception.exit_code == 4
    assert "advisories.0: GHSA-planted of keras was accepted until 2026-01-31" in result.output
    assert "(PyPI): GHSA-planted; in a100" in result.output
    assert "matches nothing" not in result.output
    osv.known.pop(next(key for key in osv.known if key[1] == "keras"))
    for path, text in files.items():
        path.write_text(text)
    result = check(osv)
    assert result.exit_code == 0 and "nothing is known against them" in result.output
