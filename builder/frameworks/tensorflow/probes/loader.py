"""Would TensorFlow find its libraries here? The image's own loader is asked, then they are opened.

TensorFlow opens CUDA's libraries by name at run time (`dlopen`), so a missing or a wrong one breaks
neither the build nor the import: TensorFlow says one line and trains on the CPU. Needs no GPU.

The loader (ld.so(8)) looks for a name in LD_LIBRARY_PATH, in the RUNPATH of the library whose code
opens it, in ld.so.cache and in its own folders. Where it looks for TensorFlow, it tells itself
(dlinfo(3)). It reads LD_LIBRARY_PATH when a process starts, so a child that has those folders there
opens the names, and another child, in the image's own environment, the files that were found. Where
a child crashes, the crash has a name.

Request: {"accelerator": "gpu" | "cpu" | "tpu", "cuda": "12.5", "cudnn": "9.3", "capability": "7.0",
          "locked": {package: version}, "strict": true}
`strict`: every file of the image is ours, so that a second copy is wrong anywhere in it. In a
published base it is wrong only where the loader would come across it. `root`: the folder that holds
the image, by default /.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120
from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from builder.frameworks import libraries
from builder.frameworks.tensorflow.probes import opens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.frameworks.libraries import Json, Wrong

BEGIN, END = "/begin-of-LD_LIBRARY_PATH", "/end-of-LD_LIBRARY_PATH"
"""Folders that are not there: a child's LD_LIBRARY_PATH lies between them."""
CUDA = ("libcuda.so.1", "libcuda.so")
INSTALL_NEEDED = "install the library that it names, where the loader looks for it"


class ProbedImage:
    """An image whose loader is asked. seen, wrong: take what was seen in it, and what is wrong.

    environment: the folders of its LD_LIBRARY_PATH. folders: where the loader looks for what
    TensorFlow opens, before its cache; own_folders: those behind it. plain: what the loader finds
    without TensorFlow's folders. everywhere: file name -> the files of this name in the image.
    """

    def __init__(self, request: Json, seen: Json, wrong: Wrong) -> None:
        self.request, self.seen, self.wrong = request, seen, wrong
        self.root = os.path.realpath(request.get("root", "/"))
        listed = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        self.environment = [part or os.curdir for part in listed.split(":") if listed]
        self.folders: list[str] = []
        self.own_folders: list[str] = []
        self.plain: dict[str, Json] = {}
        self.everywhere: dict[str, list[str]] = {}

    def look(self, opener: str, names: Sequence[str]) -> None:
        """Ask the loader where it looks for what `opener` opens, and what it finds without that;
        find every file of the image that has one of these names."""
        first = [opener] if opener else []
        self.plain = self.open([*first, *names, *CUDA], self.environment)
        answer = self.plain.pop(opener, {})
        self.folders, self.own_folders = self.searched(answer), answer.get("own", [])
        if "error" in answer:
            self.wrong(f"{opener} does not open: {answer['error']}", INSTALL_NEEDED)
        skipped = {os.path.join(self.root, name) for name in ("proc", "sys", "dev", "tmp", "run")}
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
            for name in set(names).intersection(files):
                self.everywhere.setdefault(name, []).append(os.path.join(folder, name))

    def searched(self, answer: Json) -> list[str]:
        """Return where the loader looks, before its cache, for what an opened library opens."""
        return [*answer.get("rpath", []), *self.environment, *answer.get("runpath", [])]

    def open(self, names: Sequence[str], folders: Sequence[str]) -> dict[str, Json]:
        """Return name -> a child's answer (`open_all`), with these folders in LD_LIBRARY_PATH."""
        lines = self.in_child(folders, "--open", json.dumps(names))
        return {line["name"]: line for line in lines if "name" in line}

    def in_child(self, folders: Sequence[str], *arguments: str) -> list[Json]:
        """Return the JSON lines that this program prints as a child; note how it died, if so."""
        done = subprocess.run(
            [sys.executable, "-S", "-B", os.path.abspath(__file__), *arguments],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join([BEGIN, *folders, END])},
            capture_output=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        if done.returncode:
            code = done.returncode
            last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
            how = f"signal {-code}" if code < 0 else f"exit {code} {last}".strip()
            names = [line["opening"] for line in lines if "opening" in line] or ["a library"]
            self.wrong(
                f"opening {names[-1]} ended the process: {how}",
                "the file is damaged or wants another system: install its wheel again",
            )
        return lines

    def files(self, paths: Iterable[str], *known: str) -> list[str]:
        """Return which of these files the image has, sorted; no links, and none that is known."""
        real = {os.path.realpath(path) for path in paths if os.path.isfile(path)}
        return sorted(path for path in real - set(known) if path.startswith(self.root))

    def on_path(self, *names: str) -> list[str]:
        """Return the files of these names that the loader could come across."""
        folders = (*self.folders, *self.own_folders)
        paths = [os.path.join(folder, name) for folder in folders for name in names]
        return [*paths, *(self.plain.get(name, {}).get("path", "") for name in names)]


