"""The probe that asks JAX for its libraries, in images that are broken in a dozen ways.

JAX and its libraries are stand-ins that say what broken ones would say: five gigabytes of the real
ones are proven with the target v100-jax.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ..standins import LIBRARIES, LOCKED, PTXAS, number, run, shared_object

FILES = {
    "jax/version.py": "__version__ = '0.12.0.1'",
    "jax/__init__.py": """
from types import SimpleNamespace as Is
class ones:
    def __init__(self, *_): pass
    def __matmul__(self, _): return self
    def sum(self): return 64
numpy = Is(ones=ones)
""",
    "jaxlib/__init__.py": "",
    "jaxlib/version.py": "__version__ = '0.12.0.1'",
    "jax_plugins/xla_cuda12/__init__.py": """
import ctypes, pathlib
def initialize():
    for path in pathlib.Path(__file__).parents[2].glob("nvidia/*/lib/*.so.*"):
        if "libcudnn_" not in path.name:
            ctypes.CDLL(str(path))
def _check_cuda_versions(raise_on_first_error):
    raise RuntimeError("operation cuInit(0) failed: Unknown CUDA error 303")
""",
    "jax_plugins/xla_cuda12/xla_cuda_plugin.so": "",
    "jax_cuda12_plugin/__init__.py": "",
    "jax_cuda12_plugin/_versions.py": "",
    "jax_cuda12_plugin/version.py": "__version__ = '0.12.0.1'",
    "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc": "",
    "nvidia/cuda_nvcc/bin/ptxas": PTXAS,
}
LIBTPU = """
import os
__version__ = "0.0.50.1"
def get_library_path():
    return os.path.join(os.path.dirname(__file__), "libtpu.so")
"""
WHEELS = ("jax", "jaxlib", "jax-cuda12-plugin")
REQUEST = {
    "accelerator": "gpu",
    "cuda": "12.5",
    "capability": "7.0",
    "locked": {**dict.fromkeys(WHEELS, "0.12.0.1"), **LOCKED},
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the stand-ins of JAX and of its libraries."""
    return installed(tmp_path / "site")


def installed(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name, functions in LIBRARIES.items():
        shared_object(folder / "nvidia" / name, functions)
    return folder


def asked(*folders: Path, tpu_library_path: str = "", **request: Any) -> list[str]:
    """Return the problems of the probe with these folders on Python's path."""
    environ = {"PYTHONPATH": ":".join(map(str, folders)), "PATH": "/usr/bin:/bin"}
    if tpu_library_path:
        environ["TPU_LIBRARY_PATH"] = tpu_library_path
    answer = run(REQUEST | request, environ, "builder.frameworks.jax.probes.loader")
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]]


def test_cupti_13_tells_its_version_only_beside_a_driver(site: Path) -> None:
    plugin = site / "jax_plugins/xla_cuda12/__init__.py"
    error = "operation cuInit(0) failed: Unknown CUDA error 303"
    plugin.write_text(plugin.read_text().replace(error, "Unable to load cuPTI. Is it installed?"))
    assert asked(site) == []
    (site / "nvidia/cuda_cupti/lib/libcupti.so.12").unlink()
    refused, opened = asked(site)
    assert "Unable to load cuPTI" in refused and opened == "JAX opened no libcupti"


