"""Would TensorFlow find its libraries here? Answered the way ld.so would, then by opening them.

TensorFlow opens CUDA's libraries by name at run time (`dlopen`), so a missing or a wrong one breaks
neither the build nor the import: TensorFlow says one line and trains on the CPU. Needs no GPU.

Request: {"accelerator": "gpu" | "cpu" | "tpu", "cuda": "12.5", "cudnn": "9.3",
          "locked": {package: version}, "strict": true}
`strict`: the image is all our own, so that a libcuda or a second copy anywhere in it is wrong; else
(a published base) only where the loader could come across it.
"""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH100, PTH112, PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import runpy
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Json = dict[str, Any]
    Version = tuple[int, ...]


class Elf(NamedTuple):
    """What the loader reads of a shared object: its own name and where it looks for others."""

    path: str
    soname: str
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


def read_elf(path: str) -> Elf | None:
    """The dynamic section of a 64-bit little-endian shared object; None for anything else."""
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        table, entry, count = _unpack("<Q", head, 32), *struct.unpack_from("<HH", head, 54)
        loads: list[tuple[int, int, int]] = []  # address, offset, size in the file
        dynamic = b""
        for index in range(count):
            file.seek(table + index * entry)
            kind, _, offset, address, _, size = struct.unpack("<IIQQQQ", file.read(40))
            if kind == 1:
                loads.append((address, offset, size))
            elif kind == 2:
                file.seek(offset)
                dynamic = file.read(size)
        tags = [struct.unpack_from("<qQ", dynamic, at) for at in range(0, len(dynamic) - 15, 16)]
        first = dict(reversed(tags))
        strings = b""
        for address, offset, size in loads:
            if 5 in first and address <= first[5] < address + size:
                file.seek(offset + first[5] - address)
                strings = file.read(first.get(10, 0))

    def text(tag: int) -> str:
        if tag not in first or not strings:
            return ""
        return strings[first[tag] : strings.index(b"\0", first[tag])].decode()

    def folders(tag: int) -> tuple[str, ...]:
        # Bazel repeats each entry dozens of times; the first one decides
        return tuple(dict.fromkeys(part for part in text(tag).split(":") if part))

    return Elf(path, text(14), folders(15), folders(29))


def _unpack(kind: str, data: bytes, at: int) -> int:
    value = struct.unpack_from(kind, data, at)[0]
    return int(value)


class Found(NamedTuple):
    """The file that the loader picks for a name (None: none), and where it looked before that."""

    path: str | None
    looked: tuple[str, ...]


class Loader(NamedTuple):
    """What ld.so knows beside the caller: LD_LIBRARY_PATH, ld.so.cache, the default folders."""

    library_path: tuple[str, ...]
    cache: dict[str, tuple[str, ...]]
    defaults: tuple[str, ...]
    executable: Elf | None

    def folders(self, caller: Elf) -> list[str]:
        """The folders before and after the cache, in ld.so(8)'s order, for a dlopen() in `caller`.

        DT_RPATH counts only where there is no DT_RUNPATH, and then the executable's counts too.
        """
        rpath: list[str] = []
        if not caller.runpath:
            rpath += _expand(caller.rpath, caller.path)
            if self.executable and not self.executable.runpath:
                rpath += _expand(self.executable.rpath, self.executable.path)
        return [*rpath, *self.library_path, *_expand(caller.runpath, caller.path)]

    def find(self, name: str, caller: Elf) -> Found:
        """The file that dlopen(name), called in `caller`, opens."""
        looked: list[str] = []
        before = [(folder, os.path.join(folder, name)) for folder in self.folders(caller)]
        cached = [("ld.so.cache", path) for path in self.cache.get(name, ())]
        after = [(folder, os.path.join(folder, name)) for folder in self.defaults]
        for place, path in (*before, *(cached or [("ld.so.cache", "")]), *after):
            if place not in looked:
                looked.append(place)
            if path and os.path.isfile(path) and read_elf(path):
                return Found(path, tuple(looked))
        return Found(None, tuple(looked))

    def all(self, name: str, callers: Iterable[Elf]) -> list[str]:
        """Each different file of this name that some caller's search could come across."""
        folders = list(self.defaults)
        for caller in callers:
            folders += self.folders(caller)
        for folder in list(folders):
            # glibc prefers these where the processor knows them
            folders += [f"{folder}/glibc-hwcaps/x86-64-v{level}" for level in (2, 3, 4)]
        paths = [os.path.join(folder, name) for folder in folders] + list(self.cache.get(name, ()))
        real = (os.path.realpath(path) for path in paths if os.path.isfile(path))
        return list(dict.fromkeys(real))