# --- the questions --------------------------------------------------------------------------------


def check_gpu(image: ProbedImage, tensorflow: str, opener: str) -> None:
    """Every CUDA library that TensorFlow opens: there, the right one, once, and it opens."""
    info = build_info(tensorflow)
    keys = ("cuda_version", "cudnn_version", "cuda_compute_capabilities")
    image.seen["tensorflow"] = {key: info.get(key) for key in keys}
    if not info.get("is_cuda_build"):
        locked = image.request["locked"].get("tensorflow")
        image.wrong(
            f"TensorFlow in {tensorflow} was built without CUDA: it will see no GPU",
            f"the lock has tensorflow {locked}: take this other copy out of the image, or "
            f"{os.path.dirname(tensorflow)} out of PYTHONPATH"
            if locked
            else "lock `tensorflow`, not `tensorflow-cpu`, for this accelerator",
        )
        return
    cuda = opens.numbers(str(info["cuda_version"]))
    if cuda[0] not in libraries.NUMBERS:
        image.wrong(
            f"TensorFlow was built with CUDA {info['cuda_version']}, whose libraries' names this "
            "check does not know",
            "add them to builder/frameworks/libraries.py",
        )
        return
    rows = opens.opened(cuda, opens.numbers(str(info["cudnn_version"]))[0])
    image.look(opener, [row.name for row in rows])
    paths = _found(image, rows, cuda[0])
    _check_libraries(image, paths)
    _check_copies(image, paths)
    check_libcuda(image)
    folders = [os.path.join(os.path.dirname(tensorflow), "nvidia", "cuda_nvcc")]
    toolkits = (f"usr/local/cuda-{cuda[0]}.{cuda[1]}", "usr/local/cuda", "opt/cuda")
    folders += [os.path.join(image.root, folder) for folder in toolkits]
    fix = f"install nvidia-cuda-nvcc-cu{cuda[0]} as locked"
    capability = image.request["capability"]
    image.seen["xla"] = libraries.check_compiler(folders, capability, fix, image.wrong)


def _found(image: ProbedImage, rows: Sequence[opens.Opened], cuda: int) -> dict[str, str]:
    """Return name -> the file that the loader takes; what it does not find is a problem.

    What cuDNN opens of its own lies beside it, and what a library is linked to is opened with it:
    both are left to libraries.check.
    """
    own = [row for row in rows if not row.opener]
    compiler = next(row for row in rows if row.name.startswith("libnvrtc.so"))
    part = next(row.name for row in rows if row.name.startswith(f"{compiler.opener}.so"))
    answers = image.open([*(row.name for row in own), part], image.folders)
    paths = {row.name: _taken(image, row, answers, image.folders, cuda) for row in own}
    if "path" in answers.get(part, {}):
        folders = image.searched(answers[part])
        answers = image.open([compiler.name], folders)
        paths[compiler.name] = _taken(image, compiler, answers, folders, cuda)
    return {name: path for name, path in paths.items() if path}


