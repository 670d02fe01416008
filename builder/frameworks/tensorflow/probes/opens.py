"""The libraries that TensorFlow opens by name on a GPU, their file names and their wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from builder.frameworks import libraries

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Version = tuple[int, ...]

TRAINS_ON_CPU = (
    "TensorFlow sees no GPU and trains on the CPU: it registers GPUs only if all of these load"
)
NO_FUSION = "cuDNN compiles no kernels at run time: fused operations and some convolutions fail"
WITHOUT = {
    "libnvrtc": NO_FUSION,
    "libnccl": "a MirroredStrategy over several GPUs fails at its first step",
    "libcupti": "TensorBoard's profiler shows no GPU events",
}
"""Library -> what happens where it is missing, if not TRAINS_ON_CPU."""


class Opened(NamedTuple):
    """One library: the name that is given to dlopen(), and its wheel, without nvidia- and -cu12."""

    name: str
    package: str
    opener: str = ""
    """The beginning of the name of the library whose code opens it, "" for TensorFlow's own."""
    without: str = TRAINS_ON_CPU


def opened(cuda: Version, cudnn: int) -> tuple[Opened, ...]:
    """Return all that a TensorFlow opens that was built with this CUDA, and this major version of
    cuDNN, in its order (tsl's dso_loader.cc)."""

    def row(stem: str, opener: str = "", without: str = "") -> Opened:
        package, _ = libraries.LIBRARIES.get(stem, ("cudnn", ""))
        missing = without or WITHOUT.get(stem, TRAINS_ON_CPU)
        return Opened(libraries.file_name(stem, cuda, cudnn), package, opener, missing)

    first = ("cudart", "cublas", "cublasLt", "cufft", "cusolver", "cusparse", "cudnn")
    parts = libraries.CUDNN_PARTS[9 if cudnn >= 9 else 8]
    return (
        *(row(f"lib{name}") for name in first),
        *(row(f"libcudnn_{part}", "libcudnn", libraries.NO_OPERATION) for part in parts),
        row("libnvrtc", "libcudnn_graph" if cudnn >= 9 else "libcudnn_cnn_infer"),
        *([row("libnvJitLink", "libcusparse")] if cuda[0] >= 12 else []),
        row("libnccl"),
        row("libcupti"),
    )


def numbers(text: str) -> Version:
    """Return the leading numbers of a version: "12.5.3.2" -> (12, 5, 3, 2)."""
    parts: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
