"""Versions that are known to fail together: refused by `lock`, named by `check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from builder.cli.group import app
from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import CheckFailed, InputError
from builder.facts import known_bad
from tests.emulators.osv import serving

PAIR = "TensorFlow 2.21.0 with cuDNN 9.3.0.75: a convolution with a bias fails"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def plant(root: Path, target: str, package: str, version: str) -> None:
    """Write a lock with another version of a package, as an older factory may have made it."""
    lock = lockfile.read(root, target)
    assert package in lock.packages
    wheels = {
        file: tuple(replace(p, version=version) if p.name == package else p for p in pins)
        for file, pins in lock.wheels.items()
    }
    lockfile.write(root, replace(lock, wheels=wheels))


@pytest.mark.parametrize("target", ["v100", "t4", "h100"])
def test_lock_refuses_the_pair_by_name_and_writes_nothing(
    target: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    path = copy / "images" / target / "image.yaml"
    path.write_text(path.read_text() + "\ncuda: {cudnn: 9.3.0.75}\n")
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    refused = run("lock", target).exception
    assert isinstance(refused, InputError) and refused.exit_code == 2
    assert refused.message.startswith(f"images/{target}/image.yaml:")
    assert f"cuda.cudnn: {PAIR}" in refused.message and "pull/6418" in refused.message
    fix = "take cuDNN 9.24.0.43, or 9.10.2.21 on GPUs before compute capability 7.5"
    assert refused.fix == f"{fix}, or leave it out"
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
    if target == "v100":
        path.write_text(path.read_text().replace("9.3.0.75", "9.10.2.21"))
        assert compatibility.resolve(image_yaml.load(copy, target)).cudnn == "9.10.2.21"


def test_a_lock_whose_requirements_brought_a_bad_library_is_refused(copy: Path) -> None:
    plant(copy, "v100-torch", "nvidia-cudnn-cu12", "9.11.0.98")
    spec = image_yaml.load(copy, "v100-torch")
    with pytest.raises(InputError, match=r"torch: cuDNN 9\.11\.0\.98: cuDNN loads and") as refused:
        compatibility.require_lock(spec, lockfile.read(copy, "v100-torch"))
    assert refused.value.fix.startswith("take cuDNN 9.10.2.21")


def test_check_names_a_lock_that_has_become_known_bad(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    for target in ("t4", "l4"):
        plant(copy, target, "nvidia-cudnn-cu12", "9.3.0.75")
    result = run("check")
    assert isinstance(result.exception, CheckFailed)
    assert f"t4: {PAIR}" in result.output and f"l4: {PAIR}" in result.output
    with serving() as osv:
        result = run("check", "--advisories", "--osv", osv.address)
    assert isinstance(result.exception, CheckFailed) and result.exception.exit_code == 4
    (line,) = [line for line in result.output.splitlines() if PAIR in line]
    assert line.endswith(
        "take cuDNN 9.24.0.43, or 9.10.2.21 on GPUs before compute capability 7.5; in l4, t4"
    )


def test_no_lock_of_this_repository_is_known_bad() -> None:
    root = Path(__file__).parents[2]
    for spec in image_yaml.load_all(root):
        found = compatibility.known_bad_of_lock(spec, lockfile.read(root, spec.name))
        assert [each for each in found if each.row.fails] == [], spec.name


def test_explain_tells_what_some_programs_fail_with(copy: Path) -> None:
    told = known_bad.find({"tensorflow": "2.19.1", "nvidia-cuda-nvcc-cu12": "12.5.82"}, "9.0")
    assert [each.row.name for each in told] == ["xla-ptxas-12.6-hopper"]
    path = copy / "images/h100/image.yaml"
    path.write_text("accelerator: H100\nsize_budget: 3 GB\ntensorflow: 2.19.1\n")
    facts = compatibility.resolve(image_yaml.load(copy, "h100")).facts
    (fact,) = [fact for fact in facts if fact.statement.startswith("known of ")]
    assert fact.statement == "known of TensorFlow 2.19.1 with nvcc 12.5.82"
    assert fact.source == "https://github.com/openxla/xla/pull/19927"
