"""All that the factory knows about PyTorch.

* stack.py: which of its releases works on an accelerator, and why no newer one;
* probes/: whether it finds its libraries, and whether what it wrote can be used;
* devices.py: where it lists its devices.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from builder.core.plugins import later
from builder.facts.frameworks import Exclude, Framework, OptionalLibrary

FRAMEWORK: Final = Framework(
    name="torch",
    title="PyTorch",
    distributions=frozenset({"torch"}),
    releases=partial(later("builder.devicecode.gpu_support:versions"), "PyTorch"),
    resolve=later("builder.frameworks.torch.stack:resolve"),
    suites=partial(later("builder.prove.suites:both"), "torch", ("torch",), 2, compiles=True),
    opened=later("builder.frameworks.torch.opened:missing"),
    # torch.compile and Triton compile C and C++, against Python's headers too, while a job runs
    apt=("g++", "libpython3-dev"),
    beside=("setuptools",),  # torch.utils.cpp_extension
    environment=lambda _packages, _site: {
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor",
        "TRITON_CACHE_DIR": "/tmp/triton",  # else in HOME, which is / for a user without an account
        "USER": "trainer",  # torch.compile asks getpass, and that else /etc/passwd
    },
    needed_by=frozenset(
        {"torchvision", "torchaudio", "torchtext", "torchdata", "torchmetrics", "accelerate"}
        | {"lightning", "pytorch-lightning", "timm", "axolotl", "deepspeed", "xformers", "peft"}
        | {"trl", "unsloth", "ultralytics", "bitsandbytes", "pytorch-ignite", "torch-geometric"}
    ),
    aliases=frozenset({"torch", "pytorch", "pytorch-gpu", "pytorch-cpu"}),
    companions=frozenset(
        {"torchvision", "torchaudio", "torchtext", "torchdata", "torchcodec", "torchao", "triton"}
        | {"xformers", "functorch", "torchrec", "fbgemm-gpu", "torch-tensorrt"}
    ),
    indexes=frozenset({"https://download.pytorch.org/whl"}),
    devices="builder.frameworks.torch.devices",
    optional=(
        # NVIDIA, cuSPARSELt, "Supported compute capabilities"
        OptionalLibrary("libcusparseLt.so", "8.0", "only 2:4 sparsity uses it, from 8.0 on"),
        # NVIDIA, GPUDirect Storage, cuFile API
        OptionalLibrary("libcufile.so", "", "only reading files into a GPU's memory uses it"),
        # torch.distributed._symmetric_memory, set_backend("NVSHMEM")
        OptionalLibrary("libnvshmem_host.so", "", "only symmetric memory by NVSHMEM uses it"),
        OptionalLibrary("libtorch_nvshmem.so", "", "only symmetric memory by NVSHMEM uses it"),
    ),
    module=r"torch/_C\.",
    rendezvous={
        # torch.distributed's own, for one process in each container
        "MASTER_ADDR": "{host}",
        "MASTER_PORT": "{port}",
        "RANK": "{rank}",
        "WORLD_SIZE": "{count}",
        "LOCAL_RANK": "0",
        # the defaults of torchrun's options, for several processes in each container
        "PET_MASTER_ADDR": "{host}",
        "PET_MASTER_PORT": "{port}",
        "PET_NODE_RANK": "{rank}",
        "PET_NNODES": "{count}",
    },
    exclude_nvidia=(
        Exclude("nvidia-*", ("nvidia/*/include/**",), "headers, for compilers"),
        Exclude("nvidia-cufft*", ("nvidia/cufft/lib/libcufftw.so*",), "cuFFT as FFTW"),
        Exclude("nvidia-cublas*", ("nvidia/cublas/lib/libnvblas.so*",), "cuBLAS as BLAS"),
    ),
    exclude=(Exclude("torch", ("torch/lib/*.a",), "static libraries, for linkers"),),
)
