"""The loader probe, on images described by a few files: each thing that breaks one has a name.

The libraries here are real shared objects of some hundred bytes, written by `shared_object`: the
system's own loader opens them, and their version functions answer.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.frameworks.tensorflow.probes.loader import elf, libraries, probe, search
from builder.prove import session

# --- shared objects ------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """int f(): mov eax, value; ret."""
    return b"\xb8" + struct.pack("<I", value) + b"\xc3"


def through_pointer(*values: int) -> bytes:
    """int f(int *a[, int *b]): mov dword [rdi], a; mov dword [rsi], b; xor eax, eax; ret."""
    moves = (b"\xc7\x07", b"\xc7\x06")
    code = b"".join(m + struct.pack("<I", v) for m, v in zip(moves, values, strict=False))
    return code + b"\x31\xc0\xc3"


def by_property(*values: int) -> bytes:
    """int f(int which, int *out): *out = table[which], the table standing behind the code."""
    code = b"\x8b\x04\xb8\x89\x06\x31\xc0\xc3"
    return b"\x48\x8d\x05" + struct.pack("<I", len(code)) + code + struct.pack("<3I", *values)


def shared_object(
    path: Path,
    functions: Mapping[str, bytes] | None = None,
    runpath: str = "",
    rpath: str = "",
    needed: Sequence[str] = (),
) -> Path:
    """Write a 64-bit shared object for this machine's loader: one segment, no sections."""
    functions = functions or {}
    names = bytearray(b"\0")

    def name(text: str) -> int:
        names.extend(text.encode() + b"\0")
        return len(names) - len(text) - 1

    tags = [(14, name(path.name))]
    tags += [(1, name(library)) for library in needed]
    tags += [(29, name(runpath))] if runpath else []
    tags += [(15, name(rpath))] if rpath else []
    code_at = 64 + 3 * 56
    code, symbols = b"", b"\0" * 24
    for function, body in functions.items():
        symbols += struct.pack(
            "<IBBHQQ", name(function), 0x12, 0, 1, code_at + len(code), len(body)
        )
        code += body + b"\x90" * (-len(body) % 16)
    count = len(functions) + 1
    chain = [0, *range(2, count), 0] if functions else [0]
    table = struct.pack(f"<{3 + count}I", 1, count, 1 if functions else 0, *chain[:count])
    symbols_at = code_at + len(code) + -(code_at + len(code)) % 8
    table_at = symbols_at + len(symbols)
    names_at = table_at + len(table)
    dynamic_at = names_at + len(names) + -(names_at + len(names)) % 8
    tags += [(4, table_at), (5, names_at), (6, symbols_at), (10, len(names)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    end = dynamic_at + len(dynamic)

    def segment(kind: int, flags: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 0x1000)

    content = bytearray(end)
    content[:64] = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0),
    )
    content[64:code_at] = (
        segment(1, 7, 0, end)
        + segment(2, 6, dynamic_at, len(dynamic))
        + struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    )
    for at, part in (
        (code_at, code),
        (symbols_at, symbols),
        (table_at, table),
        (names_at, bytes(names)),
        (dynamic_at, dynamic),
    ):
        content[at : at + len(part)] = part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- an image with TensorFlow and CUDA -----------------------------------------------------------

CUDNN = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled")
LIBRARIES: dict[str, dict[str, bytes]] = {
    "cuda_runtime/lib/libcudart.so.12": {"cudaRuntimeGetVersion": through_pointer(12050)},
    "cublas/lib/libcublas.so.12": {"cublasGetProperty": by_property(12, 5, 3)},
    "cublas/lib/libcublasLt.so.12": {"cublasLtGetVersion": number(120503)},
    "cufft/lib/libcufft.so.11": {"cufftGetProperty": by_property(11, 2, 3)},
    "cusolver/lib/libcusolver.so.11": {"cusolverGetProperty": by_property(11, 6, 3)},
    "cusparse/lib/libcusparse.so.12": {"cusparseGetProperty": by_property(12, 5, 1)},
    "cudnn/lib/libcudnn.so.9": {"cudnnGetVersion": number(90300)},
    **{f"cudnn/lib/libcudnn_{part}.so.9": {} for part in (*CUDNN, "engines_runtime_compiled")},
    "cuda_nvrtc/lib/libnvrtc.so.12": {
        "nvrtcVersion": through_pointer(12, 5),
        "nvrtcCreateProgram": number(0),
        "nvrtcCompileProgram": number(0),
    },
    "nvjitlink/lib/libnvJitLink.so.12": {"nvJitLinkVersion": through_pointer(12, 5)},
    "nccl/lib/libnccl.so.2": {"ncclGetVersion": through_pointer(22707)},
    "cuda_cupti/lib/libcupti.so.12": {},
}
LOCKED = {
    "nvidia-cuda-runtime-cu12": "12.5.82",
    "nvidia-cublas-cu12": "12.5.3.2",
    "nvidia-cudnn-cu12": "9.3.0.75",
    "nvidia-nccl-cu12": "2.27.7",
    "nvidia-cuda-nvrtc-cu12": "12.5.82",
}
FOLDERS = ("nccl", "cuda_cupti", "cublas", "cudnn", "cufft", "cusolver", "cusparse", "cuda_runtime")


