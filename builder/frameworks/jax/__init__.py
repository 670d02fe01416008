"""All that the factory knows about JAX.

* stack.py: which CUDA and cuDNN an accelerator needs;
* probes/: whether it finds its libraries, and whether what it wrote can be used;
* devices.py: where it lists its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from builder.facts.frameworks import Exclude, Framework, OptionalLibrary, WhyNot

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.devicecode.library import Library
    from builder.prove.receipts import Defect
    from builder.prove.suite import Suite


class JAX(Framework):
    name = "jax"
    title = "JAX"
    distributions = frozenset({"jax"})
    needed_by = frozenset(
        {"jaxlib", "flax", "optax", "equinox", "dm-haiku", "chex", "orbax-checkpoint", "numpyro"}
    )
    companions = frozenset(
        {"flax", "optax", "chex", "equinox", "dm-haiku", "orbax-checkpoint", "orbax", "distrax"}
    )
    aliases = frozenset({"jax"})
    indexes = frozenset({"https://storage.googleapis.com/jax-releases"})
    exclude_nvidia = (
        Exclude("nvidia-*", ("nvidia/*/include/**",), "headers, for compilers"),
        Exclude("nvidia-cufft*", ("nvidia/*/lib/libcufftw.so*",), "cuFFT as FFTW"),
        Exclude("nvidia-cublas*", ("nvidia/*/lib/libnvblas.so*",), "cuBLAS as BLAS"),
    )
    rendezvous: ClassVar[Mapping[str, str]] = {
        # JAX reads the first one by itself; a program hands the others to jax.distributed
        "JAX_COORDINATOR_ADDRESS": "{host}:{port}",
        "JAX_NUM_PROCESSES": "{count}",
        "JAX_PROCESS_ID": "{rank}",
    }
    devices = Path(__file__).with_name("devices.py")
    optional = (
        # jax/_src/mosaic/gpu and XLA ask for this flag
        OptionalLibrary(
            "libnvshmem_host.so", "", "only --xla_gpu_experimental_enable_nvshmem uses it"
        ),
    )
    module = r"jaxlib/(_jax|xla_extension)\."
    plugins = "jax_plugins"
    xla_program = "import jax; print(jax.jit(lambda x: x + 1)(1.0))"

    def releases(self) -> tuple[str, ...]:
        from builder.devicecode import gpu_support

        return gpu_support.versions(self.title)

    def resolve(self, spec: ImageSpec) -> Stack:
        from builder.frameworks.jax import stack

        return stack.resolve(spec)

    def suites(self) -> Mapping[str, Suite]:
        from builder.prove import suites

        return suites.both(self.name, ("jax", "jaxlib"), 3)

    def opened(self, libraries: Sequence[Library], why_not: WhyNot) -> Iterable[Defect]:
        from builder.frameworks.jax import opened

        return opened.missing(libraries, why_not)


FRAMEWORK: Final = JAX()
