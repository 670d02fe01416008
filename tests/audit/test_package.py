"""The package device-code-audit, installed from its source distribution beside few others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.devicecode.packing import configuration, layout, tar
from tests.devicecode.writer import container, install, library, ptx, sass

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[2] / "packages/device-code-audit"
NEEDED = (
    *("annotated_doc", "annotated_types", "certifi", "docker", "packaging", "pydantic"),
    *("pydantic_core", "requests", "charset_normalizer*", "idna", "yaml"),
    *("typing_extensions.py", "typing_inspection", "urllib3", "uv", "zstandard"),
)
"""What the package names, and what that brings: no google, no kubernetes, no typer."""


def build(*words: object) -> None:
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--offline"]
    subprocess.run([*command, *map(str, words)], check=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The installed program, in a Python that sees its own packages alone."""
    dist, site = (tmp_path_factory.mktemp(name) for name in ("dist", "site"))
    build("--sdist", PACKAGE, "--out-dir", dist)
    (source,) = dist.glob("*.tar.gz")
    build("--wheel", source, "--out-dir", dist)
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


def test_it_is_the_audit_of_the_factory_and_has_every_part_that_it_imports(
    program: list[str], tmp_path: Path
) -> None:
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
    assert "Exit codes:" in run(program, "--help", cwd=tmp_path).stdout
    version = run(program, "--version", cwd=tmp_path).stdout.strip()
    assert f'__version__ = "{version}"' in (PACKAGE / "device_code_audit/__init__.py").read_text()
    refused = run(program, "127.0.0.1:1/x/y:z", "--gpu", "T4", cwd=tmp_path)
    assert refused.returncode == 3
    assert "fix:   look whether the registry is up" in refused.stderr
    layer = tar({"opt/libcudnn_ops.so.9": cudnn})
    (tmp_path / "image.tar").write_bytes(tar(layout(configuration(layer), layer)))
    seen = run(program, "image.tar", "--gpu", "7.0", "--github", cwd=tmp_path)
    assert seen.returncode == 4, seen.stderr
    assert seen.stdout.startswith("::error file=/opt/libcudnn_ops.so.9,title=device code for 7.0::")


def test_the_package_carries_readers_and_facts_and_nothing_of_a_factory(
    program: list[str],
) -> None:
    factory = Path(program[-1]).parents[1] / "device_code_audit/factory"
    carried = sorted((factory / "builder").rglob("*.py"))
    rooms = {path.relative_to(factory / "builder").parts[0] for path in carried}
    readers = {"audit", "devicecode", "reading", "registry"}
    assert rooms == {"__init__.py", "core", "facts", "frameworks", *readers}
    walk = "import pkgutil, sys; sys.path.insert(0, sys.argv[1]); import builder; "
    walk += "[__import__(m.name) for m in pkgutil.walk_packages(builder.__path__, 'builder.')]"
    *python, start, _ = program
    every = [*python, start.partition("sys.argv =")[0] + walk, str(factory)]
    done = subprocess.run(every, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_action_asks_for_what_the_program_takes() -> None:
    action = yaml.safe_load((PACKAGE / "action.yml").read_text())
    (script,) = (step["run"] for step in action["runs"]["steps"] if "run" in step)
    words = "sources=(.venv a.whl); gpus=(V100 7.5)"
    last = script.strip().splitlines()[-1].replace('"$RUNNER_TEMP/device-code-audit/bin/', '"')
    shell = f'{words}; device-code-audit() {{ printf "%s\\n" "$@"; }}; {last}'
    shown = subprocess.run(["bash", "-euc", shell], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [
        *("--github", "--gpu=V100", "--gpu=7.5", "--", ".venv", "a.whl")
    ]
    assert set(action["inputs"]) == {"sources", "gpu"}
