"""Can PyTorch compile here, as a user whom the image does not know? Needs no GPU.

Request: {"capability": "7.0"}
On the CPU, torch.compile makes C++, which g++ compiles against PyTorch's headers. On a GPU it makes
kernels for Triton. Triton compiles them by itself, but starts them by a C module, which it builds
with gcc against Python's headers. The module is linked to the driver: here to an empty one.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.frameworks import libraries

if TYPE_CHECKING:
    from builder.frameworks.libraries import Json, Wrong

tl: Any = None
"""triton.language: Triton looks up in this module what its kernels name."""
LOCK = "lock the target again (builder lock) and build it: PyTorch's locks bring what compiles"
TYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e5": "float8_e5m2",
    "fp8e4nv": "float8_e4m3fn",
}
"""Types that are not multiplied on every GPU: Triton's names and PyTorch's."""


def softmax(x, y, size: tl.constexpr):  # type: ignore
    """A kernel that each GPU can run."""
    at = tl.arange(0, size)
    power = tl.exp(tl.load(x + at))
    tl.store(y + at, power / tl.sum(power, 0))


def square(x, y, size: tl.constexpr):  # type: ignore
    """A kernel that multiplies a matrix with itself."""
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    matrix = tl.load(x + at)
    tl.store(y + at, tl.dot(matrix, matrix))


def compile_kernel(kernel: Any, kind: str, capability: str) -> str:
    """Let Triton compile a kernel down to machine code; say for what, by which release. kind: the
    type of its input."""
    global tl
    triton: Any = importlib.import_module("triton")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
    tl = triton.language
    signature = {"x": f"*{kind}", "y": "*fp32", "size": "constexpr"}
    source = triton.compiler.ASTSource(triton.jit(kernel), signature, {"size": 32})
    number = int(capability.replace(".", ""))
    triton.compile(source, target("cuda", number, 32)).asm["cubin"]
    return f"sm_{number}, Triton {triton.__version__}"


def build_launcher() -> str:
    """Let Triton build and import the module that starts kernels; return the compiler."""
    driver: Any = importlib.import_module("triton.backends.nvidia.driver")
    gcc = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(driver.dirname, "driver.c").read_text()
        names = sorted(set(re.findall(r"\bcu[A-Z]\w*", text)))
        source, libcuda = Path(folder, "empty.c"), Path(folder, "libcuda.so.1")
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
        named = ["-o", str(libcuda), f"-Wl,-soname,{libcuda}"]  # the loader opens it by its path
        subprocess.run([gcc, "-shared", "-fPIC", *named, str(source)], check=True)
        os.environ["TRITON_LIBCUDA_PATH"] = folder
        driver.CudaUtils()
    return gcc


def compile_on_cpu() -> str:
    """Let PyTorch compile a function, and compare what it returns; return its release."""
    torch: Any = importlib.import_module("torch")

    def function(x: Any) -> Any:
        return (x.sin() + x * 2).sum()

    x = torch.linspace(0, 1, 64)
    if not torch.allclose(torch.compile(function)(x), function(x)):
        raise ValueError("what it compiled returns something else")
    return str(torch.__version__)


def probe(request: Json, seen: Json, wrong: Wrong) -> None:
    """Ask everything, and note what is seen."""
    capability = request["capability"]
    newer = "take a release of PyTorch whose Triton knows this GPU (builder explain)"
    for name, what, fix, ask in (
        ("cpu", "torch.compile fails on the CPU", LOCK, compile_on_cpu),
        ("launcher", "Triton cannot start kernels: torch.compile fails", LOCK, build_launcher),
        (
            *("kernel", f"Triton compiles nothing for {capability}", newer),
            lambda: compile_kernel(softmax, "fp32", capability),
        ),
    ):
        try:
            seen[name] = ask()
        except Exception as error:
            wrong(f"{what}: {libraries.line(error)}", fix)
    seen["refused"] = unsupported(capability) if "kernel" in seen else {}
    seen["note"] = ", not ".join([seen.get("kernel", ""), *seen["refused"]])


def unsupported(capability: str) -> Json:
    """Return the types that Triton multiplies no matrices of for a GPU, each with its words."""
    answers = {}
    for kind, name in TYPES.items():
        try:
            compile_kernel(square, kind, capability)
        except Exception as error:
            answers[name] = (str(error).splitlines() or [""])[-1]
    return answers


if __name__ == "__main__":
    print(json.dumps(libraries.answer(probe, json.loads(sys.argv[1]))))
