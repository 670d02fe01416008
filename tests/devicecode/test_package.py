"""The audit as a package of its own: installed elsewhere, with nothing of the factory beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .writer import container, install, library, ptx, sass

ROOT = Path(__file__).parents[2]
CUDNN = library(container(*map(sass, (75, 80, 86)), sass(90, "a"), ptx(120, "f")))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, from a copy, so that no build stays in the tree."""
    copy, site = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("site")
    left_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("packages/device-code-audit", "builder/devicecode"):
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-build-isolation"]
    command += ["--offline", "--no-deps", "--python", sys.executable, "--target", str(site)]
    subprocess.run([*command, str(copy / "packages/device-code-audit")], check=True)
    return site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"nvidia/cudnn/lib/libcudnn_ops.so.9": CUDNN}
    install(tmp_path, "nvidia-cudnn-cu12", "9.28.0.42", files)
    return tmp_path


def run(installed: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """`device-code`, in a Python that sees the installed package and the standard library alone."""
    program = (
        f"import sys; sys.path = [{str(installed)!r}, *[p for p in sys.path if 'site-p' not in p]]"
    )
    program += "; from devicecode.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-I", "-S", "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_has_a_command_and_no_dependency(installed: Path) -> None:
    (about,) = installed.glob("device_code_audit-*.dist-info")
    assert "device-code = devicecode.__main__:main" in (about / "entry_points.txt").read_text()
    assert "Requires-Dist" not in (about / "METADATA").read_text()
    assert not (installed / "builder").exists()


@pytest.mark.parametrize(("gpu", "code"), [("8.0", 0), ("7.0", 4), ("V100", 2)])
def test_the_exit_code_is_the_answer(installed: Path, folder: Path, gpu: str, code: int) -> None:
    done = run(installed, "audit", folder, "--gpu", gpu)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_as_data(installed: Path, folder: Path) -> None:
    done = run(installed, "audit", folder, "--gpu", "7.0", "--format", "json")
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["status"], verdict["runs"]) == ("missing", False)


def test_as_annotations_of_github(installed: Path, folder: Path) -> None:
    done = run(installed, "audit", folder, "--gpu", "7.0", "--format", "github")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::error file={folder}/nvidia/cudnn/lib/libcudnn_ops.so.9,title=device")
    assert "::libcudnn_ops.so.9: missing: .nv_fatbin carries sm_75" in line
    assert "; instead: nvidia-cudnn-cu12 9.10.2.21 or older" in line
    assert run(installed, "audit", folder, "--gpu", "8.0", "--format", "github").stdout == ""


def test_a_folder_without_device_code_is_an_error_there(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "audit", tmp_path, "--gpu", "7.0", "--format", "github")
    assert done.returncode == 4
    assert done.stdout == "::error title=device code for 7.0::no library holds device code\n"