OLDER = "raise RuntimeError('jaxlib version 0.9 is older than the minimum')\nclass ones"
NO_CUDNN = "Unable to load cuDNN. Is it installed?"
FAULTS: dict[str, dict[tuple[str, ...], str]] = {
    "versions and compilers": {
        ("jax/version.py", "0.12.0.1", "0.9.2"): "jax is 0.9.2, the lock says 0.12.0.1",
        ("jax_cuda12_plugin/version.py", "0.12.0", "0.11.2"): "jax-cuda12-plugin is 0.11.2.1",
        ("jaxlib/version.py", "0.12.0.1", "0.11.2"): "jaxlib is 0.11.2, the lock says",
        ("jax/__init__.py", "return 64", "return 60"): "on the CPU is 60.0, not 64",
        ("nvidia/cuda_nvcc/bin/ptxas", "sm_70", "sm_75"): "for 7.0: no --gpu-name",
    },
    "import": {
        ("jax/__init__.py", "class ones", OLDER): "JAX does not import: RuntimeError: jaxlib ver"
    },
    "plugin": {
        (
            *("jax_plugins/xla_cuda12/__init__.py", "operation cuInit(0) failed", NO_CUDNN),
        ): "JAX's plugin does not start: RuntimeError: Unable to load cuDNN"
    },
    "libraries": {
        ("nvidia/nccl/lib/libnccl.so.2",): "JAX opened no libnccl",
        ("nvidia/cusolver/lib/libcusolver.so.11",): "JAX opened no libcusolver",
        ("nvidia/cudnn/lib/libcudnn_adv.so.9",): "fails at the first operation that needs",
        ("jax_cuda12_plugin/_versions.py",): "cannot ask for its libraries' versions: ModuleNot",
        ("nvidia/cuda_nvcc/bin/ptxas",): "XLA finds no ptxas",
        ("nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc",): "XLA finds no nvvm/libdevice",
    },
    "XLA": {("jax_plugins/xla_cuda12/xla_cuda_plugin.so",): "no library: JAX trains on"},
}
"""A file, what stands in it and what is written in its place, else it is removed: what is said."""


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_broken_or_missing_is_named_with_its_cause(name: str, site: Path) -> None:
    for file, *change in FAULTS[name]:
        path = site / file
        if not change:
            path.unlink()
            continue
        old, new = change
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    problems = asked(site)
    assert len(problems) == len(FAULTS[name]), problems
    for text in FAULTS[name].values():
        assert any(text in problem for problem in problems), text


def test_wheels_for_the_cpu_another_cudnn_two_plugins_and_two_jaxlibs(tmp_path: Path) -> None:
    shutil.rmtree(installed(tmp_path / "cpu") / "jax_plugins")
    assert asked(tmp_path / "cpu") == ["JAX has no plugin for CUDA 12 (none): it trains on the CPU"]
    good = installed(tmp_path / "good")
    cudnn = good / "nvidia/cudnn/lib/libcudnn.so.9"
    shared_object(cudnn, {"cudnnGetVersion": number(92800)})
    assert asked(good) == [f"{cudnn} is version 9.28.0, the lock says 9.10.2.21"]
    shared_object(cudnn, LIBRARIES["cudnn/lib/libcudnn.so.9"])
    (tmp_path / "b/jax_plugins/xla_cuda13").mkdir(parents=True)
    assert asked(good, tmp_path / "b") == [
        "two plugins get into one process: xla_cuda12 and xla_cuda13"
    ]
    shutil.copytree(good / "jaxlib", tmp_path / "c/jaxlib")
    (two,) = asked(good, tmp_path / "c")
    assert two.startswith("two copies of jaxlib are on Python's path")


def test_a_tpu_without_its_library_or_with_another_one(site: Path) -> None:
    (problem,) = asked(site, accelerator="tpu", locked={})
    assert problem.startswith("JAX finds no libtpu: ModuleNotFoundError")
    shared_object(site / "libtpu/libtpu.so", {"GetPjrtApi": number(0)})
    (site / "libtpu/__init__.py").write_text(LIBTPU)
    request = {"accelerator": "tpu", "locked": {"libtpu": "0.0.50.1"}}
    assert asked(site, **request) == []
    (elsewhere,) = asked(site, tpu_library_path="/lib/libtpu.so", **request)
    assert elsewhere.startswith("TPU_LIBRARY_PATH leads JAX to /lib/libtpu.so, not to the locked")
    (site / "libtpu/__init__.py").write_text(LIBTPU.replace("0.0.50.1", "0.0.21"))
    assert asked(site, **request) == ["libtpu is 0.0.21, the lock says 0.0.50.1"]


def test_in_an_image_without_a_lock_the_plugin_that_is_there_is_asked(site: Path) -> None:
    assert asked(site, cuda="", locked={}) == []
    (site / "nvidia/cufft/lib/libcufft.so.11").unlink()
    assert asked(site, cuda="", locked={}) == ["JAX opened no libcufft"]
    shutil.rmtree(site / "jax_plugins")
    assert "JAX has no plugin for CUDA 12 (none)" in asked(site, cuda="", locked={})[0]
