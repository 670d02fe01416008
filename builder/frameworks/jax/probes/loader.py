"""Would JAX find its accelerator's libraries here? It is imported, and its plugin is asked.

Request: {"accelerator": "gpu" | "tpu" | "cpu", "cuda": "12.9", "capability": "7.0",
          "locked": {package: version}}; cuda is "" in an image that has no lock
JAX trains on the CPU, and says so in one line of its log, where its plugin or a library is missing.
So the plugin is started as far as it comes without a GPU, each library that it opened is asked for
its version, and ptxas compiles for the GPU.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH118, PTH119, PTH207
from __future__ import annotations

import ctypes
import glob
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from builder.frameworks import libraries

if TYPE_CHECKING:
    from builder.frameworks.libraries import Json, Wrong

OPENED = (
    *("libcudart", "libnvrtc", "libcublas", "libcublasLt", "libnccl", "libcupti"),
    *("libcusparse", "libcusolver", "libcufft", "libcudnn"),
)
"""What the plugin opens by name."""


def start_plugin(request: Json, wrong: Wrong) -> bool:
    """Start the plugin of the locked CUDA, or the first; return whether there is one."""
    names = [os.path.basename(path) for path in plugin_folders()]
    first = names[0].replace("xla_cuda", "") if names else "12"
    major = str(request["cuda"]).partition(".")[0] or first
    if f"xla_cuda{major}" not in names:
        has = f"only {' and '.join(names)}" if names else "none"
        wrong(
            f"JAX has no plugin for CUDA {major} ({has}): it trains on the CPU",
            f"install jax-cuda{major}-plugin and jax-cuda{major}-pjrt as locked",
        )
        return False
    if len(names) > 1:
        wrong(f"two plugins get into one process: {' and '.join(sorted(names))}", libraries.LOCKED)
    folder = next(each for each in plugin_folders() if each.endswith(f"xla_cuda{major}"))
    if not glob.glob(os.path.join(folder, "*.so")):  # the plugin says nothing of it
        wrong(
            f"JAX's plugin in {folder} has no library: JAX trains on the CPU",
            f"install jax-cuda{major}-pjrt as locked",
        )
    try:
        importlib.import_module(f"jax_cuda{major}_plugin._versions")
    except ImportError as error:
        fix = f"install jax-cuda{major}-plugin as locked"
        wrong(f"JAX's plugin cannot ask for its libraries' versions: {libraries.line(error)}", fix)
    plugin = importlib.import_module(f"jax_plugins.xla_cuda{major}")
    try:
        plugin.initialize()
        plugin._check_cuda_versions(raise_on_first_error=True)
    except Exception as error:  # what the plugin raises is its own
        # Without a driver, CUPTI 13 tells nobody its version (code 999), and the plugin says that
        # it cannot be loaded; cuInit fails after all libraries were asked.
        there = any(name.startswith("libcupti.") for name in libraries.mapped())
        if "cuInit" not in str(error) and not ("cuPTI" in str(error) and there):
            wrong(f"JAX's plugin does not start: {libraries.line(error)}", libraries.LOCKED)
    return True


def plugin_folders() -> list[str]:
    """Return the folders of all CUDA plugins that Python's path leads to."""
    patterns = [
        os.path.join(folder or os.curdir, "jax_plugins", "xla_cuda*") for folder in sys.path
    ]
    return sorted({path for pattern in patterns for path in glob.glob(pattern)})


def check_opened(wrong: Wrong) -> None:
    for stem in OPENED:
        if not libraries.path_of(stem):
            package, _ = libraries.LIBRARIES[stem]
            wrong(f"JAX opened no {stem}", f"install nvidia-{package} as locked")


def check_tpu(wrong: Wrong) -> Json:
    """Open libtpu, and look for the function by which JAX starts it."""
    named = os.environ.get("TPU_LIBRARY_PATH")  # importing libtpu sets it
    try:
        path = importlib.import_module("libtpu").get_library_path()
        ctypes.CDLL(path).GetPjrtApi  # noqa: B018 - a missing function raises
    except (ImportError, OSError, AttributeError) as error:
        wrong(f"JAX finds no libtpu: {libraries.line(error)}", "install libtpu as locked")
        return {}
    if named not in (None, path):
        wrong(
            f"TPU_LIBRARY_PATH leads JAX to {named}, not to the locked {path}",
            "leave TPU_LIBRARY_PATH unset: JAX finds the libtpu of its own release",
        )
    return {"libtpu": path}


def check_releases(request: Json, wrong: Wrong) -> None:
    """Compare what each wheel of JAX says of itself with the lock. A plugin of another release is
    started, and its programs fail on the accelerator."""
    modules = {"jax": "jax.version", "jaxlib": "jaxlib.version", "libtpu": "libtpu"}
    for path in plugin_folders():
        cuda = os.path.basename(path).replace("xla_", "")
        modules[f"jax-{cuda}-plugin"] = f"jax_{cuda}_plugin.version"
    for package, name in modules.items():
        try:
            has = importlib.import_module(name).__version__
        except ImportError:  # what JAX needs of them, the other questions name
            continue
        wanted = request["locked"].get(package, has)
        if has != wanted:
            wrong(f"{package} is {has}, the lock says {wanted}", libraries.LOCKED)


def probe(request: Json, seen: Json, wrong: Wrong) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # the plugin is started here, and not by a device's search
    seen.update({name: libraries.copies(name, name, wrong) for name in ("jax", "jaxlib")})
    try:
        jax: Any = importlib.import_module("jax")
    except Exception as error:  # a jaxlib of another release raises RuntimeError
        wrong(f"JAX does not import: {libraries.line(error)}", libraries.LOCKED)
        return
    check_releases(request, wrong)
    if request["accelerator"] == "gpu" and start_plugin(request, wrong):
        seen["libraries"] = libraries.check(request["locked"], wrong)
        check_opened(wrong)
        fix = "install nvidia-cuda-nvcc (and nvidia-nvvm) as locked"
        wheels = [
            path for each in sys.path for path in glob.glob(os.path.join(each, "nvidia", "*"))
        ]
        seen["xla"] = libraries.check_compiler(wheels, request["capability"], fix, wrong)
    if request["accelerator"] == "tpu":
        seen["tpu"] = check_tpu(wrong)
    libraries.check_product(jax.numpy.ones((4, 4)) @ jax.numpy.ones((4, 4)), wrong)


if __name__ == "__main__":
    print(json.dumps(libraries.answer(probe, json.loads(sys.argv[1]))))
