"""All that the factory knows about JAX.

* stack.py: which CUDA and cuDNN an accelerator needs;
* probes/: whether it finds its libraries, and whether what it wrote can be used;
* devices.py: where it lists its devices.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from builder.core.plugins import later
from builder.facts.frameworks import Exclude, Framework, OptionalLibrary

FRAMEWORK: Final = Framework(
    name="jax",
    title="JAX",
    distributions=frozenset({"jax"}),
    releases=partial(later("builder.devicecode.gpu_support:versions"), "JAX"),
    resolve=later("builder.frameworks.jax.stack:resolve"),
    suites=partial(later("builder.prove.suites:both"), "jax", ("jax", "jaxlib"), 3),
    opened=later("builder.frameworks.jax.opened:missing"),
    needed_by=frozenset(
        {"jaxlib", "flax", "optax", "equinox", "dm-haiku", "chex", "orbax-checkpoint", "numpyro"}
    ),
    aliases=frozenset({"jax"}),
    companions=frozenset(
        {"flax", "optax", "chex", "equinox", "dm-haiku", "orbax-checkpoint", "orbax", "distrax"}
    ),
    indexes=frozenset({"https://storage.googleapis.com/jax-releases"}),
    devices="builder.frameworks.jax.devices",
    optional=(
        # jax/_src/mosaic/gpu and XLA ask for this flag
        OptionalLibrary(
            "libnvshmem_host.so", "", "only --xla_gpu_experimental_enable_nvshmem uses it"
        ),
    ),
    plugins="jax_plugins",
    module=r"jaxlib/(_jax|xla_extension)\.",
    flags="import jax; print(jax.jit(lambda x: x + 1)(1.0))",
    rendezvous={
        # JAX reads the first one by itself; a program hands the others to jax.distributed
        "JAX_COORDINATOR_ADDRESS": "{host}:{port}",
        "JAX_NUM_PROCESSES": "{count}",
        "JAX_PROCESS_ID": "{rank}",
    },
    exclude_nvidia=(
        Exclude("nvidia-*", ("nvidia/*/include/**",), "headers, for compilers"),
        Exclude("nvidia-cufft*", ("nvidia/*/lib/libcufftw.so*",), "cuFFT as FFTW"),
        Exclude("nvidia-cublas*", ("nvidia/*/lib/libnvblas.so*",), "cuBLAS as BLAS"),
    ),
)
