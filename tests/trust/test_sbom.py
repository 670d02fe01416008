"""The bill of materials says what the locks say, and strangers read it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.config import lockfile
from builder.registry import parse
from builder.trust import sbom
from tests import ROOT


def image(**changes: Any) -> sbom.DescribedImage:
    """Return a V100's image, pruned for 7.0."""
    values: dict[str, Any] = {
        "name": parse("h.example.com/team/x"),
        "digest": "sha256:" + "a" * 64,
        "program": "trainer",
        "pruned": "7.0",
        "made_at": "2026-11-22T00:00:00+00:00",
        "made_by": "0.1.0",
    }
    return sbom.DescribedImage(**{**values, **changes})


@functools.cache
def bill() -> dict[str, Any]:
    return sbom.bill(image(), lockfile.read(ROOT, "v100"))


def component(document: dict[str, Any], name: str) -> dict[str, Any]:
    (single,) = [each for each in document["components"] if each["name"] == name]
    return single


def test_it_is_cyclonedx_and_holds_each_locked_package_once() -> None:
    from cyclonedx.schema import SchemaVersion  # a second and a half of every collection
    from cyclonedx.validation.json import JsonStrictValidator

    document = bill()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    locked = [(each.name, each.version) for each in sbom.locked(lockfile.read(ROOT, "v100"))]
    named = [
        (each["name"], each["version"]) for each in document["components"] if "version" in each
    ]
    assert sorted(named) == sorted(locked)
    assert component(document, "trainer")["type"] == "application"
    assert document["compositions"][0]["aggregate"] == "complete"


def test_a_package_of_each_kind() -> None:
    document = bill()
    expat = component(document, "libexpat1")
    assert expat["purl"] == (
        "pkg:deb/debian/libexpat1@2.5.0-1%2Bdeb12u5?arch=amd64&distro=bookworm&upstream=expat"
    )
    assert expat["supplier"] == {"name": "Debian"} and len(expat["hashes"][0]["content"]) == 64
    assert expat["properties"] == [{"name": f"{sbom.PREFIX}:lock", "value": "apt.lock"}]
    cudnn = component(document, "nvidia-cudnn-cu12")
    assert cudnn["licenses"] == [{"license": {"name": "NVIDIA Proprietary Software"}}]
    assert cudnn["supplier"] == {"name": "NVIDIA"}
    assert component(document, "keras")["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    numpy = component(document, "numpy")
    assert numpy["licenses"][0]["expression"].startswith("BSD-3-Clause AND")
    assert "licenses" not in component(document, "namex")  # its METADATA says none


def test_what_lacks_a_lock_and_what_was_pruned_is_said() -> None:
    lock = replace(lockfile.read(ROOT, "v100"), rootfs=None)  # on a published base
    document = sbom.bill(image(), lock)
    assert document == sbom.bill(image(), lock)
    assert document["compositions"][0]["aggregate"] == "incomplete"
    (pruned,) = document["metadata"]["component"]["properties"]
    assert pruned == {"name": f"{sbom.PREFIX}:pruned-for", "value": "7.0"}
    assert "properties" not in sbom.bill(image(pruned=""), lock)["metadata"]["component"]


def test_syft_reads_the_same_packages(tmp_path: Path) -> None:
    (tmp_path / "bill.json").write_text(json.dumps(bill()))
    done = subprocess.run(
        [Path(sys.executable).with_name("syft"), "convert", tmp_path / "bill.json", "-osyft-json"],
        env={"SYFT_CHECK_FOR_APP_UPDATE": "false", "HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    read = {(each["name"], each["version"]) for each in json.loads(done.stdout)["artifacts"]}
    ours = {(each["name"], each["version"]) for each in bill()["components"] if "version" in each}
    assert read >= ours