class Image:
    """A folder that holds what a GPU image holds, as far as the loader is concerned."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "opt/venv/lib/python3.11/site-packages"
        self.nvidia = self.site / "nvidia"
        self.library_path: tuple[str, ...] = ()
        self.cache: dict[str, tuple[str, ...]] = {}
        self.configured: tuple[str, ...] = ()
        self.environ: dict[str, str] = {}
        self.kind = "gpu"
        self.strict = True
        self.locked = LOCKED
        self.tensorflow = self.site / "tensorflow"
        for path, functions in LIBRARIES.items():
            others = "$ORIGIN/../../cuda_nvrtc/lib:$ORIGIN/../../nvjitlink/lib"
            shared_object(self.nvidia / path, functions, f"$ORIGIN:{others}")
        self.framework()
        self.build_info(is_cuda_build=True, cuda_version="12.5.1", cudnn_version="9")
        self.write("nvidia/cuda_nvcc/bin/ptxas", "#!/bin/sh\necho release 12.5, V12.5.82\n").chmod(
            0o755
        )
        self.write("nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc", "BC")

    def framework(self, functions: Mapping[str, bytes] | None = None) -> None:
        shared_object(
            self.site / "tensorflow/libtensorflow_framework.so.2",
            functions,
            runpath=":".join(f"$ORIGIN/../nvidia/{folder}/lib" for folder in FOLDERS),
        )

    def build_info(self, **values: object) -> None:
        self.write("tensorflow/python/platform/build_info.py", f"build_info = {values!r}\n")

    def write(self, path: str, text: str) -> Path:
        file = self.site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def library(self, name: str) -> Path:
        return next(path for path in self.nvidia.rglob(name))

    def probe(self) -> tuple[list[str], dict[str, Any]]:
        """Messages, what was seen; every problem has to come with a way out."""
        request = {
            **{"accelerator": self.kind, "cuda": "12.5", "cudnn": "9.3", "capability": "7.0"},
            **{"locked": self.locked, "strict": self.strict},
        }
        answer = probe.probe(
            request,
            self.environ,
            tensorflow=str(self.tensorflow),
            loader=search.Loader(self.library_path, self.cache, (), None, self.configured),
            root=str(self.root),
        )
        json.dumps(answer)
        self.fixes = [problem["fix"] for problem in answer["problems"]]
        assert all(self.fixes), "a problem without a way out"
        return [problem["message"] for problem in answer["problems"]], answer["seen"]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_a_whole_image_passes_and_each_version_is_the_librarys_own(image: Image) -> None:
    messages, seen = image.probe()
    assert messages == []
    versions = {name: library["version"] for name, library in seen["libraries"].items()}
    assert versions["libcudart.so.12"] == "12.5"
    assert versions["libcublas.so.12"] == "12.5.3"
    assert versions["libcublasLt.so.12"] == "12.5.3"
    assert versions["libcufft.so.11"] == "11.2.3"
    assert versions["libcudnn.so.9"] == "9.3.0"
    assert versions["libnvrtc.so.12"] == "12.5"
    assert versions["libnccl.so.2"] == "2.27.7"
    assert seen["xla"]["version"] == "12.5.82"


LOOKED = "nvidia/{nccl,cuda_cupti,cublas,cudnn,cufft,cusolver,cusparse,cuda_runtime}/lib"


def test_what_is_missing_is_named_with_what_fails_without_it(image: Image) -> None:
    """A library of cuDNN's own, one that lies where nobody looks, one that is nowhere."""
    image.library("libcudnn_ops.so.9").unlink()
    image.library("libcufft.so.11").unlink()
    hidden = image.root / "opt/elsewhere/libcusolver.so.11"
    hidden.parent.mkdir()
    image.library(hidden.name).rename(hidden)
    (hidden.parent / "libcufft.so.11").symlink_to("nowhere")  # it is no file to advise
    (image.nvidia / "cuda_nvcc/bin/ptxas").unlink()
    (image.nvidia / "cuda_nvcc/nvvm/libdevice/libdevice.10.bc").unlink()
    messages, _ = image.probe()
    no_gpu = "TensorFlow sees no GPU and trains on the CPU: it registers GPUs only if all of these"
    assert messages[0] == (
        f"libcufft.so.11 is not where TensorFlow looks for it ({LOOKED}, ld.so.cache): {no_gpu} "
        "load"
    )
    assert messages[1].startswith("libcusolver.so.11 is not where TensorFlow looks for it")
    assert messages[2].startswith("libcudnn_ops.so.9 is not where libcudnn looks for it")
    assert [message.split(" in ")[0] for message in messages[3:]] == [
        "no executable ptxas",
        "no nvvm/libdevice/libdevice.10.bc",
    ]
    assert image.fixes == [
        "install nvidia-cufft-cu12 as locked",
        f"name {hidden.parent} in a file in /etc/ld.so.conf.d and run ldconfig",
        "install nvidia-cudnn-cu12 as locked",
        *["install nvidia-cuda-nvcc-cu12 as locked"] * 2,
    ]


