"""For tests: whole images of PyTorch, TensorFlow and JAX for a V100, as their wheels lay them out.

Small enough to write in a test: libraries are linked as the real ones, and hold no code but one.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from builder.audit.audited import gpu_named
from builder.frameworks.libraries import CUDNN_PARTS
from builder.prove import suites
from builder.prove.image import Image
from builder.prove.receipts import CheckResult
from builder.reading import layers
from builder.reading.images import ImageContent
from builder.reading.layers import ReadLayer
from tests.devicecode.writer import container, digest, library, linked, sass
from tests.prove.reading import SITE, layer

Files = Mapping[str, bytes | None]
"""Path -> bytes; None takes a file away. What `bin` or `sh` says may be executed."""

TAG: Final = "cp311-cp311-manylinux_2_28_x86_64"
NVIDIA: Final = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
CUDA_PATH: Final = "/usr/local/cuda/extras/CUPTI/lib64:/usr/local/cuda/lib64"
PATH: Final = "PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
PYTHON: Final = linked(
    "libc.so.6", defined=("PyList_New",), interpreter="/lib64/ld-linux-x86-64.so.2"
)  # fmt: skip


def cxx(newest: str = "GLIBCXX_3.4.29") -> bytes:
    """A libstdc++."""
    return linked(soname="libstdc++.so.6", defined=("_Znwm",), versions=(newest,))


def dist(
    name: str,
    version: str,
    files: Files,
    requires: tuple[str, ...] = (),
    tag: str = TAG,
    site: str = SITE,
) -> dict[str, bytes | None]:
    """A distribution as pip installs it. files: below the folder of packages."""
    present = {path: data for path, data in files.items() if data is not None}
    info = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    rows = (f"{path},sha256={digest(data)},{len(data)}\n" for path, data in present.items())
    texts = {
        "METADATA": f"Name: {name}\nVersion: {version}\n{needs}\n",
        "WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
        "INSTALLER": "pip",
        "RECORD": "".join(rows),
    }
    return {
        **{f"{site}/{path}": data for path, data in present.items()},
        **{f"{info}/{path}": text.encode() for path, text in texts.items()},
    }


def cuda(name: str, version: str, *libraries: str, **more: Any) -> dict[str, bytes | None]:
    """A wheel of CUDA's."""
    files = {f"nvidia/{name}/lib/{each}": linked(soname=each, **more) for each in libraries}
    return dist(f"nvidia-{name.replace('_', '-')}-cu12", version, files)


