"""What is accepted, for scanners: an OpenVEX document that names the image and its packages."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli import app
from builder.config import lockfile
from builder.config.accepted_advisories import AcceptedAdvisory
from builder.registry import parse
from builder.trust import sbom, vex

IMAGE = sbom.image_purl(parse("example.com/training"), "sha256:aa")
TODAY = date(2026, 11, 22)


def accepted(package: str, until: date = TODAY, **more: str) -> AcceptedAdvisory:
    fields = {"id": "DEBIAN-CVE-2023-52425", "package": package, "reason": "no XML"}
    return AcceptedAdvisory.model_validate(fields | {"until": until.isoformat()} | more)


def test_what_cannot_be_reached_is_hidden_and_the_rest_is_affected(root: Path) -> None:
    unreached = accepted("expat", justification="vulnerable_code_not_in_execute_path")
    lock = lockfile.read(root, "cpu")
    document = vex.document(IMAGE, [unreached, accepted("Keras")], lock, "2026-11-22", TODAY)
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    hidden, shown = document["statements"]
    assert hidden["vulnerability"] == {"name": "CVE-2023-52425"}
    assert hidden["status"] == "not_affected"
    assert hidden["justification"] == "vulnerable_code_not_in_execute_path"
    assert shown["status"] == "affected"
    assert shown["action_statement"] == "no XML (accepted until 2026-11-22)"
    (product,) = hidden["products"]
    assert product["@id"] == str(IMAGE)
    assert [each["@id"] for each in product["subcomponents"]] == ["pkg:deb/debian/libexpat1"]
    (product,) = shown["products"]
    assert [each["@id"] for each in product["subcomponents"]] == ["pkg:pypi/keras"]


def test_nothing_is_said_of_what_expired(root: Path) -> None:
    old = accepted("expat", date(2026, 11, 21))
    assert vex.document(IMAGE, [old], lockfile.read(root, "cpu"), "", TODAY)["statements"] == []


def test_the_command_writes_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    file = copy / "images" / "cpu" / "image.yaml"
    file.write_text(
        file.read_text() + "advisories:\n  - id: CVE-2023-52425\n    package: expat\n"
        "    reason: reads no XML\n    until: 2999-12-31\n"
    )
    words = ["show", "vex", "cpu", "--registry", "example.com/training"]
    assert "the digest of its image is not known here" in str(
        CliRunner().invoke(app, words).exception
    )
    done = CliRunner().invoke(app, [*words, "--digest", "sha256:aa"])
    assert done.exit_code == 0, done.output
    (statement,) = json.loads(done.stdout)["statements"]
    assert statement["products"][0]["@id"] == str(IMAGE)
