"""The exclude list: files of wheels that training never loads, each rule with its reason and size.

A rule speaks of the wheels of cuda.lock and tensorflow.lock alone: what image.yaml and the trainer
add comes whole. A test trains, and sees that nothing of what is excluded is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from builder.config.lockfile import CUDA, TENSORFLOW


@dataclass(frozen=True)
class Exclude:
    """A rule.

    wheels: a pattern of the names of distributions. paths: patterns of paths below site-packages;
    `*` stands for a part of a name, `**` for any number of folders and names. megabytes: what it
    takes away, unpacked, of CUDA 12.5 and TensorFlow 2.21.0.
    """

    wheels: str
    paths: tuple[str, ...]
    megabytes: float
    why: str


# TensorFlow's loader asks for cudart, cublas, cublasLt, cudnn, cufft, cupti, cusolver, cusparse,
# nccl, nvml and nvJitLink, cuDNN for nvrtc, and XLA runs ptxas with libdevice.
# fmt: off
_CUDA: Final = (
    ("nvidia-*", ("nvidia/*/include/**", "nvidia/cuda_nvcc/nvvm/include/**"), 9.5,
     "headers, for compilers"),
    ("nvidia-cusolver*", ("nvidia/cusolver/lib/libcusolverMg.so*",), 90.2,
     "cuSOLVER on several GPUs at once"),
    ("nvidia-cufft*", ("nvidia/cufft/lib/libcufftw.so*",), 2.1, "cuFFT under FFTW's interface"),
    ("nvidia-cublas*", ("nvidia/cublas/lib/libnvblas.so*",), 0.8, "cuBLAS under BLAS's interface"),
    ("nvidia-cuda-nvcc*", ("nvidia/cuda_nvcc/nvvm/lib64/**",), 27.4,
     "libnvvm, which nvcc compiles with; XLA has its own"),
    ("nvidia-cuda-cupti*", ("nvidia/cuda_cupti/lib/libnvperf_*.so*",
                            "nvidia/cuda_cupti/lib/libpcsamplingutil.so*",
                            "nvidia/cuda_cupti/lib/libcheckpoint.so*"), 36.1,
     "for Nsight; the profiler loads libcupti alone"),
)
_TENSORFLOW: Final = (
    ("tensorflow*", ("tensorflow/include/**",), 399.3,
     "headers, to compile operations; there is no compiler in the image"),
    ("tensorflow*", ("tensorflow/xla_aot_runtime_src/**",), 0.1,
     "sources, to link models that were compiled ahead of time"),
    ("tensorflow*", ("tensorflow/compiler/mlir/stablehlo/**",), 26.2,
     "StableHLO from Python: nothing in TensorFlow imports it"),
    ("libclang", ("clang/native/libclang.so",), 63.7,
     "a requirement of TensorFlow's that nothing in it imports"),
    ("numpy", ("numpy/*/lib/*.a",), 0.1, "static libraries, for linkers"),
    ("numpy", ("numpy/tests/**", "numpy/*/tests/**"), 6.7, "tests"),
    ("h5py", ("h5py/tests/**",), 0.5, "tests"),
    ("opt-einsum", ("opt_einsum/tests/**",), 0.1, "tests"),
    ("keras", ("keras/**_test.py",), 4.0, "tests"),
)
# fmt: on

EXCLUDE: Final = {
    CUDA: tuple(Exclude(*rule) for rule in _CUDA),
    TENSORFLOW: tuple(Exclude(*rule) for rule in _TENSORFLOW),
}
"""Lock file -> the rules for its wheels."""


def rules(lock_file: str, wheel: str) -> tuple[Exclude, ...]:
    """Return the rules for a wheel of a lock file, by its name."""
    return tuple(rule for rule in EXCLUDE.get(lock_file, ()) if fnmatchcase(wheel, rule.wheels))


def excluded(path: str, by: Sequence[Exclude]) -> bool:
    """Return whether a rule excludes a file.

    path: below site-packages, or of a script `../../..`.
    """
    return any(matches(path, pattern) for rule in by for pattern in rule.paths)


def matches(path: str, pattern: str) -> bool:
    """Return whether a pattern stands for a path."""
    return bool(_compiled(pattern).fullmatch(path))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(p) or re.escape(p) for p in re.split(r"(\*+)", pattern)))