CUDNN_FILES = ("libcudnn.so.9", *(f"libcudnn_{part}.so.9" for part in CUDNN_PARTS[9]))
BESIDE = ":".join(f"$ORIGIN/../../{name}/lib" for name in ("cublas", "nvjitlink", "cuda_nvrtc"))
CUDA: Files = {
    **cuda("cublas", "12.9.99", "libcublas.so.12", "libcublasLt.so.12", runpath="$ORIGIN"),
    **cuda("cuda_runtime", "12.9.99", "libcudart.so.12"),
    **cuda("cuda_nvrtc", "12.9.99", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9"),
    **cuda("cuda_cupti", "12.9.99", "libcupti.so.12"),
    **cuda("cufft", "11.4.99", "libcufft.so.11"),
    **cuda("cusolver", "11.7.99", "libcusolver.so.11", runpath=BESIDE),
    **cuda("cusparse", "12.5.99", "libcusparse.so.12", runpath=BESIDE),
    **cuda("nvjitlink", "12.9.99", "libnvJitLink.so.12"),
    **cuda("cudnn", "9.10.2.99", *CUDNN_FILES, runpath=f"$ORIGIN:{BESIDE}"),
    **cuda("nccl", "2.27.99", "libnccl.so.2", defined=("ncclCommResume",)),
}
FOLDERS = (
    *("cublas", "cuda_cupti", "cuda_nvrtc", "cuda_runtime", "cudnn", "cufft", "cusolver"),
    *("cusparse", "nccl", "nvjitlink"),
)


def beside(*up: str, folders: tuple[str, ...] = FOLDERS) -> str:
    """The search path to these wheels, from a folder as deep."""
    return ":".join("/".join(("$ORIGIN", *up, "nvidia", name, "lib")) for name in folders)


BASE: Files = {
    "usr/bin/python3.11": PYTHON,
    "bin/sh": b"\x7fELF",
    "bin/bash": b"\x7fELF",
    "usr/bin/env": b"\x7fELF",
    "usr/bin/tini": b"\x7fELF",
    "usr/bin/uv": b"\x7fELF",
    "usr/lib/x86_64-linux-gnu/libc.so.6": linked(
        soname="libc.so.6", defined=("malloc",), versions=("GLIBC_2.17", "GLIBC_2.34")
    ),
    "usr/lib/x86_64-linux-gnu/libstdc++.so.6": cxx(),
    "usr/lib/libkernels.so": library(container(sass(70))),
    "etc/ssl/certs/ca-certificates.crt": b"certificates",
    "etc/passwd": b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n",
    "app/train.py": b"import sys\n",
    "app/entry.sh": b'#!/bin/bash\nset -e\nexec "$@"\n',
    **dist("numpy", "2.3.0", {"numpy/__init__.py": b""}),
    **dist("triton", "3.4.0", {}),
    "usr/bin/gcc": b"\x7fELF",
    "usr/include/python3.11/Python.h": b"",
}
EXTENSION = "cpython-311-x86_64-linux-gnu.so"
TORCH: Files = {
    **dist("torch", "2.9.99", {
        "torch/__init__.py": b"",
        f"torch/_C.{EXTENSION}": linked("libtorch_python.so", runpath="$ORIGIN/lib"),
        "torch/lib/libtorch_python.so": linked(
            "libtorch_cuda.so", "libc.so.6", runpath="$ORIGIN", soname="libtorch_python.so",
            undefined=("PyList_New", "at_sum"),
        ),
        "torch/lib/libtorch_cuda.so": linked(
            "libcudnn.so.9", "libnccl.so.2", "libcublas.so.12", "libcuda.so.1", "libstdc++.so.6",
            soname="libtorch_cuda.so", undefined=("ncclCommResume", "cuMemAlloc_v2", "_Znwm"),
            defined=("at_sum",), wanted=(("libstdc++.so.6", "GLIBCXX_3.4.29"),),
            rpath=beside("..", ".."),
        ),
    }, ("nvidia-cudnn-cu12==9.10.2.99", "nvidia-nccl-cu12==2.27.99", "numpy")),
    **dist("torchvision", "0.23.0", {
        "torchvision/_C.so": linked("libtorch_cuda.so", undefined=("at_sum",)),
    }, ("torch==2.9.99",)),
}  # fmt: skip
FRAMEWORK = "libtensorflow_framework.so.2"
TENSORFLOW: Files = {
    **dist("tensorflow", "2.21.99", {
        "tensorflow/__init__.py": b"",
        f"tensorflow/{FRAMEWORK}": linked(soname=FRAMEWORK, runpath=beside("..")),
        "tensorflow/python/_pywrap_tensorflow_internal.so": linked(FRAMEWORK, runpath="$ORIGIN/.."),
    }, ("numpy>=1.26", "keras>=3.12", "protobuf>=6.31")),
    **dist("keras", "3.12.0", {"keras/__init__.py": b""}),
    **dist("protobuf", "6.33.0", {"google/protobuf/__init__.py": b""}),
}  # fmt: skip
PLUGIN = "jax_plugins/xla_cuda12/xla_cuda_plugin.so"
JAX: Files = {
    **dist("jax", "0.9.9", {"jax/__init__.py": b""}, ("jaxlib<=0.9.9,>=0.9.9", "numpy>=2.0")),
    **dist(
        "jaxlib",
        "0.9.9",
        {
            "jaxlib/__init__.py": b"",
            "jaxlib/_jax.so": linked("libc.so.6") + b"\0xla_gpu_autotune_level\0",
        },
    ),
    **dist("jax-cuda12-plugin", "0.9.9", {}, ("jax-cuda12-pjrt==0.9.9",)),
    **dist("jax-cuda12-pjrt", "0.9.9", {PLUGIN: linked(runpath=beside("..", ".."))}),
}
WHOLE: dict[str, Files] = {
    "torch": {**BASE, **CUDA, **TORCH},
    "tensorflow": {**BASE, **CUDA, **TENSORFLOW},
    "jax": {**BASE, **CUDA, **JAX},
}
CONFIG: dict[str, Any] = {
    "Cmd": ["python", "train.py"],
    "WorkingDir": "/app",
    "User": "1000:1000",
    "Env": [PATH, f"LD_LIBRARY_PATH={NVIDIA}", "PYTHONUNBUFFERED=1"],
}
LINKS = {"opt/venv/bin/python": "/usr/bin/python3.11", "usr/bin/python3": "python3.11"}


@cache
def _whole(framework: str) -> ReadLayer:
    files = {path: (data, 0o755, 0) for path, data in WHOLE[framework].items() if data is not None}
    return layers.read(io.BytesIO(layer(files, LINKS)))


def image(
    framework: str,
    changes: Files,
    config: Mapping[str, Any],
    links: Mapping[str, str],
    modes: Mapping[str, int] | None = None,
    architecture: str = "amd64",
) -> Image:
    """An image of two layers: the whole one of a framework, and what changes it."""
    present = {
        path if data is not None else posixpath.join(*_whiteout(path)): data or b""
        for path, data in changes.items()
    }
    above = layer({p: (data, (modes or {}).get(p, 0o755), 0) for p, data in present.items()}, links)
    both = (_whole(framework), layers.read(io.BytesIO(above)))
    own = {**CONFIG, **config, "Env": [*CONFIG["Env"], *config.get("Env", ())]}
    configuration = {"config": own, "architecture": architecture, "history": []}
    return Image(ImageContent(layers.merge(both), both, configuration), gpu_named("v100"))


def _whiteout(path: str) -> tuple[str, str]:
    folder, name = posixpath.split(path)
    return folder, f".wh.{name}"


def judged(judged: Image) -> dict[str, CheckResult]:
    """What each check of `builder prove` says."""
    return {result.name: result for result in suites.IMAGE.judge(judged)}
