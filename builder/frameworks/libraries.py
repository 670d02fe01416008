"""NVIDIA's libraries in a process that has opened them: which files, of which version, and whether
they compile. It is copied into a container beside the probe that asks, and held to what a probe is
(builder/prove/probes/__init__.py). Needs no GPU.
"""

# Paths are text here, as in the other probes
# ruff: noqa: B905, PTH109, PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Json = dict[str, Any]
    Wrong = Callable[[str, str], None]

LOCKED = "install what the lock has, and nothing beside it"
LIBRARIES = {
    "libcudart": ("cuda-runtime", "int cudaRuntimeGetVersion"),
    "libcublas": ("cublas", "property cublasGetProperty"),
    "libcublasLt": ("cublas", "size cublasLtGetVersion"),
    "libcufft": ("cufft", "property cufftGetProperty"),
    "libcurand": ("curand", "property curandGetProperty"),
    "libcusolver": ("cusolver", "property cusolverGetProperty"),
    "libcusparse": ("cusparse", "property cusparseGetProperty"),
    "libcudnn": ("cudnn", "size cudnnGetVersion"),
    "libnvrtc": ("cuda-nvrtc", "pair nvrtcVersion"),
    "libnvJitLink": ("nvjitlink", "pair nvJitLinkVersion"),
    "libnccl": ("nccl", "int ncclGetVersion"),
    "libcupti": ("cuda-cupti", ""),
}
"""Library -> the wheel that it comes in, without nvidia- and -cu12; how it is asked for its version
(`version`)."""
NUMBERS = {
    11: {"libcudart": "11.0", "libcufft": "10", "libnvrtc": "11.2", "libcupti": "11.{minor}"},
    12: {"libcufft": "11", "libcusolver": "11"},
    13: {"libcufft": "12", "libcusolver": "12", "libcusparse": "12"},
}
"""Major version of CUDA -> the numbers after .so that are not this major version."""
CUDNN_PARTS = {
    8: tuple(f"{part}_{use}" for part in ("ops", "cnn", "adv") for use in ("infer", "train")),
    9: (
        *("graph", "ops", "cnn", "adv", "heuristic"),
        *("engines_precompiled", "engines_runtime_compiled"),
    ),
}
"""Major version -> the libraries that cuDNN opens when it first needs them."""
INSTALL_CUDNN = "install nvidia-cudnn whole, as locked"
NO_OPERATION = "cuDNN fails at the first operation that needs it"
PTX = ".version {0}\n.target sm_{1}\n.address_size 64\n.visible .entry f() {{ ret; }}\n"
ISA = ((100, "8.7"), (87, "7.8"), (86, "7.1"), (0, "7.0"))
"""From this GPU on, the PTX ISA that knows it (NVIDIA, PTX ISA, release notes)."""


def answer(ask: Callable[[Json, Json, Wrong], None], request: Json) -> Json:
    """Return what is wrong, each problem once, and what was seen. ask: puts what it sees into its
    second argument."""
    problems: dict[tuple[str, str], None] = {}
    seen: Json = {}
    ask(request, seen, lambda *problem: problems.setdefault(problem))
    return {"problems": [{"message": text, "fix": fix} for text, fix in problems], "seen": seen}


def file_name(stem: str, cuda: Sequence[int], cudnn: int = 9) -> str:
    """Return the file name of a library ("libcufft") by which it is opened, for a CUDA (12, 5) and
    a major version of cuDNN."""
    if stem.startswith(("libcudnn", "libnccl")):
        return f"{stem}.so.{cudnn if stem.startswith('libcudnn') else 2}"
    return f"{stem}.so.{NUMBERS[cuda[0]].get(stem, str(cuda[0])).format(minor=cuda[1])}"


