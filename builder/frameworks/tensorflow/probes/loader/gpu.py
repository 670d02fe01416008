"""The questions about an image for a GPU, one function each; a Report gathers what is wrong."""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH112, PTH113, PTH118, PTH120
from __future__ import annotations

import json
import os
import runpy
import subprocess
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .elf import Elf, read_elf
from .libraries import NUMBERS, OpenedLibrary, dotted, libraries, parse_version, soname
from .opening import in_child
from .search import Loader, find_by_name

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Json = dict[str, Any]
    Version = tuple[int, ...]


_NVIDIA = """
ml cfg nscq gpucomp ptxjitcompiler fatbinaryloader allocator compiler pkcs11 pkcs11-openssl3 nvvm
opencl encode opticalflow fbc
"""
DRIVER_LIBRARIES = (
    *(f"libnvidia-{name}.so" for name in _NVIDIA.split()), "libcudadebugger.so", "libnvcuvid.so",
)  # fmt: skip
"""What the container toolkit mounts beside libcuda (libnvidia-container, src/nvc_info.c)."""


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


class Survey(NamedTuple):
    """What is opened by name, and what the loader picks for it; keyed by OpenedLibrary.stem.

    objects: the libraries that open others, TensorFlow under "". everywhere: file name -> the files
    of this name in the whole image.
    """

    libraries: dict[str, OpenedLibrary]
    names: dict[str, str]
    picked: dict[str, str]
    objects: dict[str, Elf]
    everywhere: dict[str, list[str]]


def check_gpu(request: Json, tensorflow: str, loader: Loader, report: Report, root: str) -> None:
    """Every CUDA library that TensorFlow opens: there, the right one, once, and it opens."""
    info = build_info(tensorflow)
    keys = ("cuda_version", "cudnn_version", "cuda_compute_capabilities")
    report.seen["tensorflow"] = {key: info.get(key) for key in keys}
    if not info.get("is_cuda_build"):
        report.wrong(
            f"TensorFlow in {tensorflow} was built without CUDA: it will see no GPU",
            f"the lock has tensorflow {request['locked']['tensorflow']}: take this other copy out "
            f"of the image, or {os.path.dirname(tensorflow)} out of PYTHONPATH"
            if "tensorflow" in request["locked"]
            else "lock `tensorflow`, not `tensorflow-cpu`, for this accelerator",
        )
        return
    cuda = parse_version(str(info["cuda_version"]))
    cudnn = parse_version(str(info["cudnn_version"]))
    opener = framework(tensorflow)
    if cuda[0] not in NUMBERS:
        report.wrong(
            f"TensorFlow was built with CUDA {dotted(cuda)}, whose libraries' names this check "
            "does not know",
            "add them to builder/frameworks/tensorflow/probes/loader",
        )
    elif opener is None:
        report.wrong(
            f"no libtensorflow_framework.so in {tensorflow}", "install TensorFlow's wheel again"
        )
    else:
        survey = _survey(cuda, cudnn[0], opener, loader, report, root)
        _versions(request, report, survey, cuda[0])
        _agree(report, survey)
        _compiles(request, report, survey)
        _copies(request, report, loader, survey)
        check_driver(request, report, loader, survey.objects.values(), survey.everywhere)
        _compiler(report, tensorflow, cuda, root)


def _survey(
    cuda: Version, cudnn_major: int, opener: Elf, loader: Loader, report: Report, root: str
) -> Survey:
    """Pick each library as the loader would; what it does not find is a problem."""
    opened = {library.stem: library for library in libraries(cuda[0], cudnn_major)}
    names = {stem: soname(library, cuda, cudnn_major) for stem, library in opened.items()}
    everywhere = find_by_name(root, names.values(), ("libcuda.so", *DRIVER_LIBRARIES))
    objects, picked = {"": opener}, {}
    for stem, library in opened.items():
        if library.opener not in objects:
            continue  # the library that opens it is missing, which is reported already
        search = loader.find(names[stem], objects[library.opener])
        elf = read_elf(search.path) if search.path else None
        if search.path and elf:
            picked[stem], objects[stem] = search.path, elf
            if loader.forgets(search):
                report.wrong(
                    f"{names[stem]} is found by ld.so.cache alone, which the container toolkit "
                    "writes anew: no file in /etc/ld.so.conf.d names "
                    f"{os.path.dirname(search.path)}",
                    "name it there, and run ldconfig",
                )
            continue
        present = (path for path in everywhere.get(names[stem], ()) if os.path.isfile(path))
        elsewhere = next(present, "")  # a link that leads nowhere is no library
        report.wrong(
            f"{names[stem]} is not where {library.opener or 'TensorFlow'} looks for it "
            f"({_short(search.looked)}): {library.without}",
            f"name {os.path.dirname(elsewhere)} in a file in /etc/ld.so.conf.d and run ldconfig"
            if elsewhere
            else f"install nvidia-{library.package}-cu{cuda[0]} as locked",
        )
        report.seen.setdefault("looked", {})[names[stem]] = list(search.looked)
    return Survey(opened, names, picked, objects, everywhere)


def _short(folders: Iterable[str]) -> str:
    """Return folders in one line: those that exist, a wheel's as nvidia/{a,b}/lib."""
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