def _taken(
    image: ProbedImage,
    row: opens.Opened,
    answers: dict[str, Json],
    folders: Sequence[str],
    cuda: int,
) -> str:
    """Return the file that a child opened by name, "" for none; say what is wrong with it."""
    answer = answers.get(row.name, {})
    path, error = str(answer.get("path", "")), answer.get("error", "")
    if path and not _below(path, (*folders, *image.own_folders)) and not _below(path, configured()):
        image.wrong(
            f"{row.name} is found by ld.so.cache alone, which the container toolkit writes anew: "
            f"no file in /etc/ld.so.conf.d names {os.path.dirname(path)}",
            "name it there, and run ldconfig",
        )
    if error and not error.startswith(f"{row.name}: cannot open shared object file"):
        image.wrong(f"{row.name} does not open: {error}", INSTALL_NEEDED)
    elif error:
        copies = (path for path in image.everywhere.get(row.name, ()) if os.path.isfile(path))
        elsewhere = next(copies, "")  # a link that leads nowhere is no library
        image.wrong(
            f"{row.name} is not where {row.opener or 'TensorFlow'} looks for it: {row.without}",
            f"name {os.path.dirname(elsewhere)} in a file in /etc/ld.so.conf.d and run ldconfig"
            if elsewhere
            else f"install nvidia-{row.package}-cu{cuda} as locked",
        )
        image.seen.setdefault("looked", {})[row.name] = list(folders)
    return path


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _check_libraries(image: ProbedImage, paths: dict[str, str]) -> None:
    """Open the files in the image's own environment; compare them with the lock and with what
    TensorFlow was built with, and let NVRTC compile."""
    request = image.request
    nvrtc = next((path for name, path in paths.items() if name.startswith("libnvrtc.")), "")
    files = {"paths": list(paths.values()), "nvrtc": nvrtc}
    asked = {key: request[key] for key in ("locked", "capability")}
    lines = image.in_child(image.environment, "--check", json.dumps({**files, **asked}))
    nothing: Json = {"problems": [], "seen": {}}
    answer = next((line for line in lines if "problems" in line), nothing)
    for problem in answer["problems"]:
        image.wrong(problem["message"], problem["fix"])
    image.seen["libraries"] = answer["seen"]
    versions = {entry["path"]: entry["version"] for entry in answer["seen"].values()}
    for stem, built in (("libcudart.", request["cuda"]), ("libcudnn.", request["cudnn"])):
        path = next((path for name, path in paths.items() if name.startswith(stem)), "")
        has, least = versions.get(os.path.realpath(path)), opens.numbers(built or "")
        if not has or not least:
            continue
        version = opens.numbers(has)  # cuDNN says three numbers of its version, its package four
        if version[0] != least[0] or version < least[: len(version)]:
            image.wrong(
                f"{path} is version {has}; the image is to have {built}, and TensorFlow wants "
                f"{least[0]}.x from its own build's on",
                "lock a version that is known to work (`builder explain` names it)",
            )


def _check_copies(image: ProbedImage, paths: dict[str, str]) -> None:
    """Look for a second file of a library: where the loader would come across it, and anywhere."""
    for name, path in paths.items():
        real = os.path.realpath(path)
        others = image.files(image.on_path(name), real)
        hidden = image.files(image.everywhere.get(name, ()), real, *others)
        if others:
            image.wrong(
                f"{name} is on the loader's path more than once: it takes {path} and leaves "
                f"{' and '.join(others)}",
                "leave one of them in the image",
            )
        elif hidden and image.request["strict"]:
            image.wrong(
                f"{name} is in the image twice: {path} and {' and '.join(hidden)}",
                "leave one of them in the image",
            )


def check_libcuda(image: ProbedImage) -> None:
    for path in image.files(image.on_path(*CUDA)):
        image.wrong(
            f"a libcuda is on the loader's path: {path}; it shadows the driver's, and TensorFlow "
            "sees no GPU",
            "remove it from the image, or its folder from LD_LIBRARY_PATH and ld.so.conf",
        )


def check_tpu(image: ProbedImage, tensorflow: str) -> None:
    """Open what TensorFlow opens: TPU_LIBRARY_PATH, else libtpu.so; never the package."""
    packaged = os.path.join(os.path.dirname(tensorflow), "libtpu", "libtpu.so")
    path = os.environ.get("TPU_LIBRARY_PATH") or "libtpu.so"
    error = image.open([path], image.folders).get(path, {}).get("error", "")
    if error.startswith(f"{path}: cannot open shared object file"):
        where = "TPU_LIBRARY_PATH is not set, and no libtpu.so is on the loader's path"
        if path != "libtpu.so":
            where = f"TPU_LIBRARY_PATH={path}: there is no such file"
        image.wrong(
            f"{where}: TensorFlow sees no TPU",
            f"set TPU_LIBRARY_PATH={packaged} in the image"
            if os.path.isfile(packaged)
            else "install libtpu and set TPU_LIBRARY_PATH to its libtpu.so",
        )
    elif error:
        image.wrong(f"{path} does not open: {error}", "install libtpu as locked")
    image.seen["libraries"] = {"libtpu.so": {"path": path, "version": None}}


def build_info(tensorflow: str) -> Json:
    """Return what TensorFlow says of its build, without importing it."""
    path = os.path.join(tensorflow, "python", "platform", "build_info.py")
    return dict(runpy.run_path(path)["build_info"]) if os.path.isfile(path) else {}