def test_what_the_loaders_cache_names_is_found(image: Image) -> None:
    hidden = image.root / "opt/elsewhere/libcusolver.so.11"
    hidden.parent.mkdir()
    image.library(hidden.name).rename(hidden)
    image.cache = {hidden.name: (str(hidden),)}
    assert image.probe()[0] == []
    image.configured = (str(hidden.parent),)
    assert image.probe()[0] == []
    image.configured = ("/usr/lib",)  # somebody ran `ldconfig /opt/elsewhere`
    assert image.probe()[0] == [
        "libcusolver.so.11 is found by ld.so.cache alone, which the container toolkit writes anew: "
        f"no file in /etc/ld.so.conf.d names {hidden.parent}"
    ]


def test_nvrtc_has_to_compile_for_the_images_gpu(image: Image) -> None:
    """It opens libnvrtc-builtins, its second library, only then."""
    assert image.probe()[1]["nvrtc"] == "compiles for 7.0"
    path = image.library("libnvrtc.so.12")
    functions = LIBRARIES["cuda_nvrtc/lib/libnvrtc.so.12"]
    log = {"nvrtcGetProgramLogSize": number(0), "nvrtcGetProgramLog": number(0)}
    shared_object(path, {**functions, **log, "nvrtcCompileProgram": number(7)})
    assert image.probe()[0] == [
        f"{path} does not compile a kernel for 7.0: code 7; what cuDNN and XLA make at run time "
        "fails"
    ]


def test_a_remnant_of_the_driver_is_wrong_and_a_stub_or_a_compatibility_package_is_not(
    image: Image,
) -> None:
    image.strict = False
    shared_object(image.root / "usr/local/cuda/lib64/stubs/libnvidia-ml.so")
    shared_object(image.root / "usr/local/cuda/compat/libnvidia-ptxjitcompiler.so.1")
    messages, _ = image.probe()
    assert messages == []
    remnant = image.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    remnant.parent.mkdir(parents=True, exist_ok=True)
    remnant.touch()  # what a build on a machine with a GPU leaves behind
    messages, seen = image.probe()
    assert seen["driver_libraries"] == [str(remnant)]
    assert messages[0].startswith(f"the image holds a library of the driver: {remnant}; the")


def test_a_libcuda_on_the_loaders_path_is_wrong_and_elsewhere_in_an_image_of_our_own(
    image: Image,
) -> None:
    stub = shared_object(image.root / "usr/local/cuda/lib64/stubs/libcuda.so.1")
    messages, _ = image.probe()
    assert messages == [
        f"the image holds a libcuda: {stub}; a stub or an old driver shadows the machine's as soon "
        "as its folder is searched"
    ]
    image.strict = False
    messages, seen = image.probe()
    assert (messages, seen["libcuda"]) == ([], [str(stub)])
    image.library_path = (str(stub.parent),)
    messages, seen = image.probe()
    assert messages == [
        f"a libcuda is on the loader's path: {stub}; it shadows the driver's, and TensorFlow sees "
        "no GPU"
    ]
    assert seen["libcuda"] == [str(stub)]


