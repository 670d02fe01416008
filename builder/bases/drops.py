"""What is left out of wheels: files that training never loads, each rule with its reason and size.

A rule speaks of the wheels of cuda.lock and tensorflow.lock alone: what image.yaml and the trainer
add comes whole. A test compares the rules with the locked wheels: none is there for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from builder.lock.model import CUDA, TENSORFLOW


@dataclass(frozen=True)
class Drop:
    """A rule.

    wheels: a pattern of the names of distributions. paths: patterns of paths below site-packages;
    `*` stands for a part of a name, `**` for any number of folders and names. megabytes: what it
    takes away, unpacked, of CUDA 12.5 and TensorFlow 2.21.0.
    """

    wheels: str
    paths: tuple[str, ...]
    megabytes: float
    why: str


DROPS: Final = {
    # TensorFlow's loader asks for cudart, cublas, cublasLt, cudnn, cufft, cupti, cusolver,
    # cusparse, nccl, nvml and nvJitLink, cuDNN for nvrtc, and XLA runs ptxas with libdevice.
    CUDA: (
        Drop(
            "nvidia-*",
            ("nvidia/*/include/**", "nvidia/cuda_nvcc/nvvm/include/**"),
            9.5,
            "headers, for compilers",
        ),
        Drop(
            "nvidia-cusolver*",
            ("nvidia/cusolver/lib/libcusolverMg.so*",),
            90.2,
            "cuSOLVER on several GPUs at once",
        ),
        Drop(
            "nvidia-cufft*",
            ("nvidia/cufft/lib/libcufftw.so*",),
            2.1,
            "cuFFT under FFTW's interface",
        ),
        Drop(
            "nvidia-cublas*",
            ("nvidia/cublas/lib/libnvblas.so*",),
            0.8,
            "cuBLAS under BLAS's interface",
        ),
        Drop(
            "nvidia-cuda-nvcc*",
            ("nvidia/cuda_nvcc/nvvm/lib64/**",),
            27.4,
            "libnvvm, which nvcc compiles with; XLA has its own",
        ),
        Drop(
            "nvidia-cuda-cupti*",
            (
                "nvidia/cuda_cupti/lib/libnvperf_*.so*",
                "nvidia/cuda_cupti/lib/libpcsamplingutil.so*",
                "nvidia/cuda_cupti/lib/libcheckpoint.so*",
            ),
            36.1,
            "for Nsight; the profiler loads libcupti alone",
        ),
    ),
    TENSORFLOW: (
        Drop(
            "tensorflow*",
            ("tensorflow/include/**",),
            399.3,
            "headers, to compile operations; there is no compiler in the image",
        ),
        Drop(
            "tensorflow*",
            ("tensorflow/xla_aot_runtime_src/**",),
            0.1,
            "sources, to link models that were compiled ahead of time",
        ),
        Drop(
            "tensorflow*",
            ("tensorflow/compiler/mlir/stablehlo/**",),
            26.2,
            "StableHLO from Python: nothing in TensorFlow imports it",
        ),
        Drop(
            "libclang",
            ("clang/native/libclang.so",),
            63.7,
            "a requirement of TensorFlow's that nothing in it imports",
        ),
        Drop("numpy", ("numpy/*/lib/*.a",), 0.1, "static libraries, for linkers"),
        Drop("numpy", ("numpy/tests/**", "numpy/*/tests/**"), 6.7, "tests"),
        Drop("h5py", ("h5py/tests/**",), 0.5, "tests"),
        Drop("opt-einsum", ("opt_einsum/tests/**",), 0.1, "tests"),
        Drop("keras", ("keras/**_test.py",), 4.0, "tests"),
    ),
}
"""Lock file -> the rules for its wheels."""


def rules(lock_file: str, wheel: str) -> tuple[Drop, ...]:
    """The rules for a wheel of a lock file, by its name."""
    return tuple(one for one in DROPS.get(lock_file, ()) if fnmatchcase(wheel, one.wheels))


def dropped(path: str, of: Sequence[Drop]) -> bool:
    """Whether a rule leaves out a file. path: below site-packages, or of a script `../../..`."""
    return any(matches(path, pattern) for one in of for pattern in one.paths)


def matches(path: str, pattern: str) -> bool:
    """Whether a path is one that a pattern means."""
    return bool(_compiled(pattern).fullmatch(path))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(p) or re.escape(p) for p in re.split(r"(\*+)", pattern)))
