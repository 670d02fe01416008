"""Are JAX's plugin for a GPU, and the libraries that it opens by name, in an image of others?

The plugin composes the names at run time (XLA, tsl/platform/default/dso_loader.cc), so they are
read from no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from builder.devicecode.library import Library
from builder.frameworks import libraries
from builder.frameworks.parts import parts
from builder.prove.receipts import Defect, Finding

_PLUGIN: Final = re.compile(r"-packages/jax_plugins/xla_cuda(\d+)/")
_OPENED: Final = (
    *("libcudart", "libcublas", "libcublasLt", "libcufft", "libcusolver", "libcusparse"),
    *("libcupti", "libcudnn", "libnccl"),
)


def missing(installed: Sequence[Library], why_not: Callable[..., str]) -> Iterator[Defect]:
    """Yield what an image for a GPU lacks. why_not: says why a library does not open."""
    plugins = {match[1] for each in installed if (match := _PLUGIN.search(each.path))}
    if not plugins:
        yield Defect(
            "JAX has no plugin for a GPU: it trains on the CPU",
            "install jax[cuda12], or jax[cuda13] from compute capability 7.5 on",
        )
    for cuda in sorted(plugins):
        if int(cuda) not in libraries.NUMBERS:
            yield Finding(
                f"what JAX's plugin for CUDA {cuda} opens is not known",
                "let the image start on a machine with such a GPU",
            )
            continue
        names = (libraries.file_name(stem, (int(cuda), 0)) for stem in _OPENED)
        reasons = ((name, why_not(name, "xla_cuda_plugin")) for name in names)
        for name, why in ((name, why) for name, why in reasons if why):
            yield Defect(
                f"JAX opens {name}, which {why}: its plugin does not start, "
                "and it trains on the CPU",
                f"install jax[cuda{cuda}], which brings it",
            )
    yield from parts(why_not)