def test_a_second_copy_in_the_way(image: Image) -> None:
    old = shared_object(image.root / "usr/lib/libcudnn.so.9", {"cudnnGetVersion": number(90101)})
    image.library_path = (str(old.parent),)
    messages, _ = image.probe()
    ours = image.library("libcudnn.so.9")
    assert f"{old} is version 9.1.1, the lock says 9.3.0.75" in messages
    assert any("TensorFlow was built with 9.3 and wants 9.x from 9.3 on" in m for m in messages)
    assert (
        f"libcudnn.so.9 is on the loader's path more than once: it takes {old} and leaves {ours}"
        in messages
    )


def test_a_copy_behind_ours_is_one_too_many_and_a_link_is_none(image: Image) -> None:
    links = image.root / "usr/lib"
    links.mkdir(parents=True)
    for path in image.nvidia.rglob("lib*.so.*"):
        (links / path.name).symlink_to(path)
    image.library_path = (str(links),)
    functions = LIBRARIES["cublas/lib/libcublas.so.12"]
    cached = shared_object(image.root / "usr/lib64/libcublas.so.12", functions)
    image.cache = {cached.name: (str(cached),)}
    unsearched = shared_object(image.root / "opt/backup/libnccl.so.2")
    behind = (
        f"libcublas.so.12 is on the loader's path more than once: it takes {links / cached.name} "
        f"and leaves {cached}"
    )
    assert image.probe()[0] == [
        behind,
        f"libnccl.so.2 is in the image twice: {links / unsearched.name} and {unsearched}",
    ]
    image.strict = False
    assert image.probe()[0] == [behind]


def test_a_library_that_does_not_open_has_a_name(image: Image) -> None:
    path = image.library("libcufft.so.11")
    shared_object(path, needed=["libgone.so.1"])
    (missing,) = image.probe()[0]
    assert missing.startswith(f"{path} does not open: libgone.so.1: cannot open shared")
    path.write_bytes(path.read_bytes()[:-64])
    (cut,) = image.probe()[0]
    assert cut.startswith(("opening libcufft.so.11 ended the process", f"{path} does not"))
    shared_object(path, {"cufftGetProperty": b"\x0f\x0b"})  # ud2
    assert image.probe()[0] == ["opening libcufft.so.11 ended the process: signal 4"]


def test_tensorflows_own_answer_wins(image: Image) -> None:
    """It opens nothing where the search order finds a file: the probe is at fault."""
    image.framework({"_ZN3tsl8internal9DsoLoader17GetCudnnDsoHandleEv": number(0)})
    messages, seen = image.probe()
    assert seen["asked_tensorflow"] == ["libcudnn.so.9"]
    assert messages == [
        "TensorFlow itself takes nothing for libcudnn.so.9, by the loader's search order it is "
        f"{image.library('libcudnn.so.9')}"
    ]


def test_a_tensorflow_that_was_built_for_something_else(image: Image) -> None:
    image.build_info(is_cuda_build=True, cuda_version="13.0.0", cudnn_version="9")
    assert "CUDA 13.0.0" in image.probe()[0][0]
    image.kind = "cpu"
    assert image.probe()[0] == [
        "TensorFlow in this image was built with CUDA, which nothing here uses"
    ]
    image.kind = "gpu"
    image.build_info(is_cuda_build=False)
    assert image.probe()[0] == [
        f"TensorFlow in {image.tensorflow} was built without CUDA: it will see no GPU"
    ]
    assert image.fixes == ["lock `tensorflow`, not `tensorflow-cpu`, for this accelerator"]
    image.locked = {**LOCKED, "tensorflow": "2.21.0"}  # another copy comes first on PYTHONPATH
    image.probe()
    assert image.fixes == [
        "the lock has tensorflow 2.21.0: take this other copy out of the image, or "
        f"{image.tensorflow.parent} out of PYTHONPATH"
    ]


def test_cuda_11_has_names_of_its_own() -> None:
    names = {lib.stem: libraries.soname(lib, (11, 8, 0), 8) for lib in libraries.libraries(11, 8)}
    assert names["libcudart"] == "libcudart.so.11.0"
    assert names["libcufft"] == "libcufft.so.10"
    assert names["libcublas"] == "libcublas.so.11"
    assert names["libcupti"] == "libcupti.so.11.8"
    assert "libnvJitLink" not in names
    assert names["libcudnn_ops_infer"] == "libcudnn_ops_infer.so.8"