def _expand(folders: Iterable[str], owner: str) -> list[str]:
    origin = os.path.dirname(os.path.realpath(owner))
    expanded = (
        folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders
    )
    return list(dict.fromkeys(os.path.normpath(folder) for folder in expanded))


def system_loader(environ: dict[str, str]) -> Loader:
    """The loader of the machine (here: the container) that this runs on."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    debian = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib")
    redhat = ("/lib64", "/usr/lib64")
    listed = environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
    return Loader(
        library_path=tuple(
            os.path.normpath(part or os.curdir) for part in listed.split(":") if listed
        ),
        cache=_ld_cache(),
        defaults=debian if os.path.isdir(f"/usr/lib/{triplet}") else redhat,
        executable=read_elf(os.path.realpath(sys.executable)),
    )


def _ld_cache() -> dict[str, tuple[str, ...]]:
    tool = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if tool is None:
        return {}
    text = subprocess.run([tool, "-p"], stdout=subprocess.PIPE, check=False).stdout.decode()
    cache: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            soname = name.split(" ")[0]
            cache[soname] = (*cache.get(soname, ()), path)
    return cache


NO_GPU = "TensorFlow sees no GPU and trains on the CPU: it registers GPUs only if all of these load"


class Library(NamedTuple):
    """One library that TensorFlow, or cuDNN for it, opens by name.

    package: the wheel it comes in, without `-cu12`; version: how to ask it (see `_ask`);
    opener: stem of the library whose code opens it ("" : TensorFlow itself);
    handle: TensorFlow's own function that opens it; without: what happens where it is missing.
    """

    stem: str
    package: str
    version: str = ""
    opener: str = ""
    handle: str = ""
    without: str = NO_GPU


_CUDNN_PARTS = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled")
_CUDNN8_PARTS = tuple(f"{a}_{b}" for a in ("ops", "cnn", "adv") for b in ("infer", "train"))
_NO_CONVOLUTION = "cuDNN fails at the first operation that needs it"


def libraries(cuda_major: int, cudnn_major: int) -> tuple[Library, ...]:
    """All that is opened by name on a GPU, in TensorFlow's order (tsl's dso_loader.cc)."""
    parts = _CUDNN8_PARTS if cudnn_major < 9 else (*_CUDNN_PARTS, "engines_runtime_compiled")
    compiler = "libcudnn_cnn_infer" if cudnn_major < 9 else "libcudnn_graph"
    linker = Library("libnvJitLink", "nvjitlink", "pair nvJitLinkVersion", "libcusparse")
    return (
        Library("libcudart", "cuda-runtime", "int cudaRuntimeGetVersion 1000", "", "CudaRuntime"),
        Library("libcublas", "cublas", "property cublasGetProperty", "", "Cublas"),
        Library("libcublasLt", "cublas", "size cublasLtGetVersion 10000", "", "CublasLt"),
        Library("libcufft", "cufft", "property cufftGetProperty", "", "Cufft"),
        Library("libcusolver", "cusolver", "property cusolverGetProperty", "", "Cusolver"),
        Library("libcusparse", "cusparse", "property cusparseGetProperty", "", "Cusparse"),
        Library(
            "libcudnn",
            "cudnn",
            f"size cudnnGetVersion {1000 if cudnn_major < 9 else 10000}",
            "",
            "Cudnn",
        ),
        *(
            Library(f"libcudnn_{part}", "cudnn", "", "libcudnn", "", _NO_CONVOLUTION)
            for part in parts
        ),
        Library(
            "libnvrtc",
            "cuda-nvrtc",
            "pair nvrtcVersion",
            compiler,
            without="cuDNN cannot compile kernels at run time: fused operations and some "
            "convolutions fail",
        ),
        *([linker] if cuda_major >= 12 else []),
        Library(
            "libnccl",
            "nccl",
            "int ncclGetVersion 10000",
            "",
            "Nccl",
            "a MirroredStrategy over several GPUs fails at its first step",
        ),
        Library(
            "libcupti", "cuda-cupti", "", "", "Cupti", "TensorBoard's profiler shows no GPU events"
        ),
    )


# The number after .so where it isn't CUDA's major version: these count on their own.
_NUMBERS = {
    11: {"libcudart": "11.0", "libcufft": "10", "libnvrtc": "11.2", "libcupti": "11.{minor}"},
    12: {"libcufft": "11", "libcusolver": "11"},
}


def soname(library: Library, cuda: Version, cudnn_major: int) -> str:
    """The name that TensorFlow, built with this CUDA and cuDNN, gives to dlopen()."""
    if library.package in ("cudnn", "nccl"):
        number = str(cudnn_major) if library.package == "cudnn" else "2"
    else:
        number = _NUMBERS[cuda[0]].get(library.stem, str(cuda[0])).format(minor=cuda[1])
    return f"{library.stem}.so.{number}"


def _ask(handle: ctypes.CDLL, how: str) -> Version:
    """A library's version by its own function: int or size (X * base + Y * 100 + Z, cudart Z / 10),
    property (three calls), pair (two pointers)."""
    kind, function, *base = how.split()
    call = getattr(handle, function)
    if kind == "property":
        numbers = []
        for part in range(3):
            value = ctypes.c_int(-1)
            call(part, ctypes.byref(value))
            numbers.append(value.value)
        return tuple(numbers)
    if kind == "pair":
        major, minor = ctypes.c_int(-1), ctypes.c_int(-1)
        call(ctypes.byref(major), ctypes.byref(minor))
        return (major.value, minor.value)
    if kind == "size":
        call.restype = ctypes.c_size_t
        number = int(call())
    else:
        out = ctypes.c_int(-1)
        call(ctypes.byref(out))
        number = out.value
    if base[0] == "1000" and function.startswith("cuda"):
        return (number // 1000, number % 1000 // 10)
    return (number // int(base[0]), number % int(base[0]) // 100, number % 100)


def open_all(wanted: list[list[str]]) -> None:
    """Open [soname, path, how to ask for the version] one after the other, as TensorFlow would, and
    print a line for each: in a process of its own, so that a crash has a name."""
    for name, path, how in wanted:
        print(json.dumps({"opening": name}), flush=True)
        answer: Json = {"soname": name}
        try:
            handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            if how:
                answer["version"] = _ask(handle, how)
        except (OSError, AttributeError) as error:
            answer["error"] = str(error)
        print(json.dumps(answer), flush=True)
    print(json.dumps({"mapped": _mapped()}), flush=True)


def ask_tensorflow(framework: str, handles: dict[str, str]) -> None:
    """Let TensorFlow's own code open each library, and print which files are mapped then."""
    library = ctypes.CDLL(framework, mode=ctypes.RTLD_GLOBAL)
    status = ctypes.create_string_buffer(64)  # an absl::StatusOr, returned through a pointer
    asked = []
    for name, handle in handles.items():
        symbol = f"Get{handle}DsoHandle"
        function = getattr(library, f"_ZN3tsl8internal9DsoLoader{len(symbol)}{symbol}Ev", None)
        if function is not None:
            function.restype = ctypes.c_void_p
            function(status)
            asked.append(name)
    print(json.dumps({"asked": asked, "mapped": _mapped()}), flush=True)


