"""All that the factory knows about PyTorch.

* releases.yaml, stack.py: its releases, the CUDA that each wheel asks for, exactly; which of them
  works on an accelerator, and why no newer one;
* probes/, checks/: whether it finds its libraries, and whether what it wrote can be used;
* suite.py: the suites of checks that an image with PyTorch goes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from builder.frameworks import Exclude, Framework

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.prove.suite import Suite


def _releases() -> tuple[str, ...]:
    from builder.frameworks.torch import stack

    return tuple(release.version for release in stack.releases())


def _resolve(spec: ImageSpec) -> Stack:
    from builder.frameworks.torch import stack

    return stack.resolve(spec)


def _suites() -> Mapping[str, Suite]:
    from builder.frameworks.torch import suite

    return suite.SUITES


FRAMEWORK: Final = Framework(
    name="torch",
    title="PyTorch",
    short="torch",
    distributions=frozenset({"torch"}),
    releases=_releases,
    resolve=_resolve,
    suites=_suites,
    exclude_nvidia=(
        Exclude("nvidia-*", ("nvidia/*/include/**",), None, "headers, for compilers"),
        Exclude("nvidia-cufft*", ("nvidia/cufft/lib/libcufftw.so*",), None, "cuFFT as FFTW"),
        Exclude("nvidia-cublas*", ("nvidia/cublas/lib/libnvblas.so*",), None, "cuBLAS as BLAS"),
    ),
    exclude=(
        Exclude("torch", ("torch/include/**",), None, "headers, to compile extensions"),
        Exclude("torch", ("torch/lib/*.a",), None, "static libraries, for linkers"),
    ),
)
