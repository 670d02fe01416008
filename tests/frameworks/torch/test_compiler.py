"""The probe that asks whether PyTorch can compile, in images that lack what compiles.

PyTorch and Triton are modules here that call a compiler as the real ones do; those are proven with
the target v100-torch (test_broken.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..standins import run

TORCH = """
import os, pathlib, shutil
from types import SimpleNamespace as Is
__version__ = "2.10.0"
class linspace:
    def __init__(self, *_): pass
    def sin(self): return self
    def __mul__(self, _): return self
    def __add__(self, _): return self
    def sum(self): return 64
def allclose(a, b): return a == b
def compile(function):
    if not shutil.which("g++"): raise RuntimeError("No working C++ compiler found")
    pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).mkdir(parents=True)
    return function
"""
TRITON = """
from types import SimpleNamespace as Is
__version__ = "3.6.0"
language = None
def jit(function): return function
def compile(source, target):
    if target.arch < 70: raise RuntimeError(f"ptxas: Value 'sm_{target.arch}' is not defined")
    if source.kind == "*fp8e4nv" and target.arch < 89: raise TypeError("at 1:0\\nno fp8e4nv")
    return Is(asm={"cubin": b"code"})
compiler = Is(ASTSource=lambda function, signature, constants: Is(kind=signature["x"]))
"""
DRIVER = """
import os, pathlib, shutil
dirname = os.path.dirname(__file__)
def CudaUtils():
    cache = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
    cache.mkdir(parents=True)
    if not shutil.which("gcc"): raise RuntimeError("Failed to find C compiler")
    libcuda = pathlib.Path(os.environ["TRITON_LIBCUDA_PATH"], "libcuda.so.1")
    if "void cuInit(" not in libcuda.read_text(): raise ImportError("undefined symbol: cuInit")
"""
GCC = (
    "#!/bin/sh\n"
    + 'for source; do :; done\nwhile [ "$1" != -o ]; do shift; done\n'
    + ('while read -r line; do echo "$line"; done < "$source" > "$2"\n')
)
"""A compiler that writes the source."""
SOURCE = "int cuInit(int);\nint start(void) { return cuInit(0); }\n"


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """A folder of packages and one of programs; the variables of a container that has them."""
    nvidia = "triton/backends/nvidia"
    for path, text in {
        "torch/__init__.py": TORCH,
        "triton/__init__.py": TRITON,
        "triton/backends/compiler.py": (
            "class GPUTarget:\n    def __init__(self, name, arch, warp): self.arch = arch\n"
        ),
        f"{nvidia}/driver.py": DRIVER,
        f"{nvidia}/driver.c": SOURCE,
        "bin/gcc": GCC,
        "bin/g++": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    return {
        "PYTHONPATH": f"{tmp_path}",
        "PATH": f"{tmp_path}/bin",
        "TRITON_CACHE_DIR": f"{tmp_path}/cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/cache/inductor",
    }


def asked(image: dict[str, str], capability: str = "7.0") -> tuple[list[str], dict[str, Any]]:
    """Return the problems of the probe, and what it saw."""
    answer = run({"capability": capability}, image, "builder.frameworks.torch.probes.compiler")
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]], answer["seen"]


def test_it_compiles_and_says_for_what_and_which_type_it_does_not_multiply(
    image: dict[str, str],
) -> None:
    problems, seen = asked(image)
    assert problems == []
    assert seen["launcher"].endswith("/bin/gcc") and seen["cpu"] == "2.10.0"
    assert seen["refused"] == {"float8_e4m3fn": "no fp8e4nv"}
    assert seen["note"] == "sm_70, Triton 3.6.0, not float8_e4m3fn"


def test_it_multiplies_every_type_on_a_newer_one(image: dict[str, str]) -> None:
    assert asked(image, "9.0")[1]["note"] == "sm_90, Triton 3.6.0"


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("bin/gcc", "Triton cannot start kernels: torch.compile fails: FileNotFoundError"),
        ("bin/g++", "torch.compile fails on the CPU: RuntimeError: No working C++ compiler"),
        ("triton/backends/nvidia/driver.c", "Triton cannot start kernels"),
    ],
)
def test_what_lacks_a_compiler_is_refused(
    without: str, says: str, image: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / without).unlink()
    problems, _ = asked(image)
    assert len(problems) == 1 and problems[0].startswith(says)


def test_a_cache_that_the_user_cannot_write_is_refused(
    image: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    cpu, launcher = asked(image)[0]
    assert "NotADirectoryError" in cpu and "NotADirectoryError" in launcher


def test_a_gpu_that_triton_does_not_know_is_named(image: dict[str, str]) -> None:
    problems, seen = asked(image, "6.0")
    assert problems == [
        "Triton compiles nothing for 6.0: RuntimeError: ptxas: Value 'sm_60' is not defined"
    ]
    assert seen["refused"] == {}