def _mapped() -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1]:
                real = os.path.realpath("/" + path[2])
                known = files.setdefault(os.path.basename(path[2]), [])
                if real not in known:
                    known.append(real)
    return files


def _child(mode: str, *arguments: str) -> tuple[list[Json], str]:
    """This program once more, as a child: the JSON lines it printed, and how it died if it did."""
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), mode, *arguments],
        capture_output=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    if done.returncode == 0:
        return lines, ""
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    return lines, f"{how} {last}".strip()


def parse_version(text: str) -> Version:
    """The leading numbers of a version: "12.5.3.2" -> (12, 5, 3, 2)."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


class Report:
    """What is wrong and what was seen."""

    def __init__(self) -> None:
        self.problems: list[dict[str, str]] = []
        self.seen: Json = {}

    def wrong(self, message: str, fix: str) -> None:
        """Note a problem once."""
        problem = {"message": message, "fix": fix}
        if problem not in self.problems:
            self.problems.append(problem)


def find_by_name(root: str, names: Iterable[str], prefix: str) -> dict[str, list[str]]:
    """Every file of the image that has one of these names, or begins with this prefix."""
    wanted = set(names)
    skipped = {os.path.join(root, name) for name in ("proc", "sys", "dev", "tmp", "run")}
    found: dict[str, list[str]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
        for name in files:
            if name in wanted or name.startswith(prefix):
                found.setdefault(name, []).append(os.path.join(folder, name))
    return found


class Survey(NamedTuple):
    """What is opened by name and what the loader picks for it; all keyed by Library.stem.

    objects: those that open others, TensorFlow under ""; everywhere: name -> files in the image.
    """

    libraries: dict[str, Library]
    names: dict[str, str]
    picked: dict[str, str]
    objects: dict[str, Elf]
    everywhere: dict[str, list[str]]


def check_gpu(request: Json, tensorflow: str, loader: Loader, report: Report, root: str) -> None:
    """Every CUDA library that TensorFlow opens: there, the right one, once, and it opens."""
    info = _build_info(tensorflow)
    keys = ("cuda_version", "cudnn_version", "cuda_compute_capabilities")
    report.seen["tensorflow"] = {key: info.get(key) for key in keys}
    if not info.get("is_cuda_build"):
        report.wrong(
            "TensorFlow in this image was built without CUDA: it will see no GPU",
            "lock `tensorflow`, not `tensorflow-cpu`, for this accelerator",
        )
        return
    cuda = parse_version(str(info["cuda_version"]))
    cudnn = parse_version(str(info["cudnn_version"]))
    opener = _framework(tensorflow)
    if cuda[0] not in _NUMBERS:
        report.wrong(
            f"TensorFlow was built with CUDA {_dotted(cuda)}, whose libraries' names this check "
            "does not know",
            "add them to builder/prove/probes/loader.py",
        )
    elif opener is None:
        report.wrong(
            f"no libtensorflow_framework.so in {tensorflow}", "install TensorFlow's wheel again"
        )
    else:
        survey = _survey(cuda, cudnn[0], opener, loader, report, root)
        _versions(request, report, survey, cuda[0])
        _agree(report, survey)
        _copies(request, report, loader, survey)
        _driver(request, report, loader, survey.objects.values(), survey.everywhere)
        _compiler(report, tensorflow, cuda, root)


def _survey(
    cuda: Version, cudnn_major: int, opener: Elf, loader: Loader, report: Report, root: str
) -> Survey:
    """Pick each library as the loader would; what it does not find is a problem."""
    wanted = {library.stem: library for library in libraries(cuda[0], cudnn_major)}
    names = {stem: soname(library, cuda, cudnn_major) for stem, library in wanted.items()}
    everywhere = find_by_name(root, names.values(), "libcuda.so")
    objects, picked = {"": opener}, {}
    for stem, library in wanted.items():
        if library.opener not in objects:
            continue  # what opens it is missing itself: said already
        found = loader.find(names[stem], objects[library.opener])
        elf = read_elf(found.path) if found.path else None
        if found.path and elf:
            picked[stem], objects[stem] = found.path, elf
            continue
        there = everywhere.get(names[stem], [""])[0]
        report.wrong(
            f"{names[stem]} is not where {library.opener or 'TensorFlow'} looks for it "
            f"({_short(found.looked)}): {library.without}",
            f"name {os.path.dirname(there)} in a file in /etc/ld.so.conf.d and run ldconfig"
            if there
            else f"install nvidia-{library.package}-cu{cuda[0]} as locked",
        )
        report.seen.setdefault("looked", {})[names[stem]] = list(found.looked)
    return Survey(wanted, names, picked, objects, everywhere)


def _short(folders: Iterable[str]) -> str:
    """Folders in one line: those that exist, a wheel's as nvidia/{a,b}/lib."""
    wheels: list[str] = []
    others: list[str] = []
    for folder in folders:
        tail = folder.partition("/nvidia/")[2]
        if folder == "ld.so.cache" or (os.path.isdir(folder) and not tail.endswith("/lib")):
            others.append(folder)
        elif os.path.isdir(folder):
            wheels.append(tail[: -len("/lib")])
    shown = [f"nvidia/{{{','.join(wheels)}}}/lib"] if wheels else []
    return ", ".join([*shown, *others]) or "no such folder exists"


