"""Would PyTorch find its libraries here? It is imported, and its libraries are asked.

Request: {"release": "2.10.0", "cuda": "12.8", "cudnn": "9.10.2.21", "capability": "7.0",
          "locked": {package: version}}; a version is "" in an image that has no lock
PyTorch links what TensorFlow opens by name: a missing library ends the import, and the loader's
message names it. A wrong one is imported, so each is asked for its version; what cuDNN opens later
is opened here, and NVRTC compiles a kernel for the GPU. Needs no GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

from builder.frameworks import libraries

if TYPE_CHECKING:
    from builder.frameworks.libraries import Json, Wrong


def check_versions(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Compare what PyTorch says of itself with the lock and with the GPU."""
    release, compiled = str(torch.__version__).partition("+")[0], torch.version.cuda
    if compiled is None:
        wrong(
            f"PyTorch {torch.__version__} was built without CUDA: it sees no GPU",
            "install the wheel of PyPI, not the one for the CPU",
        )
        return {"torch": release, "cuda": None}
    cudnn = libraries.dotted(torch.backends.cudnn.version() or 0)
    for name, has, wanted in (
        ("release", release, request["release"]),
        ("CUDA", compiled, request["cuda"]),
        ("cuDNN", cudnn, ".".join(request["cudnn"].split(".")[:3])),
    ):
        if wanted and has != wanted:
            wrong(
                f"PyTorch in {torch.__file__}: {name} {has}, the lock says {wanted}",
                libraries.LOCKED,
            )
    architectures, gpu = torch._C._cuda_getArchFlags() or "", request["capability"].replace(".", "")
    if not any(name[3:-1] == gpu[:-1] and name[-1] <= gpu[-1] for name in architectures.split()):
        wrong(
            f"PyTorch was compiled for {architectures}: nothing runs on {request['capability']}",
            "take the release that `builder explain` names",
        )
    return {"torch": release, "cuda": compiled, "cudnn": cudnn, "compiled_for": architectures}


def probe(request: Json, seen: Json, wrong: Wrong) -> None:
    """Ask everything, and note what is seen."""
    seen["copies"] = libraries.copies("torch", "PyTorch", wrong)
    if importlib.util.find_spec("torch") is None:
        wrong(f"{sys.executable} finds no package torch", "lock it for this image, then build")
        return
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        wrong(f"PyTorch does not import: {' '.join(str(error).split())[:300]}", libraries.LOCKED)
        return
    seen["versions"] = check_versions(torch, request, wrong)
    if seen["versions"]["cuda"]:
        seen["libraries"] = libraries.check(request["locked"], wrong)
        libraries.check_nvrtc(libraries.path_of("libnvrtc"), request["capability"], wrong)
    libraries.check_product(torch.ones((4, 4)) @ torch.ones((4, 4)), wrong)


if __name__ == "__main__":
    print(json.dumps(libraries.answer(probe, json.loads(sys.argv[1]))))
