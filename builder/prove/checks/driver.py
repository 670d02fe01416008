"""Does the image hold what is the driver's? It comes from the machine with the GPU.

The container toolkit mounts the driver's libraries by name: a file that is there already ends the
start of the container, or shadows the machine's (nvidia-container-toolkit#289, #176).
"""

from __future__ import annotations

import posixpath

from builder.facts import cuda
from builder.prove.image import Image, listed
from builder.prove.receipts import Defect
from builder.prove.suite import Answer, Check

LIBCUDA = "libcuda.so"


def run(image: Image) -> Answer:
    """Look for the driver's libraries. CUDA's stubs, and its forward compatibility package, may lie
    in a base that others have made, but for a libcuda on the loader's path (check `loader`)."""
    names = (LIBCUDA, *cuda.DRIVER_LIBRARIES)
    named = [path for path in image.tree.files if posixpath.basename(path).startswith(names)]
    remnants = sorted(path for path in named if is_in_the_way(path, image.has_own_base))
    if not remnants:
        return [], {}
    message = (
        f"the image holds libraries of the driver: {listed(remnants)}; the machine's are mounted, "
        "and these are in their way (`file exists`) or do not fit its kernel module"
    )
    fix = "remove them, or the driver's packages (libcuda1, libnvidia-*, nvidia-utils)"
    return [Defect(message, fix)], {"libraries": remnants}


def is_in_the_way(path: str, ours: bool) -> bool:
    """Tell whether a file of the driver's name is not allowed where it lies."""
    if ours and posixpath.basename(path).startswith(LIBCUDA):
        return True
    beside_no_driver = {"stubs", "compat"} & set(path.split("/")) or "/cuda_compat" in path
    return not beside_no_driver


CHECK = Check.of("driver", 1, run)