def _framework(tensorflow: str) -> Elf | None:
    """The part of TensorFlow that calls dlopen() for all the rest of it."""
    for number in (".2", ".1", ""):
        path = os.path.join(tensorflow, f"libtensorflow_framework.so{number}")
        if os.path.isfile(path):
            return read_elf(path)
    return None


def _build_info(tensorflow: str) -> Json:
    path = os.path.join(tensorflow, "python", "platform", "build_info.py")
    return dict(runpy.run_path(path)["build_info"]) if os.path.isfile(path) else {}


def _versions(request: Json, report: Report, survey: Survey, cuda_major: int) -> None:
    """Open what the loader picks; compare what each says with the lock and with TensorFlow."""
    order = [
        [survey.names[stem], path, survey.libraries[stem].version]
        for stem, path in survey.picked.items()
    ]
    lines, death = _child("--open", json.dumps(order))
    answers = {line["soname"]: line for line in lines if "soname" in line}
    if death:
        last = [line["opening"] for line in lines if "opening" in line][-1:] or ["a library"]
        report.wrong(
            f"opening {last[0]} ended the process: {death}",
            "the file is damaged or wants another system: install its wheel again",
        )
    seen: Json = {}
    for name, path, _ in order:
        answer = answers.get(name, {})
        seen[name] = {"path": path, "version": _dotted(answer.get("version", ())) or None}
        if "error" in answer:
            report.wrong(
                f"{path} does not open: {answer['error']}",
                "install the library that it names, where the loader looks for it",
            )
    report.seen["libraries"] = seen
    for stem, path in survey.picked.items():
        version: Version = tuple(answers.get(survey.names[stem], {}).get("version", ()))
        package = f"nvidia-{survey.libraries[stem].package}-cu{cuda_major}"
        locked = request["locked"].get(package, "")
        common = min(len(version), len(parse_version(locked)))
        if version[:common] != parse_version(locked)[:common]:
            report.wrong(
                f"{path} is version {_dotted(version)}, the lock says {locked}",
                "remove the copy that is in the way, or lock again",
            )
        built = {"libcudart": request["cuda"], "libcudnn": request["cudnn"]}.get(stem) or ""
        least = parse_version(built)
        # cuDNN says three numbers of its version, its package has four
        if version and least and (version[0] != least[0] or version < least[: len(version)]):
            report.wrong(
                f"{path} is version {_dotted(version)}; TensorFlow was built with {built} and "
                f"wants {least[0]}.x from {built} on",
                "lock a version that TensorFlow was tested with (`builder explain` names it)",
            )
    mapped: dict[str, list[str]] = lines[-1].get("mapped", {}) if lines else {}
    for name in survey.names.values():
        if len(mapped.get(name, ())) > 1:
            report.wrong(
                f"two copies of {name} get into one process: {' and '.join(mapped[name])}",
                "leave one of them in the image",
            )