def framework(tensorflow: str) -> Elf | None:
    """Return the part of TensorFlow that calls dlopen() for all the rest of it."""
    for number in (".2", ".1", ""):
        path = os.path.join(tensorflow, f"libtensorflow_framework.so{number}")
        if os.path.isfile(path):
            return read_elf(path)
    return None


def build_info(tensorflow: str) -> Json:
    path = os.path.join(tensorflow, "python", "platform", "build_info.py")
    return dict(runpy.run_path(path)["build_info"]) if os.path.isfile(path) else {}


def _versions(request: Json, report: Report, survey: Survey, cuda_major: int) -> None:
    """Open what the loader picks; compare what each says with the lock and with TensorFlow."""
    order = [
        [survey.names[stem], path, survey.libraries[stem].version]
        for stem, path in survey.picked.items()
    ]
    lines, death = in_child("--open", json.dumps(order))
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
        seen[name] = {"path": path, "version": dotted(answer.get("version", ())) or None}
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
                f"{path} is version {dotted(version)}, the lock says {locked}",
                "remove the copy that is in the way, or lock again",
            )
        built = {"libcudart": request["cuda"], "libcudnn": request["cudnn"]}.get(stem) or ""
        least = parse_version(built)
        # cuDNN says three numbers of its version, its package has four
        if version and least and (version[0] != least[0] or version < least[: len(version)]):
            report.wrong(
                f"{path} is version {dotted(version)}; TensorFlow was built with {built} and "
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
    """Compare with the files that TensorFlow's own loading code takes."""
    handles = {survey.names[s]: lib.handle for s, lib in survey.libraries.items() if lib.handle}
    lines, death = in_child("--ask-tensorflow", survey.objects[""].path, json.dumps(handles))
    if death or not lines:
        report.seen["asked_tensorflow"] = f"no answer: {death}"
        return
    report.seen["asked_tensorflow"] = requested = lines[-1]["asked"]
    for stem, name in survey.names.items():
        if name not in requested:
            continue
        expected = [os.path.realpath(survey.picked[stem])] if stem in survey.picked else []
        took = lines[-1]["mapped"].get(name, [])
        if took != expected:
            report.wrong(
                f"TensorFlow itself takes {' and '.join(took) or 'nothing'} for {name}, by the "
                f"loader's search order it is {' and '.join(expected) or 'nothing'}",
                "report this as a fault of builder/frameworks/tensorflow/probes/loader",
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


def check_driver(
    request: Json,
    report: Report,
    loader: Loader,
    callers: Iterable[Elf],
    everywhere: dict[str, list[str]],
) -> None:
    """Look for a libcuda and for what else is the driver's: it comes from the machine with the GPU.

    The container toolkit mounts the driver's libraries by name; a file that is there already ends
    the start of the container, or shadows the machine's (nvidia-container-toolkit#289, #176).
    """
    callers = list(callers)
    names = ("libcuda.so.1", "libcuda.so")
    on_path = list(dict.fromkeys(path for name in names for path in loader.all(name, callers)))
    for path in on_path:
        report.wrong(
            f"a libcuda is on the loader's path: {path}; it shadows the driver's, and TensorFlow "
            "sees no GPU",
            "remove it from the image, or its folder from LD_LIBRARY_PATH and ld.so.conf",
        )
    remnants = sorted(
        path
        for name, paths in everywhere.items()
        if name.startswith(DRIVER_LIBRARIES)
        for path in paths
        if not {"stubs", "compat"} & set(path.split("/"))  # CUDA's, beside no driver
    )
    report.seen["driver_libraries"] = remnants
    if remnants:
        report.wrong(
            f"the image holds a library of the driver: {remnants[0]}; the container does not start "
            "where another one is mounted there (`file exists`), and elsewhere it does not fit the "
            "machine's kernel module",
            "remove it: the machine's driver is mounted",
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


def _compiles(request: Json, report: Report, survey: Survey) -> None:
    """Let NVRTC compile a kernel for the image's GPU, which takes its second library and no GPU."""
    path, capability = survey.picked.get("libnvrtc"), request.get("capability") or ""
    if not path or not capability:
        return
    lines, death = in_child("--compile", path, capability)
    error = death or next((line["error"] for line in lines if line.get("error")), "")
    report.seen["nvrtc"] = error or f"compiles for {capability}"
    if error:
        report.wrong(
            f"{path} does not compile a kernel for {capability}: {error}; what cuDNN and XLA make "
            "at run time fails",
            "lock a CUDA whose compiler knows this GPU"
            if "architecture" in error
            else "install nvidia-cuda-nvrtc whole, as locked: libnvrtc-builtins belongs to it",
        )


def _compiler(report: Report, tensorflow: str, cuda: Version, root: str) -> None:
    """Look for what XLA compiles with: ptxas and libdevice, from CUDA's compiler package."""
    roots = [
        os.path.join(os.path.dirname(tensorflow), "nvidia", "cuda_nvcc"),
        *(
            os.path.join(root, folder)
            for folder in (f"usr/local/cuda-{dotted(cuda[:2])}", "usr/local/cuda", "opt/cuda")
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
