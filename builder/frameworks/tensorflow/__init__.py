"""All that the factory knows about TensorFlow.

* releases.py, tensorflow.yaml: what its releases were built for;
* stack.py: which of them, of Python and of CUDA work together;
* opened.py: which libraries an image that anybody made lacks;
* probes/: programs that ask, inside an image, whether it would find its libraries, and whether what
  a training run has written can be used;
* devices.py: where it lists its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from builder.facts.frameworks import Exclude, Framework, Part, WhyNot

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack
    from builder.devicecode.library import Library
    from builder.prove.receipts import Defect
    from builder.prove.suite import Suite

# What training never loads, of CUDA 12.5 and TensorFlow 2.21.0.
# TensorFlow's loader asks for cudart, cublas, cublasLt, cudnn, cufft, cupti, cusolver, cusparse,
# nccl, nvml and nvJitLink, cuDNN for nvrtc, and XLA runs ptxas with libdevice.
# fmt: off
_CUDA: Final = (
    ("nvidia-*", ("nvidia/*/include/**", "nvidia/cuda_nvcc/nvvm/include/**"),
     "headers, for compilers"),
    ("nvidia-cusolver*", ("nvidia/cusolver/lib/libcusolverMg.so*",),
     "cuSOLVER on several GPUs at once"),
    ("nvidia-cufft*", ("nvidia/cufft/lib/libcufftw.so*",), "cuFFT under FFTW's interface"),
    ("nvidia-cublas*", ("nvidia/cublas/lib/libnvblas.so*",), "cuBLAS under BLAS's interface"),
    ("nvidia-cuda-nvcc*", ("nvidia/cuda_nvcc/nvvm/lib64/**",),
     "libnvvm, which nvcc compiles with; XLA has its own"),
    ("nvidia-cuda-cupti*", ("nvidia/cuda_cupti/lib/libnvperf_*.so*",
                            "nvidia/cuda_cupti/lib/libpcsamplingutil.so*",
                            "nvidia/cuda_cupti/lib/libcheckpoint.so*"),
     "for Nsight; the profiler loads libcupti alone"),
)
_TENSORFLOW: Final = (
    ("tensorflow*", ("tensorflow/include/**",),
     "headers, to compile operations; there is no compiler in the image"),
    ("tensorflow*", ("tensorflow/xla_aot_runtime_src/**",),
     "sources, to link models that were compiled ahead of time"),
    ("tensorflow*", ("tensorflow/compiler/mlir/stablehlo/**",),
     "StableHLO from Python: nothing in TensorFlow imports it"),
    ("libclang", ("clang/native/libclang.so",),
     "a requirement of TensorFlow's that nothing in it imports"),
    ("numpy", ("numpy/*/lib/*.a",), "static libraries, for linkers"),
    ("numpy", ("numpy/tests/**", "numpy/*/tests/**"), "tests"),
    ("h5py", ("h5py/tests/**",), "tests"),
    ("opt-einsum", ("opt_einsum/tests/**",), "tests"),
    ("keras", ("keras/**_test.py",), "tests"),
)
# fmt: on


class TensorFlow(Framework):
    name = "tensorflow"
    title = "TensorFlow"
    distributions = frozenset(
        {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-tpu"}
        | {"tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu"}
    )
    needed_by = frozenset(
        {"tensorflow-text", "tensorflow-addons", "tensorflow-estimator", "tf-keras", "tfx"}
        | {"mesh-tensorflow", "tensorflow-hub", "tensorflow-recommenders", "tf-models-official"}
        | {"tf-agents", "tensorflow-gan", "tensorflow-io"}
    )
    companions = frozenset(
        {"keras", "tf-keras", "tensorboard", "tensorflow-estimator", "tensorflow-text"}
        | {"tensorflow-addons", "tensorflow-io", "tensorflow-probability"}
    )
    # TensorFlow 2.16.1's release notes: tf.estimator is gone; tensorflow/addons, README
    ended: ClassVar[Mapping[str, str]] = {
        "tensorflow-estimator": "2.15",
        "tensorflow-addons": "2.15",
    }
    aliases = frozenset({"tensorflow", "tf", "tf1", "tf2"})
    exclude_nvidia = tuple(Exclude(*rule) for rule in _CUDA)
    exclude = tuple(Exclude(*rule) for rule in _TENSORFLOW)
    devices = Path(__file__).with_name("devices.py")
    module = r"tensorflow/python/_pywrap_tensorflow_internal\."
    one_bundle = True  # tensorflow#40065
    one_host = True  # TPUStrategy of the TPU "local": each host would train by itself
    xla_program = (
        "import tensorflow\n"
        "print(tensorflow.function(lambda x: x + 1, jit_compile=True)(tensorflow.constant(1.0)))"
    )

    # its own XLA compiles only where it sees the GPU
    compiler = Part(
        "jax-cuda12-pjrt",
        "0.12.0.1",
        "5ec28e06198d094031c37590b4ea753ae8cde4879ab4b60baf40f0dffb673286",
        191846358,
        "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    )

    loader_imports = ("builder.frameworks.tensorflow.probes.opens",)

    def releases(self) -> tuple[str, ...]:
        from builder.devicecode import gpu_support

        return gpu_support.versions(self.title)

    def resolve(self, spec: ImageSpec) -> Stack:
        from builder.frameworks.tensorflow import stack

        return stack.resolve(spec)

    def suites(self) -> Mapping[str, Suite]:
        from builder.prove import suites

        return suites.both(self.name, ("tensorflow", "keras"), 3)

    def environment(self, packages: Iterable[str], site: str) -> Mapping[str, str]:
        """It looks for libtpu here or on the loader's path, not in the package that has it."""
        return {"TPU_LIBRARY_PATH": f"{site}/libtpu/libtpu.so"} if "libtpu" in packages else {}

    def opened(self, libraries: Sequence[Library], why_not: WhyNot) -> Iterable[Defect]:
        from builder.frameworks.tensorflow import opened

        return opened.missing(libraries, why_not)


FRAMEWORK: Final = TensorFlow()