def _agree(report: Report, survey: Survey) -> None:
    """TensorFlow's own loading code has the last word on which files it takes."""
    handles = {survey.names[s]: lib.handle for s, lib in survey.libraries.items() if lib.handle}
    lines, death = _child("--ask-tensorflow", survey.objects[""].path, json.dumps(handles))
    if death or not lines:
        report.seen["asked_tensorflow"] = f"no answer: {death}"
        return
    report.seen["asked_tensorflow"] = asked = lines[-1]["asked"]
    for stem, name in survey.names.items():
        if name not in asked:
            continue
        expected = [os.path.realpath(survey.picked[stem])] if stem in survey.picked else []
        took = lines[-1]["mapped"].get(name, [])
        if took != expected:
            report.wrong(
                f"TensorFlow itself takes {' and '.join(took) or 'nothing'} for {name}, by the "
                f"loader's search order it is {' and '.join(expected) or 'nothing'}",
                "report this as a fault of builder/prove/probes/loader.py",
            )


def _copies(request: Json, report: Report, loader: Loader, survey: Survey) -> None:
    for stem, path in survey.picked.items():
        name, real = survey.names[stem], os.path.realpath(path)
        others = [p for p in loader.all(name, survey.objects.values()) if p != real]
        hidden = {os.path.realpath(p) for p in survey.everywhere.get(name, ())} - {real, *others}
        if hidden:
            report.seen.setdefault("copies", {})[name] = sorted(hidden)
        if others:
            report.wrong(
                f"{name} is on the loader's path more than once: it takes {path} and leaves "
                f"{' and '.join(others)}",
                "leave one of them in the image",
            )
        elif hidden and request["strict"]:
            report.wrong(
                f"{name} is in the image twice: {path} and {' and '.join(sorted(hidden))}",
                "leave one of them in the image",
            )


