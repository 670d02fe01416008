"""Shared objects of some hundred bytes that stand for NVIDIA's libraries, and a folder with those
that an image for a GPU holds: the system's own loader opens them, and their version functions
answer.
"""

from __future__ import annotations

import functools
import json
import py_compile
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.frameworks import libraries
from builder.prove import session

# --- shared objects ------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """int f(): mov eax, value; ret."""
    return b"\xb8" + struct.pack("<I", value) + b"\xc3"


def through_pointer(*values: int) -> bytes:
    """int f(int *a[, int *b]): mov dword [rdi], a; mov dword [rsi], b; xor eax, eax; ret."""
    moves = (b"\xc7\x07", b"\xc7\x06")
    code = b"".join(m + struct.pack("<I", v) for m, v in zip(moves, values, strict=False))
    return code + b"\x31\xc0\xc3"


def by_property(*values: int) -> bytes:
    """int f(int which, int *out): *out = table[which], the table standing behind the code."""
    code = b"\x8b\x04\xb8\x89\x06\x31\xc0\xc3"
    return b"\x48\x8d\x05" + struct.pack("<I", len(code)) + code + struct.pack("<3I", *values)


def shared_object(
    path: Path,
    functions: Mapping[str, bytes] | None = None,
    runpath: str = "",
    rpath: str = "",
    needed: Sequence[str] = (),
) -> Path:
    """Write a 64-bit shared object for this machine's loader: one segment, no sections."""
    functions = functions or {}
    names = bytearray(b"\0")

    def name(text: str) -> int:
        names.extend(text.encode() + b"\0")
        return len(names) - len(text) - 1

    tags = [(14, name(path.name))]
    tags += [(1, name(library)) for library in needed]
    tags += [(29, name(runpath))] if runpath else []
    tags += [(15, name(rpath))] if rpath else []
    code_at = 64 + 3 * 56
    code, symbols = b"", b"\0" * 24
    for function, body in functions.items():
        symbols += struct.pack(
            "<IBBHQQ", name(function), 0x12, 0, 1, code_at + len(code), len(body)
        )
        code += body + b"\x90" * (-len(body) % 16)
    count = len(functions) + 1
    chain = [0, *range(2, count), 0] if functions else [0]
    table = struct.pack(f"<{3 + count}I", 1, count, 1 if functions else 0, *chain[:count])
    symbols_at = code_at + len(code) + -(code_at + len(code)) % 8
    table_at = symbols_at + len(symbols)
    names_at = table_at + len(table)
    dynamic_at = names_at + len(names) + -(names_at + len(names)) % 8
    tags += [(4, table_at), (5, names_at), (6, symbols_at), (10, len(names)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    end = dynamic_at + len(dynamic)

    def segment(kind: int, flags: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 0x1000)

    content = bytearray(end)
    content[:64] = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0),
    )
    content[64:code_at] = (
        segment(1, 7, 0, end)
        + segment(2, 6, dynamic_at, len(dynamic))
        + struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    )
    for at, part in (
        (code_at, code),
        (symbols_at, symbols),
        (table_at, table),
        (names_at, bytes(names)),
        (dynamic_at, dynamic),
    ):
        content[at : at + len(part)] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- an image with TensorFlow and CUDA -----------------------------------------------------------

