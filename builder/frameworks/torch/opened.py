"""Does PyTorch use a GPU in an image of others? It is linked to all libraries but its compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from builder.devicecode.library import Library
from builder.frameworks.parts import parts
from builder.prove.receipts import Defect, Finding


def missing(installed: Sequence[Library], why_not: Callable[..., str]) -> Iterator[Defect]:
    """Yield what an image for a GPU lacks. why_not: says why a library does not open."""
    names = [library.name for library in installed]
    if "libtorch_cuda.so" not in names:
        yield Defect(
            "PyTorch was built without CUDA (no libtorch_cuda.so): it sees no GPU",
            "install the wheel of PyPI, or of a CUDA index, not that of the index for the CPU",
        )
    elif not any(name.startswith("libnvrtc") and "builtins" not in name for name in names):
        yield Finding(
            "PyTorch opens libnvrtc, which is not in the image: operations that it "
            "compiles at run time fail",
            "install nvidia-cuda-nvrtc for its CUDA",
        )
    yield from parts(why_not)
