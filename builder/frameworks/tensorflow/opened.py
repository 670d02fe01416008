"""Are the libraries that TensorFlow opens by name in an image that anybody made?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from builder.devicecode.library import Library
from builder.facts.frameworks import minor
from builder.frameworks import libraries
from builder.frameworks.tensorflow import releases
from builder.frameworks.tensorflow.probes.opens import numbers, opened
from builder.prove.receipts import Defect, Finding

_OPENER: Final = "libtensorflow_framework"
"""The library whose search path counts: tsl's dso_loader.cc is in it."""


def missing(installed: Sequence[Library], why_not: Callable[..., str]) -> Iterator[Defect]:
    """Yield what an image for a GPU lacks. why_not: says why a library does not open."""
    own = [library for library in installed if library.package.startswith("tensorflow")]
    version = next((each.version for each in own if "_framework.so" in each.name), "")
    if not version:
        return
    if any(library.package == "tensorflow-cpu" for library in own):
        yield Defect("tensorflow-cpu uses no GPU", "install tensorflow in its place")
        return
    release = releases.find(version) or releases.find(minor(version))
    if release is None or numbers(release.cuda)[0] not in libraries.NUMBERS:
        yield Finding(
            f"what TensorFlow {version} opens on a GPU is not known",
            f"take a release that the tables have, such as {releases.releases()[-1].version}",
        )
        return
    cuda = numbers(release.cuda)
    for each in opened(cuda, numbers(release.cudnn)[0]):
        if why := why_not(each.name, each.opener or _OPENER):
            yield Defect(
                f"TensorFlow {version} opens {each.name}, which {why}: {each.without}",
                f"install nvidia-{each.package}-cu{cuda[0]}, or take a base with CUDA "
                f"{release.cuda} and cuDNN {release.cudnn}",
            )