LIBRARIES: dict[str, dict[str, bytes]] = {
    "cuda_runtime/lib/libcudart.so.12": {"cudaRuntimeGetVersion": through_pointer(12090)},
    "cublas/lib/libcublas.so.12": {"cublasGetProperty": by_property(12, 9, 1)},
    "cublas/lib/libcublasLt.so.12": {"cublasLtGetVersion": number(120901)},
    "cufft/lib/libcufft.so.11": {"cufftGetProperty": by_property(11, 4, 1)},
    "cusolver/lib/libcusolver.so.11": {"cusolverGetProperty": by_property(11, 7, 5)},
    "cusparse/lib/libcusparse.so.12": {"cusparseGetProperty": by_property(12, 5, 10)},
    "cudnn/lib/libcudnn.so.9": {"cudnnGetVersion": number(91002)},
    **{f"cudnn/lib/libcudnn_{part}.so.9": {} for part in libraries.CUDNN_PARTS[9]},
    "cuda_nvrtc/lib/libnvrtc.so.12": {
        "nvrtcVersion": through_pointer(12, 9),
        "nvrtcCreateProgram": number(0),
        "nvrtcCompileProgram": number(0),
    },
    "nvjitlink/lib/libnvJitLink.so.12": {"nvJitLinkVersion": through_pointer(12, 9)},
    "nccl/lib/libnccl.so.2": {"ncclGetVersion": through_pointer(23007)},
    "cuda_cupti/lib/libcupti.so.12": {},
}
LOCKED = {
    "nvidia-cuda-runtime-cu12": "12.9.79",
    "nvidia-cublas-cu12": "12.9.1.4",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-nccl-cu12": "2.30.7",
    "nvidia-cuda-nvrtc-cu12": "12.9.86",
}
PTXAS = "#!/bin/sh\necho $1 | grep -q sm_70 || { echo no $1; exit 1; }\n"
PROBE = (
    "builder.frameworks.tensorflow.probes.loader",
    "builder.frameworks.tensorflow.probes.opens",
)
FOLDERS = ("nccl", "cuda_cupti", "cublas", "cudnn", "cufft", "cusolver", "cusparse", "cuda_runtime")


def run(
    request: Mapping[str, Any], environ: Mapping[str, str], *probe: str, at: Path | str = "."
) -> dict[str, Any]:
    """Return the answer of a probe and its modules, which run as a session sends them, but compiled
    once: from a folder, on a Python that knows nothing of the factory. at: where it is started."""
    program = Path(_programs(probe).name, f"{probe[0].rpartition('.')[2]}.pyc")
    done = subprocess.run(
        [sys.executable, "-S", "-B", program, json.dumps(request)],
        env=environ, capture_output=True, text=True, check=True, cwd=at,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@functools.cache
def _programs(probe: Sequence[str]) -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the files of a probe and its modules as bytecode."""
    folder = tempfile.TemporaryDirectory(prefix="probe-")
    program, *imports = probe
    _, files = session.program_files(program, (*imports, "builder.frameworks.libraries"))
    for path, content in files.items():
        source = Path(folder.name, path)
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(content)
        py_compile.compile(str(source), f"{source}c", doraise=True)
        source.unlink()
    return folder


class Image:
    """A folder that holds what a GPU image holds, as far as the loader is concerned."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "opt/venv/lib/python3.11/site-packages"
        self.nvidia = self.site / "nvidia"
        self.environ: dict[str, str] = {}
        self.kind = "gpu"
        self.strict = True
        self.locked = LOCKED
        self.tensorflow = self.site / "tensorflow"
        for path, functions in LIBRARIES.items():
            others = "$ORIGIN/../../cuda_nvrtc/lib:$ORIGIN/../../nvjitlink/lib"
            needed = ["libnvJitLink.so.12"] if "cusparse" in path else []
            shared_object(self.nvidia / path, functions, f"$ORIGIN:{others}", needed=needed)
        runpath = ":".join(f"$ORIGIN/../nvidia/{folder}/lib" for folder in FOLDERS)
        shared_object(self.tensorflow / "libtensorflow_framework.so.2", runpath=runpath)
        self.write("tensorflow/__init__.py", "")
        self.build_info(is_cuda_build=True, cuda_version="12.5.1", cudnn_version="9")
        self.write("nvidia/cuda_nvcc/bin/ptxas", PTXAS).chmod(0o755)
        self.write("nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc", "BC")

    def build_info(self, **values: object) -> None:
        self.write("tensorflow/python/platform/build_info.py", f"build_info = {values!r}\n")

    def write(self, path: str, text: str) -> Path:
        file = self.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def library(self, name: str) -> Path:
        return next(path for path in self.nvidia.rglob(name))

    def probe(self) -> tuple[list[str], dict[str, Any]]:
        """Messages, what was seen; every problem has to come with a way out."""
        request = {
            **{"accelerator": self.kind, "cuda": "12.9", "cudnn": "9.10", "capability": "7.0"},
            **{"locked": self.locked, "strict": self.strict},
            "root": str(self.root),
        }
        answer = run(request, {"PYTHONPATH": str(self.site), **self.environ}, *PROBE)
        self.fixes = [problem["fix"] for problem in answer["problems"]]
        assert all(self.fixes), "a problem without a way out"
        return [problem["message"] for problem in answer["problems"]], answer["seen"]