def copies(package: str, title: str, wrong: Wrong) -> list[str]:
    """Return every folder of a package that Python's path leads to, as `python -m` has it: the
    program's folder stands first. More than one is wrong."""
    folders = (os.getcwd(), *sys.path)
    places = [os.path.join(folder or os.curdir, package, "__init__.py") for folder in folders]
    there = list(dict.fromkeys(os.path.realpath(p) for p in places if os.path.isfile(p)))
    if len(there) > 1:
        wrong(f"two copies of {title} are on Python's path: {' and '.join(there)}", LOCKED)
    return there


def check_product(product: Any, wrong: Wrong) -> None:
    """Check a product of two matrices of 4 x 4 ones, which the CPU has made."""
    if float(product.sum()) != 64:
        wrong(f"a product of matrices on the CPU is {float(product.sum())}, not 64", LOCKED)


def mapped() -> dict[str, list[str]]:
    """Return file name -> the files of this name that are mapped into this process."""
    places: dict[str, list[str]] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1] and ".so" in path[2]:
                real = os.path.realpath("/" + path[2])
                known = places.setdefault(os.path.basename(path[2]), [])
                if real not in known:
                    known.append(real)
    return places


def path_of(stem: str) -> str:
    """Return the file of a library ("libcudnn") that is mapped into this process, "" if none is."""
    return next((p[0] for name, p in mapped().items() if name.startswith(f"{stem}.so")), "")


def check(locked: Mapping[str, str], wrong: Wrong, begin: Callable[[str], object] = str) -> Json:
    """Open what cuDNN opens later. Compare what each library says of itself with the lock, and look
    for one that is there twice, or the driver's. Return name -> path and version of each. begin: is
    told the name of each library before it is asked."""
    _open_parts(path_of("libcudnn"), wrong)
    versions = {_stem(package): version for package, version in locked.items()}
    seen: Json = {}
    same: dict[str, list[str]] = {}  # a package of Debian's names its files by the whole version
    for name, paths in sorted(mapped().items()):
        if not name.startswith(("libcu", "libnccl", "libnv", "libtorch")):
            continue
        stem, _, numbers = name.partition(".so")
        same.setdefault(f"{stem}.so" + ".".join(numbers.split(".")[:2]), []).extend(paths)
        package, how = LIBRARIES.get(stem, ("", ""))
        has = ""
        begin(name)
        try:
            has = version(ctypes.CDLL(paths[0]), how) if how else ""
        except AttributeError as error:  # another library under this name
            wrong(f"{paths[0]} does not say its version: {error}", LOCKED)
        seen[name] = {"path": paths[0], "version": has or None}
        wanted = versions.get(f"nvidia-{package}", "")
        if has and wanted and not _agree(has, wanted):
            wrong(f"{paths[0]} is version {has}, the lock says {wanted}", LOCKED)
    for name, paths in same.items():
        if len(paths) > 1:
            both = " and ".join(sorted(paths))
            wrong(f"two copies of {name} get into one process: {both}", LOCKED)
        if name.startswith("libcuda.so"):
            wrong(
                f"the image holds a libcuda: {paths[0]}; it shadows the machine's driver",
                "remove it: the machine's driver is mounted",
            )
    return seen


def _open_parts(cudnn: str, wrong: Wrong) -> None:
    number = os.path.basename(cudnn).partition(".so.")[2].partition(".")[0]
    for part in CUDNN_PARTS.get(int(number or 0), ()):
        path = os.path.join(os.path.dirname(cudnn), f"libcudnn_{part}.so.{number}")
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            wrong(f"a part of cuDNN does not open: {error}; {NO_OPERATION}", INSTALL_CUDNN)


def _agree(has: str, wanted: str) -> bool:
    """Tell whether two versions agree in the numbers that both have."""
    return all(a == b for a, b in zip(has.split("."), wanted.split(".")))


