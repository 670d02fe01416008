"""The bill of materials says what the locks say, and strangers read it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder.config import device_code, lockfile
from builder.core.project import find_root
from builder.registry import parse
from builder.trust import packages, sbom

ROOT = find_root(Path(__file__).parent)
SITE = "/opt/venv/lib/python3.11/site-packages"
LIBRARIES = (
    f"{SITE}/tensorflow/libtensorflow_cc.so.2",
    f"{SITE}/nvidia/cublas/lib/libcublas.so.12",
)


def image(**changes: Any) -> sbom.DescribedImage:
    """Return a V100's image, pruned for 7.0."""
    values: dict[str, Any] = {
        "name": parse("h.example.com/team/x"),
        "digest": "sha256:" + "a" * 64,
        "labels": {f"{sbom.PREFIX}.prune": "tensorflow", f"{sbom.PREFIX}.runs-on": "7.0"},
        "program": "trainer",
        "libraries": LIBRARIES,
        "made_at": "2026-11-22T00:00:00+00:00",
        "made_by": "0.1.0",
    }
    return sbom.DescribedImage(**{**values, **changes})


@functools.cache
def bill(target: str = "v100") -> dict[str, Any]:
    return sbom.bill(image(), lockfile.read(ROOT, target), device_code.read(ROOT))


def component(document: dict[str, Any], name: str) -> dict[str, Any]:
    (single,) = [each for each in document["components"] if each["name"] == name]
    return single


@pytest.mark.parametrize("target", ["v100", "tpu"])
def test_it_is_cyclonedx_and_holds_each_locked_package_once(target: str) -> None:
    document = bill(target)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    locked = [(each.name, each.version) for each in packages.locked(lockfile.read(ROOT, target))]
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


def test_pruned_libraries_are_marked_and_no_others() -> None:
    lock, read = lockfile.read(ROOT, "v100"), device_code.read(ROOT)
    names = {"tensorflow", "nvidia-cublas-cu12", "keras"}
    few = {
        file: tuple(pin for pin in pins if pin.name in names) for file, pins in lock.wheels.items()
    }
    small = replace(lock, root=None, apt={}, wheels=few)

    def modified(**changes: Any) -> dict[str, list[str]]:
        """Return the packages that were pruned, each with its files."""
        document = sbom.bill(image(**changes), small, read)
        assert document == sbom.bill(image(**changes), small, read)
        assert document["compositions"][0]["aggregate"] == "incomplete"  # on a published base
        return {
            each["name"]: [file["name"] for file in each["components"]]
            for each in document["components"]
            if "pedigree" in each
        }

    tensorflow = {"tensorflow": ["tensorflow/libtensorflow_cc.so.2"]}
    assert modified() == tensorflow
    whole = {f"{sbom.PREFIX}.prune": "all", f"{sbom.PREFIX}.runs-on": "7.0"}
    assert modified(labels=whole) == tensorflow | {
        "nvidia-cublas-cu12": ["nvidia/cublas/lib/libcublas.so.12"]
    }
    assert modified(labels={}) == {}
    assert modified(libraries=()) == {}  # the image does not have them


def test_syft_reads_the_same_packages(tmp_path: Path) -> None:
    (tmp_path / "bill.json").write_text(json.dumps(bill()))
    done = subprocess.run(
        [
            Path(sys.executable).parent / "syft",
            "convert",
            tmp_path / "bill.json",
            "-o",
            "syft-json",
        ],
        env={"SYFT_CHECK_FOR_APP_UPDATE": "false", "HOME": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    read = {(each["name"], each["version"]) for each in json.loads(done.stdout)["artifacts"]}
    ours = {(each["name"], each["version"]) for each in bill()["components"] if "version" in each}
    assert read >= ours
