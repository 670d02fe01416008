"""The libraries that cuDNN opens when it first needs them, in an image that anybody made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from builder.frameworks import libraries
from builder.prove.receipts import Defect


def parts(why_not: Callable[..., str]) -> Iterator[Defect]:
    """Yield those that do not open beside a cuDNN that does. why_not: says why one does not."""
    for major, names in libraries.CUDNN_PARTS.items():
        if why_not(f"libcudnn.so.{major}"):
            continue
        files = [f"libcudnn_{part}.so.{major}" for part in names]
        if missing := [
            f"{file}, which {why}" for file in files if (why := why_not(file, "libcudnn"))
        ]:
            more = f", and {len(missing) - 1} more of its parts" if missing[1:] else ""
            yield Defect(
                f"cuDNN opens {missing[0]}{more}: {libraries.NO_OPERATION}",
                f"install cuDNN {major} whole again, nvidia-cudnn or the base's package",
            )