def _driver(
    request: Json,
    report: Report,
    loader: Loader,
    callers: Iterable[Elf],
    everywhere: dict[str, list[str]],
) -> None:
    """libcuda is the driver's: it comes from the machine with the GPU, never from an image."""
    callers = list(callers)
    names = ("libcuda.so.1", "libcuda.so")
    on_path = list(dict.fromkeys(path for name in names for path in loader.all(name, callers)))
    for path in on_path:
        report.wrong(
            f"a libcuda is on the loader's path: {path}; it shadows the driver's, and TensorFlow "
            "sees no GPU",
            "remove it from the image, or its folder from LD_LIBRARY_PATH and ld.so.conf",
        )
    files = {p for name, ps in everywhere.items() if name.startswith("libcuda.so") for p in ps}
    hidden = sorted({os.path.realpath(path) for path in files} - set(on_path))
    report.seen["libcuda"] = [*on_path, *hidden]
    if hidden and request["strict"]:
        report.wrong(
            f"the image holds a libcuda: {hidden[0]}; a stub or an old driver shadows the "
            "machine's as soon as its folder is searched",
            "remove it from the image",
        )


def _compiler(report: Report, tensorflow: str, cuda: Version, root: str) -> None:
    """XLA compiles with ptxas and links libdevice: both from CUDA's compiler package."""
    roots = [
        os.path.join(os.path.dirname(tensorflow), "nvidia", "cuda_nvcc"),
        *(
            os.path.join(root, folder)
            for folder in (f"usr/local/cuda-{_dotted(cuda[:2])}", "usr/local/cuda", "opt/cuda")
        ),
    ]
    tools = [os.path.join(folder, "bin", "ptxas") for folder in roots]
    ptxas = next((path for path in tools if os.access(path, os.X_OK)), None)
    bitcode = [os.path.join(folder, "nvvm", "libdevice", "libdevice.10.bc") for folder in roots]
    libdevice = next((path for path in bitcode if os.path.isfile(path)), None)
    fix = f"install nvidia-cuda-nvcc-cu{cuda[0]} as locked"
    version = ""
    if ptxas is None:
        report.wrong(
            f"no executable ptxas in {' or '.join(roots)}: XLA cannot compile for the GPU", fix
        )
    else:
        done = subprocess.run(
            [ptxas, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        words = done.stdout.decode(errors="replace").replace(",", " ").split()
        version = next((word[1:] for word in words if word[:1] == "V" and word[1:2].isdigit()), "")
        if done.returncode or not version:
            report.wrong(f"{ptxas} does not run: {' '.join(words[:12])}", fix)
    if libdevice is None:
        report.wrong(
            f"no nvvm/libdevice/libdevice.10.bc in {' or '.join(roots)}: XLA finds no libdevice "
            "and jit_compile fails",
            fix,
        )
    report.seen["xla"] = {"ptxas": ptxas, "version": version or None, "libdevice": libdevice}


def check_tpu(tensorflow: str, loader: Loader, report: Report, environ: dict[str, str]) -> None:
    """TensorFlow opens TPU_LIBRARY_PATH, else the name libtpu.so; it never imports `libtpu`."""
    packaged = os.path.join(os.path.dirname(tensorflow), "libtpu", "libtpu.so")
    path: str | None = environ.get("TPU_LIBRARY_PATH")
    opener = _framework(tensorflow)
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
    lines, death = _child("--open", json.dumps([["libtpu.so", path, ""]]))
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
    """All of it; the parameters beside the request let a test describe another machine."""
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
        if _build_info(tensorflow).get("is_cuda_build"):
            report.wrong(
                "TensorFlow in this image was built with CUDA, which nothing here uses",
                "lock tensorflow-cpu (or tensorflow-tpu): hundreds of megabytes less",
            )
        opener = _framework(tensorflow)
        callers = [opener] if opener else []
        _driver(request, report, loader, callers, find_by_name(root, (), "libcuda.so"))
    return {"problems": report.problems, "seen": report.seen}


def main(arguments: list[str]) -> None:
    """The three ways in: the probe, and the two children it starts."""
    if arguments[0] == "--open":
        open_all(json.loads(arguments[1]))
    elif arguments[0] == "--ask-tensorflow":
        ask_tensorflow(arguments[1], json.loads(arguments[2]))
    else:
        print(json.dumps(probe(json.loads(arguments[0]), dict(os.environ))))


if __name__ == "__main__":
    main(sys.argv[1:])
