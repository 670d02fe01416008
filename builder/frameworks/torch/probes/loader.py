"""Would PyTorch find its libraries here? It is imported, and its libraries are asked.

Request: {"release": "2.10.0", "cuda": "12.8", "cudnn": "9.10.2.21", "capability": "7.0",
          "locked": {package: version}}
PyTorch links what TensorFlow opens by name: a missing library ends the import, and the loader's
message names it. A wrong one is imported, so each is asked for its version. What cuDNN opens later
is opened here, and NVRTC compiles a kernel for the GPU. Needs no GPU.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    from collections.abc import Callable

    Json = dict[str, Any]
    Wrong = Callable[[str, str], None]

CUDNN = (
    "graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled",
)  # fmt: skip
LOCKED = "install what the lock has, and nothing beside it"


def copies() -> list[str]:
    """Return every folder of a package torch that Python's path leads to."""
    places = [os.path.join(folder or os.curdir, "torch", "__init__.py") for folder in sys.path]
    return list(dict.fromkeys(os.path.realpath(p) for p in places if os.path.isfile(p)))


def mapped() -> dict[str, list[str]]:
    """Return file name -> the files of this name that are mapped into this process."""
    files: dict[str, list[str]] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and ".so" in path[2]:
                real = os.path.realpath("/" + path[2])
                known = files.setdefault(os.path.basename(path[2]), [])
                if real not in known:
                    known.append(real)
    return files


def check_versions(torch: Any, request: Json, wrong: Wrong) -> Json:
    """Compare what PyTorch says of itself and of its libraries with the lock."""
    release, compiled = str(torch.__version__).partition("+")[0], torch.version.cuda
    if compiled is None:
        wrong(
            f"PyTorch {torch.__version__} was built without CUDA: it sees no GPU",
            "install the wheel of PyPI, not the one for the CPU",
        )
        return {"torch": release, "cuda": None}
    number = torch.backends.cudnn.version() or 0
    cudnn = f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()[:3]))
    locked = next((v for n, v in request["locked"].items() if n.startswith("nvidia-nccl")), nccl)
    for name, has, wanted in (
        ("release", release, request["release"]),
        ("CUDA", compiled, request["cuda"]),
        ("cuDNN", cudnn, ".".join(request["cudnn"].split(".")[:3])),
        ("NCCL", nccl, locked),
    ):
        if has != wanted:
            wrong(f"PyTorch in {torch.__file__}: {name} {has}, the lock says {wanted}", LOCKED)
    architectures, gpu = torch._C._cuda_getArchFlags() or "", request["capability"].replace(".", "")
    if not any(name[3:-1] == gpu[:-1] and name[-1] <= gpu[-1] for name in architectures.split()):
        wrong(
            f"PyTorch was compiled for {architectures}: nothing runs on {request['capability']}",
            "take the release that `builder explain` names",
        )
    return {"torch": release, "cuda": compiled, "cudnn": cudnn, "nccl": nccl,
            "compiled_for": architectures}  # fmt: skip


def check_libraries(wrong: Wrong) -> Json:
    """Open what cuDNN opens later, and look for a library that is there twice, or the driver's."""
    places = mapped()
    cudnn = next((paths[0] for name, paths in places.items() if name.startswith("libcudnn.")), "")
    for part in CUDNN if cudnn else ():
        path = os.path.join(os.path.dirname(cudnn), f"libcudnn_{part}.so.9")
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            wrong(
                f"cuDNN fails at the first operation that needs {path}: {error}",
                "install nvidia-cudnn whole, as locked",
            )
    opened = mapped()
    for name, paths in sorted(opened.items()):
        if len(paths) > 1 and name.startswith(("libcu", "libnccl", "libnv", "libtorch")):
            wrong(f"two copies of {name} get into one process: {' and '.join(paths)}", LOCKED)
        if name.startswith("libcuda.so"):
            wrong(
                f"the image holds a libcuda: {paths[0]}; it shadows the machine's driver",
                "remove it: the machine's driver is mounted",
            )
    names = sorted(name for name in opened if name.startswith(("libcu", "libnccl", "libnv")))
    return {name: opened[name][0] for name in names}


def compile_kernel(capability: str, wrong: Wrong) -> str:
    """Let NVRTC compile a kernel for the GPU, as PyTorch's fused operations do."""
    path = next((p[0] for n, p in mapped().items() if n.startswith("libnvrtc.so")), "")
    if not path or not capability:
        return "not mapped"
    library = ctypes.CDLL(path)
    program = ctypes.c_void_p()
    source = b'extern "C" __global__ void f(float *x) { x[threadIdx.x] = sinf(x[0]); }'
    library.nvrtcCreateProgram(ctypes.byref(program), source, b"f.cu", 0, None, None)
    option = f"--gpu-architecture=sm_{capability.replace('.', '')}".encode()
    code = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(option))
    if code:
        wrong(f"{path} does not compile a kernel for {capability}: code {code}", LOCKED)
    return f"code {code}" if code else f"compiles for {capability}"


def probe(request: Json) -> Json:
    """Return what is wrong and what was seen."""
    problems: list[dict[str, str]] = []

    def wrong(message: str, fix: str) -> None:
        problems.append({"message": message, "fix": fix})

    seen: Json = {"copies": copies()}
    if len(seen["copies"]) > 1:
        wrong(f"two copies of PyTorch are on Python's path: {' and '.join(seen['copies'])}", LOCKED)
    if importlib.util.find_spec("torch") is None:
        wrong(f"{sys.executable} finds no package torch", "lock it for this image, then build")
        return {"problems": problems, "seen": seen}
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        wrong(f"PyTorch does not import: {' '.join(str(error).split())[:300]}", LOCKED)
        return {"problems": problems, "seen": seen}
    seen["versions"] = check_versions(torch, request, wrong)
    if seen["versions"]["cuda"]:
        seen["libraries"] = check_libraries(wrong)
        seen["nvrtc"] = compile_kernel(request["capability"] or "", wrong)
    value = float((torch.ones(4, 4) @ torch.ones(4, 4)).sum())
    if value != 64:
        wrong(f"a product of matrices on the CPU is {value}, not 64", LOCKED)
    return {"problems": problems, "seen": seen}


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
