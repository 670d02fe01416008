"""The table of which release runs on which GPU, and the script that computes it."""

from __future__ import annotations

import importlib.util
import io
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from builder.config import device_code, gpu_stack
from builder.config.stack import kernels_run
from builder.devicecode import inventory
from builder.devicecode.verdict import Audit
from builder.facts import accelerators, gpu_support
from builder.facts.gpu_support import Wheel
from builder.frameworks.tensorflow import releases

from .writer import container, library, ptx, sass

ROOT = Path(__file__).parents[2]
PTX = b".version 8.5\n.target sm_90\n.address_size 64\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("gpu_support_script", str(ROOT / "scripts/gpu-support"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_what_the_file_gives(script: ModuleType) -> None:
    releases = gpu_support.read()
    assert (ROOT / "docs/gpu-support.md").read_text() == gpu_support.document(releases)
    assert gpu_support.FILE.read_text() == gpu_support.dump(releases)
    read = [[f"{wheel.package}=={wheel.version}" for wheel in row.wheels] for row in releases]
    assert read == [wanted for versions in script.RELEASES.values() for wanted in versions]
    assert all(tuple(row.cells) == script.GPUS for row in releases)
    assert all(len(wheel.sha256) == 64 for row in releases for wheel in row.wheels)


def test_it_says_what_the_rule_says_of_a_locked_wheel(script: ModuleType) -> None:
    """The locks hold the same release for another Python."""
    (release,) = (row for row in gpu_support.read() if row.wheels[0].version == "2.21.0")
    wheels = [each for each in device_code.read(ROOT).values() if each.name == "tensorflow"]
    assert {wheel.version for wheel in wheels} == {"2.21.0"}
    for wheel in wheels:
        of_lock = Audit(wheel.libraries)
        assert {gpu: script.cell(of_lock, gpu, 12) for gpu in script.GPUS} == release.cells


NOT_COMPILED = ("2.16", "2.17", "2.18", "2.19", "2.20")
"""Their build says compute_90; the PTX of 1,149 modules says sm_90a, which no driver compiles."""
TORCH = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
"""The list in the libtorch_cuda.so of PyTorch 2.15.0, which torch.cuda.get_arch_list() answers."""


SAYS = {"native": "native", "older minor": "native", "PTX": "ptx", "missing": "none"}


def test_the_wheels_say_what_the_projects_say() -> None:
    """Fifty-six pairs: TensorFlow's build_info.py (tensorflow.yaml) and PyTorch's own list."""
    known = {row.minor: row.capabilities for row in releases.tables().releases}
    compared = 0
    for row in gpu_support.read():
        minor = row.version.rpartition(".")[0]
        published = known[minor] if row.framework == "TensorFlow" else TORCH
        if row.framework == "TensorFlow" or (row.framework, minor) == ("PyTorch", "2.15"):
            for gpu, cell in row.cells.items():
                capability = accelerators.find(gpu).compute_capability or ""
                expected = kernels_run(capability, published)
                if minor in NOT_COMPILED and expected == "ptx":
                    expected = "none"
                assert SAYS[cell.support] == expected, (row.framework, row.version, gpu)
                compared += 1
    assert compared == 56


@pytest.mark.parametrize(
    ("release", "capability", "runs"),
    [
        ("2.20", "7.0", "native"),
        ("2.20", "10.0", "none"),
        ("2.21", "10.0", "ptx"),
        ("2.14", "9.0", "ptx"),
    ],
)
def test_the_resolver_judges_a_release_by_its_wheel(
    release: str, capability: str, runs: str
) -> None:
    """By what its build published where no wheel was read: 2.14 is older than the table."""
    known = {row.minor: row for row in releases.tables().releases}
    assert gpu_stack._kernels(capability, known[release]) == runs


def test_the_oldest_driver_is_that_of_cuda_the_ptx_and_the_gpu(script: ModuleType) -> None:
    code = library(container(sass(70), sass(80), ptx(90, compression="", payload=PTX)))
    libraries = inventory.of_stream([("libx.so", io.BytesIO(code))]).compared()
    release = script.judged("X", [(Wheel("x", "1.0", "0" * 64), libraries, 12)])
    assert {gpu: str(cell) for gpu, cell in release.cells.items()} == {
        **dict.fromkeys(("V100", "T4", "A100", "L4"), "native (525)"),
        "H100": "PTX, 1 min (555)",
        **dict.fromkeys(("B200", "RTX-PRO-6000"), "PTX, 1 min (570)"),
    }
    assert str(script.cell(Audit(libraries), "V100", 13)) == "native (580)"
    hopper = inventory.of_stream([("libx.so", io.BytesIO(library(container(sass(90)))))]).compared()
    assert str(script.cell(Audit(hopper), "V100", 12)) == "-"


def test_a_wheels_metadata_says_its_cuda(script: ModuleType) -> None:
    for package, requires, major in (
        ("jax-cuda12-plugin", (), 12),
        ("torch", ("filelock", 'nvidia-cublas-cu12==12.6.4.1; platform_system == "Linux"'), 12),
        ("torch", ("sympy>=1.13", "cuda-toolkit[cublas,cudart]==13.2.2"), 13),
        ("onnxruntime-gpu", ('nvidia-cuda-runtime~=13.0; extra == "cuda"',), 13),
    ):
        assert script.cuda_major(package, requires) == major
    with pytest.raises(SystemExit, match="nothing says which CUDA"):
        script.cuda_major("numpy", ("packaging",))