def test_libtpu_is_opened_by_its_variable_and_not_by_its_package(image: Image) -> None:
    image.kind = "tpu"
    image.build_info(is_cuda_build=False)
    libtpu = shared_object(image.site / "libtpu/libtpu.so")
    assert image.probe()[0] == [
        "TPU_LIBRARY_PATH is not set, and no libtpu.so is on the loader's path: TensorFlow "
        "sees no TPU"
    ]
    assert image.fixes == [f"set TPU_LIBRARY_PATH={libtpu} in the image"]
    image.environ = {"TPU_LIBRARY_PATH": str(libtpu)}
    messages, seen = image.probe()
    assert (messages, seen["libraries"]["libtpu.so"]["path"]) == ([], str(libtpu))
    image.environ = {"TPU_LIBRARY_PATH": "/lib/libtpu.so"}
    assert image.probe()[0][0].startswith("TPU_LIBRARY_PATH=/lib/libtpu.so: there is no such")


# --- the search order, against the loader itself -------------------------------------------------

OPEN = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print([line.split()[-1] for line in open("/proc/self/maps") if "libwanted" in line][0])
"""


TAGS = {
    "runpath": {"runpath": "$ORIGIN/own"},
    "rpath": {"rpath": "$ORIGIN/own"},
    "both: DT_RPATH is ignored": {"rpath": "$ORIGIN/own", "runpath": "$ORIGIN/nothing"},
}


@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS.keys())
@pytest.mark.parametrize("there", [(True, True), (False, True)])
def test_the_order_is_the_loaders_own(
    tmp_path: Path, tags: dict[str, str], there: tuple[bool, bool]
) -> None:
    """The same library in the caller's own folder and in LD_LIBRARY_PATH: who wins, or whether it
    is found at all, depends on which tags the caller carries."""
    folders = [tmp_path / "own", tmp_path / "environment"]
    for folder, exists in zip(folders, there, strict=True):
        if exists:
            shared_object(folder / "libwanted.so.1")
    caller = shared_object(tmp_path / "libcaller.so", needed=["libwanted.so.1"], **tags)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folders[1])}
    real = subprocess.run(
        [sys.executable, "-c", OPEN, str(caller)], env=environ, capture_output=True, text=True
    )
    caller_elf = elf.read_elf(str(caller))
    assert caller_elf is not None
    result = search.system_loader({"LD_LIBRARY_PATH": str(folders[1])}).find(
        "libwanted.so.1", caller_elf
    )
    assert real.stdout.strip() == (result.path or "")
    assert result.path or "libwanted.so.1: cannot open shared object file" in real.stderr


def test_the_cache_is_read_as_ldconfig_tells_it() -> None:
    libc = search.system_loader({}).cache.get("libc.so.6")
    assert libc and Path(libc[0]).is_file()


def test_what_is_no_shared_object_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/libx.so").write_text("/* GNU ld script */ INPUT(libx.so.1)")
    real = shared_object(tmp_path / "b/libx.so")
    caller = elf.Elf(str(tmp_path / "caller"), (), ())
    looking = search.Loader((str(tmp_path / "a"), str(real.parent)), {}, (), None)
    assert looking.find("libx.so", caller) == search.SearchResult(
        str(real), (str(tmp_path / "a"), str(real.parent))
    )


def test_a_file_too_short_for_a_header_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for length in (0, 3, 20, 63):
        path.write_bytes(b"\x7fELF\x02\x01".ljust(length, b"\0")[:length])
        assert elf.read_elf(str(path)) is None


# --- as a session sends it ------------------------------------------------------------------------


def test_the_files_that_a_session_sends_run_anywhere(tmp_path: Path) -> None:
    """On a Python that knows nothing of the factory, and finds no TensorFlow."""
    files = session.program_files("builder.frameworks.tensorflow.probes.loader")
    assert {"loader/__init__.py", "loader/__main__.py"} < files.keys()
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    request = {"accelerator": "gpu", "cuda": "12.5", "cudnn": "9.3", "locked": {}}
    done = subprocess.run(
        [sys.executable, "-S", "-B", tmp_path / "loader", json.dumps({**request, "strict": True})],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["problems"][0]["message"].endswith("finds no package tensorflow")


def test_a_probe_of_one_module_is_one_file() -> None:
    assert list(session.program_files("builder.prove.probes.contents")) == ["contents.py"]