def configured() -> list[str]:
    """Return the folders that ldconfig reads, from a run that writes nothing; / without one."""
    tool = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if tool is None:
        return ["/"]
    command = [tool, "-NXv"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    lines = done.stdout.decode(errors="replace").splitlines()
    return [line.partition(":")[0] for line in lines if line.startswith("/") and ":" in line]


def probe(request: Json, seen: Json, wrong: Wrong) -> None:
    image = ProbedImage(request, seen, wrong)
    spec = importlib.util.find_spec("tensorflow")
    places = list(spec.submodule_search_locations or ()) if spec else []
    own = [
        os.path.join(place, f"libtensorflow_framework.so{number}")
        for place in places[:1]
        for number in (".2", ".1", "")
    ]
    opener = next((path for path in own if os.path.isfile(path)), "")
    if not places:
        image.wrong(
            f"{sys.executable} finds no package tensorflow", "lock it for this image, then build"
        )
    elif request["accelerator"] == "gpu":
        check_gpu(image, places[0], opener)
    else:
        image.look(opener, ())
        if request["accelerator"] == "tpu":
            check_tpu(image, places[0])
        if build_info(places[0]).get("is_cuda_build"):
            image.wrong(
                "TensorFlow in this image was built with CUDA, which nothing here uses",
                "lock tensorflow-cpu (or tensorflow-tpu): hundreds of megabytes less",
            )
        check_libcuda(image)
    if places and not opener:
        image.wrong(
            f"no libtensorflow_framework.so in {places[0]}", "install TensorFlow's wheel again"
        )


# --- in a child -----------------------------------------------------------------------------------


class LinkMap(ctypes.Structure):
    """struct link_map, as far as it is the same everywhere."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


class Folder(ctypes.Structure):
    """Dl_serpath."""

    _fields_ = (("name", ctypes.c_char_p), ("flags", ctypes.c_uint))


class Folders(ctypes.Structure):
    """Dl_serinfo, whose first folder begins a list of `count`; size: of all of it, in bytes."""

    _fields_ = (("size", ctypes.c_size_t), ("count", ctypes.c_uint), ("first", Folder))


LINKMAP, SERINFO, SERINFOSIZE = 2, 4, 5
"""What dlinfo(3) is asked for."""


def open_all(names: Sequence[str]) -> None:
    """Open names or files one after the other, and print two lines for each: its name, and the file
    that the loader took with where it looks for what that opens, or an error."""
    own = looked(ctypes.CDLL("libc.so.6"))  # it has no RUNPATH
    own = own[own.index(END) + 1 :]
    for name in names:
        begin(name)
        answer: Json = {"name": name}
        try:
            handle = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            answer["error"] = str(error)
        else:
            link = ctypes.POINTER(LinkMap)()
            dlinfo(handle, LINKMAP, link)
            folders = looked(handle)
            answer["path"] = os.path.abspath(os.fsdecode(link.contents.name))
            answer["rpath"] = folders[: folders.index(BEGIN)]
            answer["runpath"] = folders[folders.index(END) + 1 : len(folders) - len(own)]
            answer["own"] = own
        print(json.dumps(answer), flush=True)


def looked(handle: ctypes.CDLL) -> list[str]:
    """Return all folders where the loader looks for what a library opens, in its order."""
    size = Folders()
    dlinfo(handle, SERINFOSIZE, size)
    buffer = ctypes.create_string_buffer(size.size)
    info = Folders.from_buffer(buffer)
    info.size, info.count = size.size, size.count
    dlinfo(handle, SERINFO, info)
    paths = (Folder * info.count).from_buffer(buffer, Folders.first.offset)
    return [os.path.normpath(os.fsdecode(path.name)) for path in paths]


def dlinfo(handle: ctypes.CDLL, request: int, answer: Any) -> None:
    """Fill in what the loader knows of an opened library."""
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(handle._handle), request, ctypes.byref(answer)):
        raise OSError("dlinfo(3) does not answer")


def begin(name: str) -> None:
    """Say what is opened next: where that ends the process, the last line names it."""
    print(json.dumps({"opening": name}), flush=True)


def check_all(request: Json, seen: Json, wrong: Wrong) -> None:
    """Open files one after the other, as TensorFlow does."""
    for path in request["paths"]:
        begin(os.path.basename(path))
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            wrong(f"{path} does not open: {error}", INSTALL_NEEDED)
    seen.update(libraries.check(request["locked"], wrong, begin))
    begin("libnvrtc-builtins")
    libraries.check_nvrtc(request["nvrtc"], request["capability"], wrong)


if __name__ == "__main__":
    if sys.argv[1] == "--open":
        open_all(json.loads(sys.argv[2]))
    elif sys.argv[1] == "--check":
        print(json.dumps(libraries.answer(check_all, json.loads(sys.argv[2]))))
    else:
        print(json.dumps(libraries.answer(probe, json.loads(sys.argv[1]))))
