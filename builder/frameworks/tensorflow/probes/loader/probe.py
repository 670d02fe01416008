"""The whole question: would TensorFlow in this image find its libraries?"""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH113, PTH118, PTH120
from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from .gpu import DRIVER_LIBRARIES, Report, build_info, check_driver, check_gpu, framework
from .opening import in_child
from .search import Loader, find_by_name, system_loader

if TYPE_CHECKING:  # Python 3.8 cannot evaluate this
    Json = dict[str, Any]


def check_tpu(tensorflow: str, loader: Loader, report: Report, environ: dict[str, str]) -> None:
    """Open what TensorFlow opens: TPU_LIBRARY_PATH, else libtpu.so; never the package."""
    packaged = os.path.join(os.path.dirname(tensorflow), "libtpu", "libtpu.so")
    path: str | None = environ.get("TPU_LIBRARY_PATH")
    opener = framework(tensorflow)
    if not path and opener is not None:
        path = loader.find("libtpu.so", opener).path
    if not path or not os.path.isfile(path):
        where = "TPU_LIBRARY_PATH is not set, and no libtpu.so is on the loader's path"
        if path:
            where = f"TPU_LIBRARY_PATH={path}: there is no such file"
        report.wrong(
            f"{where}: TensorFlow sees no TPU",
            f"set TPU_LIBRARY_PATH={packaged} in the image"
            if os.path.isfile(packaged)
            else "install libtpu and set TPU_LIBRARY_PATH to its libtpu.so",
        )
        return
    lines, death = in_child("--open", json.dumps([["libtpu.so", path, ""]]))
    error = death or next((line["error"] for line in lines if "error" in line), "")
    if error:
        report.wrong(f"{path} does not open: {error}", "install libtpu as locked")
    report.seen["libraries"] = {"libtpu.so": {"path": path, "version": None}}


def probe(
    request: Json,
    environ: dict[str, str],
    tensorflow: str | None = None,
    loader: Loader | None = None,
    root: str = "/",
) -> Json:
    """Answer the request; the other parameters let a test describe another machine."""
    report = Report()
    loader = loader or system_loader(environ)
    if tensorflow is None:
        spec = importlib.util.find_spec("tensorflow")
        places = list(spec.submodule_search_locations or ()) if spec else []
        tensorflow = places[0] if places else None
    if tensorflow is None:
        report.wrong(
            f"{sys.executable} finds no package tensorflow", "lock it for this image, then build"
        )
    elif request["accelerator"] == "gpu":
        check_gpu(request, tensorflow, loader, report, root)
    else:
        if request["accelerator"] == "tpu":
            check_tpu(tensorflow, loader, report, environ)
        if build_info(tensorflow).get("is_cuda_build"):
            report.wrong(
                "TensorFlow in this image was built with CUDA, which nothing here uses",
                "lock tensorflow-cpu (or tensorflow-tpu): hundreds of megabytes less",
            )
        opener = framework(tensorflow)
        callers = [opener] if opener else []
        check_driver(
            request,
            report,
            loader,
            callers,
            find_by_name(root, (), ("libcuda.so", *DRIVER_LIBRARIES)),
        )
    return {"problems": report.problems, "seen": report.seen}
