"""The bill of materials says what the locks say, and strangers read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from builder.core.project import find_root
from builder.lock import model
from builder.prove import wheels
from builder.registry import parse
from builder.trust import sbom
from builder.trust.layers import Layers

ROOT = find_root(Path(__file__).parent)
HISTORY = Layers(
    (
        ("rootfs", "sha256:0"),
        ("RUN # install apt.lock\nset -eu", "sha256:1"),
        ("RUN # install cuda.lock\nset -eu", "sha256:2"),
        ("RUN # install tensorflow.lock\nset -eu", "sha256:3"),
        ("RUN # install extra.lock\nset -eu", "sha256:4"),
        ("COPY app /app", "sha256:5"),
    )
)
SITE = "/opt/venv/lib/python3.11/site-packages"
LIBRARIES = (
    f"{SITE}/tensorflow/libtensorflow_cc.so.2",
    f"{SITE}/nvidia/cublas/lib/libcublas.so.12",
)


def subject(**changes: Any) -> sbom.BillSubject:
    """A V100's image, pruned for 7.0."""
    values: dict[str, Any] = {
        "where": parse("h.example.com/team/x"),
        "digest": "sha256:" + "a" * 64,
        "labels": {f"{sbom.PREFIX}.prune": "tensorflow", f"{sbom.PREFIX}.runs-on": "7.0"},
        "layers": HISTORY,
        "program": "trainer",
        "libraries": LIBRARIES,
        "made_at": "2026-11-22T00:00:00+00:00",
        "made_by": "0.1.0",
    }
    return sbom.BillSubject(**{**values, **changes})


def bill(target: str = "v100", **changes: Any) -> dict[str, Any]:
    return sbom.bill(subject(**changes), model.read(ROOT, target), wheels.read(ROOT))


def component(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [each for each in found["components"] if each["name"] == name]
    return one


def properties(one: dict[str, Any]) -> dict[str, str]:
    return {each["name"].partition(":")[2]: each["value"] for each in one["properties"]}


@pytest.mark.parametrize("target", ["v100", "cpu", "tpu", "h100"])
def test_it_is_cyclonedx_and_holds_each_locked_package_once(target: str) -> None:
    found = bill(target)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(found)) is None
    lock = model.read(ROOT, target)
    locked = {(pin.name, pin.version) for pin in lock.packages.values()}
    locked |= {(deb.name, deb.version) for _, deb in sbom.debian_packages(lock)}
    named = [(one["name"], one["version"]) for one in found["components"][:-1]]
    assert set(named) == locked and len(named) == len(locked)
    assert all(one["hashes"] for one in found["components"][:-1])
    assert found["components"][-1]["name"] == "trainer"


def test_a_package_of_each_kind() -> None:
    found = bill()
    expat = component(found, "libexpat1")
    assert expat["purl"] == (
        "pkg:deb/debian/libexpat1@2.5.0-1%2Bdeb12u5?arch=amd64&distro=bookworm&upstream=expat"
    )
    assert expat["supplier"] == {"name": "Debian"}
    assert properties(expat) == {"lock": "apt.lock", "layer": "sha256:1"}
    assert properties(component(found, "adduser")) == {
        "lock": "os-bookworm.lock", "layer": "sha256:0",
    }  # fmt: skip

    cudnn = component(found, "nvidia-cudnn-cu12")
    assert cudnn["licenses"] == [{"license": {"name": "NVIDIA Proprietary Software"}}]
    assert (cudnn["supplier"]["name"], properties(cudnn)["layer"]) == ("NVIDIA", "sha256:2")
    assert component(found, "keras")["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert component(found, "numpy")["licenses"][0]["expression"].startswith("BSD-3-Clause AND")
    assert "licenses" not in component(found, "namex")  # its METADATA says none
    assert properties(component(found, "trainer")) == {"layer": "sha256:5"}


def modified(found: dict[str, Any]) -> dict[str, list[str]]:
    """The modified packages, each with its modified files."""
    return {
        one["name"]: [each["name"] for each in one["components"]]
        for one in found["components"]
        if one.get("modified")
    }


def test_pruned_libraries_are_marked_and_no_others() -> None:
    tensorflow = {"tensorflow": ["tensorflow/libtensorflow_cc.so.2"]}
    assert modified(bill()) == tensorflow
    whole = {f"{sbom.PREFIX}.prune": "all", f"{sbom.PREFIX}.runs-on": "7.0"}
    assert modified(bill(labels=whole)) == tensorflow | {
        "nvidia-cublas-cu12": ["nvidia/cublas/lib/libcublas.so.12"]
    }
    assert modified(bill(labels={})) == {}
    assert modified(bill(libraries=())) == {}  # the image does not have them


def test_an_unknown_history_names_no_layer() -> None:
    found = bill(layers=Layers(()))
    assert all("layer" not in properties(one) for one in found["components"])


def test_a_layer_of_one_package_is_found_by_the_package() -> None:
    layers = Layers((("numpy 2.4.60", "sha256:8"), ("keras 3.15.1, numpy 2.4.6", "sha256:9")))
    assert layers.holds("tensorflow.lock", "numpy 2.4.6") == "sha256:9"
    assert layers.holds("tensorflow.lock", "umpy 2.4.6") is None


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
    read = {(one["name"], one["version"]) for one in json.loads(done.stdout)["artifacts"]}
    ours = {(one["name"], one["version"]) for one in bill()["components"] if "version" in one}
    assert read >= ours
