"""The package device-code-audit, installed from its source distribution beside few others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .writer import container, install, library, ptx, sass

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEEDED = (
    *("annotated_doc", "annotated_types", "packaging", "pydantic", "pydantic_core"),
    *("ruamel", "_ruamel_yaml*", "shellingham", "typer", "typing_extensions.py"),
    *("typing_inspection", "rich", "markdown_it", "mdurl", "pygments", "zstandard"),
)
"""What the audit of files imports of the locked dependencies: no google, no docker."""


def build(*words: object) -> None:
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--offline"]
    subprocess.run([*command, *map(str, words)], check=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The installed program, in a Python that sees its own packages alone."""
    tree, dist, site = (tmp_path_factory.mktemp(name) for name in ("tree", "dist", "site"))
    left_out = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT / "packages/device-code-audit", tree / "audit", ignore=left_out)
    for name in ("builder", "trainer"):
        shutil.copytree(ROOT / name, tree / "factory" / name, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / "factory")
    build("--sdist", tree / "audit", "--out-dir", dist)
    (source,) = dist.glob("*.tar.gz")
    build("--wheel", source, "--out-dir", dist)
    build("--wheel", tree / "factory", "--out-dir", dist)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(site)]
    subprocess.run([*command, *map(str, dist.glob("*.whl"))], check=True)
    for pattern in NEEDED:
        for path in Path(sysconfig.get_path("purelib")).glob(pattern):
            (site / path.name).symlink_to(path)
    (script,) = site.glob("bin/device-code-audit")
    start = f"import runpy, sys; sys.path.insert(0, {str(site)!r}); sys.argv = sys.argv[1:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return [sys.executable, "-I", "-S", "-c", start, str(script)]


def run(program: list[str], *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*program, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_it_is_the_audit_of_the_factory(program: list[str], tmp_path: Path) -> None:
    cudnn = library(container(*map(sass, (75, 80, 86)), sass(90, "a"), ptx(120, "f")))
    files = {"nvidia/cudnn/lib/libcudnn_ops.so.9": cudnn}
    install(tmp_path / "site", "nvidia-cudnn-cu12", "9.28.0.42", files)
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "site")
    wheel = "nvidia_cudnn_cu12-9.28.0.42-py3-none-any.whl"
    Path(packed).rename(tmp_path / wheel)

    fine = run(program, wheel, "--gpu", "A100", cwd=tmp_path)
    assert (fine.returncode, fine.stdout.splitlines()[-1]) == (0, "A100 8.0: native"), fine.stderr
    missing = run(program, wheel, "--gpu", "7.0", "--json", cwd=tmp_path)
    assert missing.returncode == 4
    assert json.loads(missing.stdout)[0]["refused"] == ["7.0"]
    assert "fix:   take nvidia-cudnn-cu12 9.10.2.21 or older" in missing.stderr
    assert run(program, "no-such.whl", cwd=tmp_path).returncode == 2
    assert "--gpu" in run(program, "--help", cwd=tmp_path).stdout
    assert run(program, "--version", cwd=tmp_path).returncode == 0
