"""The libraries that TensorFlow opens by name on a GPU, their file names and their wheels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # Python 3.8 cannot evaluate this
    Version = tuple[int, ...]

NO_GPU = "TensorFlow sees no GPU and trains on the CPU: it registers GPUs only if all of these load"


class OpenedLibrary(NamedTuple):
    """One library that TensorFlow, or cuDNN for it, opens by name.

    package: the wheel it comes in, without `-cu12`. version: how to ask for its version (`_ask` in
    opening.py). opener: stem of the library whose code opens it, "" for TensorFlow itself. handle:
    TensorFlow's own function that opens it. without: what happens if it is missing.
    """

    stem: str
    package: str
    version: str = ""
    opener: str = ""
    handle: str = ""
    without: str = NO_GPU


_CUDNN_PARTS = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled")
_CUDNN8_PARTS = tuple(f"{a}_{b}" for a in ("ops", "cnn", "adv") for b in ("infer", "train"))
_NO_CONVOLUTION = "cuDNN fails at the first operation that needs it"


def libraries(cuda_major: int, cudnn_major: int) -> tuple[OpenedLibrary, ...]:
    """Return all that is opened by name on a GPU, in TensorFlow's order (tsl's dso_loader.cc)."""
    parts = _CUDNN8_PARTS if cudnn_major < 9 else (*_CUDNN_PARTS, "engines_runtime_compiled")
    compiler = "libcudnn_cnn_infer" if cudnn_major < 9 else "libcudnn_graph"
    linker = OpenedLibrary("libnvJitLink", "nvjitlink", "pair nvJitLinkVersion", "libcusparse")
    return (
        OpenedLibrary(
            "libcudart", "cuda-runtime", "int cudaRuntimeGetVersion 1000", "", "CudaRuntime"
        ),
        OpenedLibrary("libcublas", "cublas", "property cublasGetProperty", "", "Cublas"),
        OpenedLibrary("libcublasLt", "cublas", "size cublasLtGetVersion 10000", "", "CublasLt"),
        OpenedLibrary("libcufft", "cufft", "property cufftGetProperty", "", "Cufft"),
        OpenedLibrary("libcusolver", "cusolver", "property cusolverGetProperty", "", "Cusolver"),
        OpenedLibrary("libcusparse", "cusparse", "property cusparseGetProperty", "", "Cusparse"),
        OpenedLibrary(
            "libcudnn",
            "cudnn",
            f"size cudnnGetVersion {1000 if cudnn_major < 9 else 10000}",
            "",
            "Cudnn",
        ),
        *(
            OpenedLibrary(f"libcudnn_{part}", "cudnn", "", "libcudnn", "", _NO_CONVOLUTION)
            for part in parts
        ),
        OpenedLibrary(
            "libnvrtc",
            "cuda-nvrtc",
            "pair nvrtcVersion",
            compiler,
            without="cuDNN cannot compile kernels at run time: fused operations and some "
            "convolutions fail",
        ),
        *([linker] if cuda_major >= 12 else []),
        OpenedLibrary(
            "libnccl",
            "nccl",
            "int ncclGetVersion 10000",
            "",
            "Nccl",
            "a MirroredStrategy over several GPUs fails at its first step",
        ),
        OpenedLibrary(
            "libcupti", "cuda-cupti", "", "", "Cupti", "TensorBoard's profiler shows no GPU events"
        ),
    )


# The number after .so where it isn't CUDA's major version: these count on their own.
NUMBERS = {
    11: {"libcudart": "11.0", "libcufft": "10", "libnvrtc": "11.2", "libcupti": "11.{minor}"},
    12: {"libcufft": "11", "libcusolver": "11"},
}


def soname(library: OpenedLibrary, cuda: Version, cudnn_major: int) -> str:
    """Return the name that TensorFlow, built with this CUDA and cuDNN, gives to dlopen()."""
    if library.package in ("cudnn", "nccl"):
        number = str(cudnn_major) if library.package == "cudnn" else "2"
    else:
        number = NUMBERS[cuda[0]].get(library.stem, str(cuda[0])).format(minor=cuda[1])
    return f"{library.stem}.so.{number}"


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version: "12.5.3.2" -> (12, 5, 3, 2)."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
