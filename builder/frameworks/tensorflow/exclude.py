"""What training with TensorFlow never loads: files of NVIDIA's wheels, and of its own.

The sizes are those of CUDA 12.5 and TensorFlow 2.21.0.
"""

from __future__ import annotations

from typing import Final

from builder.frameworks import Exclude

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

NVIDIA: Final = tuple(Exclude(*rule) for rule in _CUDA)
OWN: Final = tuple(Exclude(*rule) for rule in _TENSORFLOW)