def version(library: ctypes.CDLL, how: str) -> str:
    """Return what a library says of its version ("9.3.0"). Raises AttributeError where it cannot.

    how: the kind and the function. int, size: one number, X * 10000 + Y * 100 + Z (below 10000,
    X * 1000; cudart has no Z, and Y * 10). property: three calls, one a number. pair: two pointers.
    """
    kind, _, name = how.partition(" ")
    call, numbers = getattr(library, name), [ctypes.c_int(-1) for _ in range(3)]
    if kind == "property":
        for part, value in enumerate(numbers):
            call(part, ctypes.byref(value))
    elif kind == "pair":
        call(*map(ctypes.byref, numbers[:2]))
        numbers.pop()
    else:
        if kind == "size":
            call.restype = ctypes.c_size_t
            number = int(call())
        else:
            call(ctypes.byref(numbers[0]))
            number = numbers[0].value
        if name.startswith("cuda"):
            return f"{number // 1000}.{number % 1000 // 10}"
        return dotted(number)
    return ".".join(str(value.value) for value in numbers)


def dotted(number: int) -> str:
    """Return the version that a number stands for: 91002 -> "9.10.2", 8907 -> "8.9.7"."""
    base = 10000 if number >= 10000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def check_nvrtc(nvrtc: str, capability: str, wrong: Wrong) -> None:
    """Let NVRTC compile a kernel for the GPU, as fused operations do: it takes its second library,
    libnvrtc-builtins. nvrtc: its file, "" for none."""
    error = _compile(nvrtc, capability) if nvrtc and capability else ""
    if error:
        wrong(
            f"{nvrtc} does not compile a kernel for {capability}: {error}; what is compiled at run "
            "time fails",
            "lock a CUDA whose compiler knows this GPU"
            if "gpu-architecture" in error
            else "install nvidia-cuda-nvrtc whole, as locked: libnvrtc-builtins belongs to it",
        )


def _compile(nvrtc: str, capability: str) -> str:
    """Return the error of NVRTC with a small kernel, "" for none."""
    library, program, size = ctypes.CDLL(nvrtc), ctypes.c_void_p(), ctypes.c_size_t()
    source = b'extern "C" __global__ void f(float *x) { x[threadIdx.x] = sinf(x[0]); }'
    architecture = f"--gpu-architecture=sm_{capability.replace('.', '')}".encode()
    library.nvrtcCreateProgram(ctypes.byref(program), source, b"f.cu", 0, None, None)
    code = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(architecture))
    if not code:
        return ""
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    library.nvrtcGetProgramLog(program, log)
    return f"code {code} {' '.join(log.value.decode(errors='replace').split())[:300]}".strip()


def check_compiler(folders: Iterable[str], capability: str, fix: str, wrong: Wrong) -> Json:
    """Let ptxas compile for the GPU, and look for libdevice: XLA compiles with both. folders: where
    CUDA's compiler may lie; it takes the first."""
    folders = list(folders)
    tools = [os.path.join(folder, "bin", "ptxas") for folder in folders]
    ptxas = next((path for path in tools if os.access(path, os.X_OK)), None)
    bitcode = [os.path.join(folder, "nvvm", "libdevice", "libdevice.10.bc") for folder in folders]
    libdevice = next((path for path in bitcode if os.path.isfile(path)), None)
    places = " or ".join(folders[:4]) or "nvidia/*"
    if libdevice is None:
        what = f"XLA finds no nvvm/libdevice/libdevice.10.bc in {places}"
        wrong(f"{what}, which its math functions need", fix)
    if ptxas is None:
        wrong(f"XLA finds no ptxas in {places}, and compiles nothing for the GPU", fix)
        return {"ptxas": None, "libdevice": libdevice}
    gpu = capability.replace(".", "")
    isa = next(isa for since, isa in ISA if int(gpu) >= since)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "kernel.ptx")
        with open(source, "w") as file:
            file.write(PTX.format(isa, gpu))
        command = [ptxas, f"--gpu-name=sm_{gpu}", f"--output-file={source}.out", source]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        text = " ".join(done.stdout.decode(errors="replace").split())[:200]
        wrong(f"{ptxas} does not compile for {capability}: {text}", fix)
    return {"ptxas": ptxas, "libdevice": libdevice}


def _stem(package: str) -> str:
    return package[:-5] if package[-5:-2] == "-cu" else package


def line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
