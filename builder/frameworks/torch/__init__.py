"""All that the factory knows about PyTorch.

* stack.py: which of its releases works on an accelerator, and why no newer one; builds.py: for
  which CUDAs each is built;
* probes/: whether it finds its libraries, and whether what it wrote can be used;
* devices.py: where it lists its devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from builder.facts.frameworks import Exclude, Framework, OptionalLibrary, WhyNot

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.devicecode.library import Library
    from builder.prove.receipts import Defect
    from builder.prove.suite import Suite


class PyTorch(Framework):
    """PyTorch."""

    name = "torch"
    title = "PyTorch"
    distributions = frozenset({"torch"})
    needed_by = frozenset(
        {"torchvision", "torchaudio", "torchtext", "torchdata", "torchmetrics", "accelerate"}
        | {"lightning", "pytorch-lightning", "timm", "axolotl", "deepspeed", "xformers", "peft"}
        | {"trl", "unsloth", "ultralytics", "bitsandbytes", "pytorch-ignite", "torch-geometric"}
    )
    companions = frozenset(
        {"torchvision", "torchaudio", "torchtext", "torchdata", "torchcodec", "torchao", "triton"}
        | {"xformers", "functorch", "torchrec", "fbgemm-gpu", "torch-tensorrt"}
    )
    # builder/facts/linked.md; functorch 2.0.0, Requires-Dist: torch>=2.0,<2.1
    ended: ClassVar[Mapping[str, str]] = {"torchtext": "2.3", "functorch": "2.0"}
    aliases = frozenset({"torch", "pytorch", "pytorch-gpu", "pytorch-cpu"})
    indexes = frozenset({"https://download.pytorch.org/whl"})
    labelled = True
    # torch.compile and Triton compile C and C++, against Python's headers too, while a job runs
    apt = ("g++", "libpython3-dev")
    beside = ("setuptools",)  # torch.utils.cpp_extension
    exclude_nvidia = (
        Exclude("nvidia-*", ("nvidia/*/include/**",), "headers, for compilers"),
        Exclude("nvidia-cufft*", ("nvidia/cufft/lib/libcufftw.so*",), "cuFFT as FFTW"),
        Exclude("nvidia-cublas*", ("nvidia/cublas/lib/libnvblas.so*",), "cuBLAS as BLAS"),
    )
    exclude = (Exclude("torch", ("torch/lib/*.a",), "static libraries, for linkers"),)
    rendezvous: ClassVar[Mapping[str, str]] = {
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
    }
    devices = Path(__file__).with_name("devices.py")
    optional = (
        # NVIDIA, cuSPARSELt, "Supported compute capabilities"
        OptionalLibrary("libcusparseLt.so", "8.0", "only 2:4 sparsity uses it, from 8.0 on"),
        # NVIDIA, GPUDirect Storage, cuFile API
        OptionalLibrary("libcufile.so", "", "only reading files into a GPU's memory uses it"),
        # torch.distributed._symmetric_memory, set_backend("NVSHMEM")
        OptionalLibrary("libnvshmem_host.so", "", "only symmetric memory by NVSHMEM uses it"),
        OptionalLibrary("libtorch_nvshmem.so", "", "only symmetric memory by NVSHMEM uses it"),
    )
    module = r"torch/_C\."

    def releases(self) -> tuple[str, ...]:
        from builder.devicecode import gpu_support

        return gpu_support.versions(self.title)

    def builds(self, release: str, offered: Collection[str]) -> tuple[str, ...]:
        from builder.frameworks.torch import builds

        known = (each for each in builds.every() if each.release.version == release)
        listed = tuple(each.version for each in known if each.version in offered)
        return listed if offered else (release,)

    def resolve(self, spec: ImageSpec) -> Stack:
        from builder.frameworks.torch import stack

        return stack.resolve(spec)

    def suites(self) -> Mapping[str, Suite]:
        from builder.prove import suites

        return suites.both(self.name, ("torch",), 2, compiles=True)

    def environment(self, _packages: Iterable[str], _site: str) -> Mapping[str, str]:
        """Return where it caches what it compiles, and a user for it."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor",
            "TRITON_CACHE_DIR": "/tmp/triton",  # else in HOME: / for a user without an account
            "USER": "trainer",  # torch.compile asks getpass, and that else /etc/passwd
        }

    def opened(self, libraries: Sequence[Library], why_not: WhyNot) -> Iterable[Defect]:
        from builder.frameworks.torch import opened

        return opened.missing(libraries, why_not)


FRAMEWORK: Final = PyTorch()
