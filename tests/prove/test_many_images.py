"""Images of others, broken in more than a hundred and thirty ways: each is refused, or found, with
its cause. And images as their publishers lay them out, of which none is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.devicecode.writer import container, library, linked, sass
from tests.prove import shapes
from tests.prove.reading import SITE
from tests.prove.shapes import CUDA_PATH, NVIDIA, Files

NV = f"{SITE}/nvidia"
BOTH = ("torch", "tensorflow", "jax")


@dataclass(frozen=True)
class Broken:
    """One way to break an image. says: of the check that has to name it."""

    name: str
    check: str
    says: str
    changes: Files = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    architecture: str = "amd64"
    of: tuple[str, ...] = BOTH


def env(check_says: str, *variables: str, of: tuple[str, ...] = BOTH) -> Broken:
    return Broken(variables[0], "environment", check_says, config={"Env": list(variables)}, of=of)


def text(name: str, says: str, path: str, content: str, **more: Any) -> Broken:
    return Broken(name, "shadows", says, {path: content.encode()}, **more)


def start(name: str, says: str, changes: Files | None = None, **config: Any) -> Broken:
    return Broken(name, "entry-point", says, changes or {}, config)


def gone(says: str, *paths: str, check: str = "loader", of: tuple[str, ...] = BOTH) -> Broken:
    return Broken(f"{paths[0].split('/')[-1]} is gone", check, says, dict.fromkeys(paths), of=of)


def script(content: bytes) -> dict[str, Any]:
    return {"app/entry.sh": content}


BY_SCRIPT: dict[str, Any] = {"Entrypoint": ["/app/entry.sh"]}
SHELL = ["/bin/sh", "-c"]
ON_PATH = {"Env": ["PYTHONPATH=/src"]}
EVERY: list[Broken] = [
    # --- what is started
    start("a program that is not there", "starts pyhton, which is not there", Cmd=["pyhton", "a"]),
    start(
        "a file that is not there",
        "runs /app/tain.py, which is not there",
        Cmd=["python", "tain.py"],
    ),
    start("another folder", "not there; /app/train.py is", WorkingDir="/src"),
    start("a module that is not there", "the module trainer", Cmd=["python", "-m", "trainer.task"]),
    start("a list without a comma", "that is no JSON", Cmd=[*SHELL, '["python" "train.py"]']),
    start("one word", "starts python train.py, which is", Cmd=["python train.py"]),
    start("a shell's line", "runs /app/fit.py", Cmd=[*SHELL, "cd /app && exec python fit.py"]),
    start("CRLF", "line ends of Windows", script(b'#!/bin/bash\r\nexec "$@"\r\n'), **BY_SCRIPT),
    start(
        "no bash",
        "starts with /usr/local/bin/bash",
        script(b"#!/usr/local/bin/bash\n"),
        **BY_SCRIPT,
    ),
    start("no first line", "no first line", script(b"set -e\n"), **BY_SCRIPT),
    start(
        "what a script starts",
        "runs /fit.py",
        script(b"#!/bin/sh\nexec python /fit.py\n"),
        **BY_SCRIPT,
    ),
    start("an account that is not there", "no account trainer", User="trainer"),
    start("uv run", "compares the environment", Cmd=["uv", "run", "train.py"]),
    start(
        "pip at the start",
        "installs at each start",
        Cmd=[*SHELL, "pip install x && python train.py"],
        changes={"opt/venv/bin/pip": b"#!/bin/sh\n"},
    ),
    Broken(
        "a file of root's",
        "entry-point",
        "may not read /app/train.py",
        {"app/train.py": b""},
        modes={"app/train.py": 0o600},
    ),
    Broken(
        "a script that may not be run",
        "entry-point",
        "may not be executed",
        script(b"#!/bin/sh\n"),
        BY_SCRIPT,
        modes={"app/entry.sh": 0o644},
    ),
    Broken(
        "python in a closed folder",
        "entry-point",
        "may not enter /root",
        {"root/": b"", "root/uv/python": shapes.PYTHON},
        {"Cmd": ["/root/uv/python"]},
        modes={"root/": 0o700},
    ),
    # --- what hides
    text("random.py", "imported for Python's own random", "app/random.py", ""),
    text("numpy.py", "is imported for numpy", "app/numpy.py", ""),
    text("queue.py on PYTHONPATH", "Python's own queue", "src/queue.py", "", config=ON_PATH),
    text("a second numpy", "/src/numpy is imported", "src/numpy/__init__.py", "", config=ON_PATH),
    text("sitecustomize", "at every start of Python", f"{SITE}/sitecustomize.py", ""),
    text(
        "an empty list of GPUs",
        "CUDA_VISIBLE_DEVICES=",
        "app/entry.sh",
        '#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=\nexec "$@"\n',
        config=BY_SCRIPT,
    ),
    text(
        "a profile",
        "gpu.sh:1 says CUDA_VISIBLE",
        "etc/profile.d/gpu.sh",
        "export CUDA_VISIBLE_DEVICES=-1\n",
    ),
    text(
        "os.environ",
        "train.py:2 hides",
        "app/train.py",
        'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = ""\n',
    ),
    # --- variables
    env("hides every GPU", "CUDA_VISIBLE_DEVICES=-1"),
    env("no compute", "NVIDIA_DRIVER_CAPABILITIES=utility"),
    env("given no GPU", "NVIDIA_VISIBLE_DEVICES=void"),
    env("names a part of one machine", "NCCL_SOCKET_IFNAME=ens5"),
    env("names a plugin", "NCCL_NET_PLUGIN=aws-ofi"),
    env("keeps NCCL from", "NCCL_P2P_DISABLE=1"),
    env("for the CPU", "PIP_EXTRA_INDEX_URL=https://index/whl/cpu"),
    env("keeps out driver", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"),
    env("every kernel wait", "CUDA_LAUNCH_BLOCKING=1"),
    env("LD_PRELOAD names", "LD_PRELOAD=/usr/lib/libtcmalloc.so.4"),
    # --- the rest of the image
    Broken("arm64", "machine", "the image is for arm64", architecture="arm64"),
    Broken("SIGQUIT", "machine", "STOPSIGNAL", config={"StopSignal": "SIGQUIT"}),
    Broken(
        "kernels of a newer GPU alone",
        "device-code",
        "missing",
        {"usr/lib/libk2.so": library(container(sass(90)))},
    ),
    Broken("the driver's library", "driver", "of the driver", {"usr/lib/libcuda.so.550.54": b""}),
    Broken(
        "stubs on the path",
        "loader",
        "for the driver",
        {
            "usr/local/cuda/lib64/stubs/libcuda.so.1": linked(soname="libcuda.so.1"),
            "etc/ld.so.conf": b"/usr/local/cuda/lib64/stubs\n",
        },
    ),
    Broken(
        "compat on the path",
        "loader",
        "for the driver",
        {
            "usr/local/cuda/compat/lib.real/libcuda.so.1": linked(soname="libcuda.so.1"),
            "etc/ld.so.conf": b"/usr/local/cuda/compat/lib.real\n",
        },
    ),
    Broken("a stray .pth", "pth", "runs code", {f"{SITE}/x.pth": b"import os; os.x()\n"}),
]
CUDNN = tuple(f"{NV}/cudnn/lib/{name}" for name in shapes.CUDNN_FILES)
GRAPH = shapes.CUDNN_FILES.index("libcudnn_graph.so.9")
UNFIT = "does not fit what it is loaded with: nothing that it loads defines"
OLD_NCCL = shapes.cuda("nccl", "2.27.99", "libnccl.so.2")
TORCHTEXT: Files = {
    "torchtext/_torchtext.so": linked(
        *("libtorchtext.so", "libtorch_cuda.so"), runpath="$ORIGIN/lib", undefined=("at_sum",)
    ),
    "torchtext/lib/libtorchtext.so": linked(
        "libtorch_cuda.so", soname="libtorchtext.so", undefined=("at_old",)
    ),
}
OF_TORCH: list[Broken] = [
    gone("needs libcudnn.so.9", CUDNN[0]),
    gone("cuDNN opens libcudnn_graph.so.9, which is not in the image", CUDNN[GRAPH]),
    gone("opens libcudnn_ops.so.9", f"{NV}/cudnn/lib/libcudnn_ops.so.9"),
    gone("needs libcublas.so.12", f"{NV}/cublas/lib/libcublas.so.12"),
    gone("needs libnccl.so.2", f"{NV}/nccl/lib/libnccl.so.2"),
    gone("libnvrtc", f"{NV}/cuda_nvrtc/lib/libnvrtc.so.12"),
    gone(
        "libnvrtc-builtins.so.12.9: installed by",
        f"{NV}/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
        check="installed",
    ),
    gone(
        "libtorch_cuda.so: installed by torch",
        f"{SITE}/torch/lib/libtorch_cuda.so",
        check="installed",
    ),
    gone("needs libtorch_python.so", f"{SITE}/torch/lib/libtorch_python.so"),
    Broken(
        "a wheel that was moved",
        "loader",
        "libtorch_cuda.so needs libnccl.so.2, which lies in /opt/nccl/libnccl.so.2, where nothing",
        {
            f"{NV}/nccl/lib/libnccl.so.2": None,
            "opt/nccl/libnccl.so.2": linked(defined=("ncclCommResume",)),
        },
    ),
    Broken(
        "an older NCCL",
        "loader",
        f"libtorch_cuda.so {UNFIT} ncclCommResume; it is linked to nvidia-nccl-cu12 2.27.99, which",
        OLD_NCCL,
    ),
    Broken(
        "an older NCCL by its version",
        "installed",
        "requires nvidia-nccl-cu12==2.27.99 (2.20.5)",
        {
            f"{NV.replace('/nvidia', '')}/nvidia_nccl_cu12-2.27.99.dist-info/{name}": None
            for name in ("METADATA", "WHEEL", "RECORD", "INSTALLER")
        }
        | shapes.cuda("nccl", "2.20.5", "libnccl.so.2", defined=("ncclCommResume",)),
    ),
    Broken(
        "an older libstdc++",
        "loader",
        "it needs GLIBCXX_3.4.29 of /usr/lib/x86_64-linux-gnu/libstdc++.so.6, which has no such",
        {"usr/lib/x86_64-linux-gnu/libstdc++.so.6": shapes.cxx("GLIBCXX_3.4.28")},
    ),
    Broken(
        "conda's old libstdc++ first",
        "loader",
        "GLIBCXX_3.4.29 of /opt/conda/lib",
        {"opt/conda/lib/libstdc++.so.6": shapes.cxx("GLIBCXX_3.4.25")},
        {"Env": [f"LD_LIBRARY_PATH=/opt/conda/lib:{shapes.NVIDIA}"]},
    ),
    Broken(
        "torchvision of another PyTorch",
        "loader",
        f"torchvision/_C.so {UNFIT} at_old; it is linked to torch 2.9.99",
        {f"{SITE}/torchvision/_C.so": linked("libtorch_cuda.so", undefined=("at_old",))},
    ),
    Broken(
        "a library of torchtext's of another PyTorch, which its module loads first",
        "loader",
        f"torchtext/lib/libtorchtext.so {UNFIT} at_old; it is linked to torch 2.9.99",
        shapes.dist("torchtext", "0.18.0", TORCHTEXT),
    ),
    Broken(
        "torchvision by its version",
        "installed",
        "torchvision 0.20.0 requires torch==2.5.0 (2.9.99)",
        shapes.dist("torchvision", "0.20.0", {}, ("torch==2.5.0",)),
    ),
    Broken(
        "an extension of another PyTorch",
        "loader",
        "defines at_flash",
        shapes.dist(
            "flash-attn",
            "2.6",
            {
                f"flash_attn_cuda.{shapes.EXTENSION}": linked(
                    "libtorch_cuda.so", undefined=("at_flash",)
                )
            },
        ),
    ),
    Broken(
        "cuDNN is libz by a link",
        "loader",
        "cuDNN opens libcudnn_graph.so.9, which is libz.so.1 by another name (/usr/lib/l",
        {
            f"{NV}/cudnn/lib/libcudnn_graph.so.9": None,
            "usr/lib/libz.so.1.2": linked(soname="libz.so.1"),
        },
        links={f"{NV}/cudnn/lib/libcudnn_graph.so.9": "/usr/lib/libz.so.1.2"},
    ),
    Broken(
        "numpy for arm64",
        "installed",
        "is for cp311-cp311-manylinux_2_28_aarch64",
        shapes.dist("numpy", "2.3.0", {}, tag="cp311-cp311-manylinux_2_28_aarch64"),
    ),
    Broken(
        "torch for another Python",
        "installed",
        "is for cp312-cp312",
        {f"{SITE}/torch-2.9.99.dist-info/WHEEL": b"Tag: cp312-cp312-manylinux_2_28_x86_64\n"},
    ),
    Broken(
        "the build for the CPU",
        "loader",
        "PyTorch was built without CUDA",
        {
            f"{SITE}/torch/lib/libtorch_cuda.so": None,
            f"{SITE}/torch/lib/libtorch_python.so": linked("libc.so.6"),
        },
    ),
    Broken("no C compiler", "installed", "Triton compiles", {"usr/bin/gcc": None}),
    Broken(
        "a second copy first",
        "loader",
        "and not that of nvidia-cudnn-cu12",
        {
            **{f"usr/local/cuda/lib64/{name}": linked(soname=name) for name in shapes.CUDNN_FILES},
            f"{SITE}/torch/lib/libtorch_cuda.so": linked(
                "libcudnn.so.9",
                soname="libtorch_cuda.so",
                defined=("at_sum",),
                runpath=shapes.beside("..", ".."),
            ),
        },
        {"Env": [f"LD_LIBRARY_PATH=/usr/local/cuda/lib64:{shapes.NVIDIA}"]},
    ),
    text("torch.py", "imported for torch", "app/torch.py", ""),
    text("a second torch", "/src/torch is imported", "src/torch/__init__.py", "", config=ON_PATH),
    env("reads pairs NAME:VALUE", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb=128"),
    env("does not take expandable", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:true"),
    env("is no name that PyTorch", "PYTORCH_CUDA_ALLOC_CONF=max_split_size:64"),
    env("takes PyTorch's cache away", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
    env("leaves out 7.0", "TORCH_CUDA_ARCH_LIST=8.0;9.0"),
    env("TRITON_PTXAS_PATH", "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"),
    env("the same process of one job", "MASTER_ADDR=10.0.0.2", "RANK=1", "WORLD_SIZE=2"),
    start(
        "torchrun's file",
        "torchrun runs /app/fit.py",
        {"opt/venv/bin/torchrun": b"#!/bin/sh\n"},
        Cmd=["torchrun", "--nproc_per_node=1", "fit.py"],
    ),
]
OPENED = (
    ("cublas", "libcublas.so.12"),
    ("cufft", "libcufft.so.11"),
    ("cusolver", "libcusolver.so.11"),
    ("cusparse", "libcusparse.so.12"),
    ("cuda_runtime", "libcudart.so.12"),
    ("cudnn", "libcudnn.so.9"),
    ("nccl", "libnccl.so.2"),
    ("cuda_cupti", "libcupti.so.12"),
)
"""The libraries that TensorFlow and JAX both open, below their folders."""


def opened(*own: tuple[str, str]) -> list[Broken]:
    """An image without one of OPENED, or of these, each."""
    return [gone(f"opens {name}", f"{NV}/{folder}/lib/{name}") for folder, name in (*OPENED, *own)]


OF_TENSORFLOW: list[Broken] = [
    *opened(("cublas", "libcublasLt.so.12"), ("nvjitlink", "libnvJitLink.so.12")),
    Broken(
        "a search path without cuSOLVER",
        "loader",
        "where libtensorflow_framework does not look",
        {
            f"{SITE}/tensorflow/{shapes.FRAMEWORK}": linked(
                soname=shapes.FRAMEWORK,
                runpath=shapes.beside(
                    "..", folders=tuple(each for each in shapes.FOLDERS if each != "cusolver")
                ),
            )
        },
    ),
    Broken(
        "an older protobuf",
        "installed",
        "requires protobuf>=6.31 (3.20.3)",
        {f"{SITE}/protobuf-6.33.0.dist-info/METADATA": b"Name: protobuf\nVersion: 3.20.3\n"},
    ),
    Broken(
        "an older Keras",
        "installed",
        "requires keras>=3.12 (2.15.0)",
        {f"{SITE}/keras-3.12.0.dist-info/METADATA": b"Name: keras\nVersion: 2.15.0\n"},
    ),
    Broken(
        "an older NumPy",
        "installed",
        "requires numpy>=1.26 (1.24.4)",
        {f"{SITE}/numpy-2.3.0.dist-info/METADATA": b"Name: numpy\nVersion: 1.24.4\n"},
    ),
    gone("needs libtensorflow_framework.so.2", f"{SITE}/tensorflow/{shapes.FRAMEWORK}"),
    text("tensorflow.py", "imported for tensorflow", "app/tensorflow.py", ""),
    text(
        "set_visible_devices",
        "train.py:1 hides",
        "app/train.py",
        "tf.config.set_visible_devices([], 'GPU')",
    ),
    env("is no mode of TensorFlow", "TF_GPU_THREAD_MODE=private"),
    env("is no allocator of TensorFlow", "TF_GPU_ALLOCATOR=cuda_malloc"),
    env("has no effect", "TF_FORCE_GPU_ALLOW_GROWTH=True"),
    env("tf_keras is not there", "TF_USE_LEGACY_KERAS=1"),
    env("which is not in the image", "KERAS_BACKEND=jax"),
    env("TF_CONFIG is set", 'TF_CONFIG={"cluster": {"worker": ["a:1"]}}'),
    env("swallows the line", "TF_CPP_MIN_LOG_LEVEL=3"),
]
OLD_PJRT = b"Name: jax-cuda12-pjrt\nVersion: 0.8.0\n"
OF_JAX: list[Broken] = [
    *opened(("cudnn", "libcudnn_graph.so.9")),
    gone("JAX has no plugin for a GPU", f"{SITE}/{shapes.PLUGIN}"),
    gone(
        "xla_cuda_plugin.so: installed by jax-cuda12-pjrt",
        f"{SITE}/{shapes.PLUGIN}",
        check="installed",
    ),
    Broken(
        "an older jaxlib",
        "installed",
        "requires jaxlib<=0.9.9,>=0.9.9 (0.8.0)",
        {f"{SITE}/jaxlib-0.9.9.dist-info/METADATA": b"Name: jaxlib\nVersion: 0.8.0\n"},
    ),
    Broken(
        "another pjrt",
        "installed",
        "requires jax-cuda12-pjrt==0.9.9 (0.8.0)",
        {f"{SITE}/jax_cuda12_pjrt-0.9.9.dist-info/METADATA": OLD_PJRT},
    ),
    Broken(
        "a jaxlib for another Python",
        "installed",
        "is for cp313-cp313",
        {f"{SITE}/jaxlib-0.9.9.dist-info/WHEEL": b"Tag: cp313-cp313-manylinux_2_28_x86_64\n"},
    ),
    text("jax.py", "imported for jax", "app/jax.py", ""),
    text(
        "JAX_PLATFORMS in the text",
        "train.py:1 hides",
        "app/train.py",
        'os.environ["JAX_PLATFORMS"] = "cpu"',
    ),
    text(
        "jax.config",
        "train.py:1 hides",
        "app/train.py",
        'jax.config.update("jax_platforms", "cpu")',
    ),
    env("keeps JAX from", "JAX_PLATFORMS=cpu"),
    env("look for a TPU", "JAX_PLATFORMS=tpu,cpu"),
    env("is no allocator of JAX", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_malloc"),
    env("is no share", "XLA_PYTHON_CLIENT_MEM_FRACTION=90%"),
    env("lets JAX compile nothing", "JAX_DISABLE_JIT=1"),
    env("is set in the image", "JAX_COORDINATOR_ADDRESS=10.0.0.2:1234"),
    env("is no flag", "XLA_FLAGS=--xla_gpu_autotune_level=1 xla_b=2"),
    env("knows --xla_gpu_autotune:", "XLA_FLAGS=--xla_gpu_autotune=2"),
]
OWN = {"torch": OF_TORCH, "tensorflow": OF_TENSORFLOW, "jax": OF_JAX}
ROWS = [(name, row) for name in OWN for row in (*EVERY, *OWN[name])]


@pytest.mark.parametrize(("framework", "row"), ROWS, ids=lambda each: getattr(each, "name", each))
def test_a_broken_image_is_refused_or_found_with_its_cause(framework: str, row: Broken) -> None:
    judged = shapes.judged(
        shapes.image(framework, row.changes, row.config, row.links, row.modes, row.architecture)
    )
    result = judged[row.check]
    messages = [defect.message for defect in (*result.problems, *result.findings)]
    assert any(row.says in message for message in messages), judged
    assert len(result.problems) <= 1, "one cause"


SCRIPT = b'#!/bin/bash -eu\n[ -t 0 ] && echo hello\nexec "$@"\n'
START = b"""#!/bin/bash
if [ -z "$NB_UID" ]; then
  exec "$@"
else
  exec sudo -u "${NB_USER}" "${cmd[@]}"
fi
"""
EDITABLE = b"import __editable___acme_finder; __editable___acme_finder.install()"
CONDA: Files = {
    "opt/conda/bin/python3.11": shapes.PYTHON,
    "opt/conda/bin/jupyter": b"#!/opt/conda/bin/python\n",
    "opt/conda/bin/conda": b"#!/opt/conda/bin/python\n",
}
CONDA_LINKS = {"opt/conda/bin/python": "python3.11", "opt/conda/bin/python3": "python3.11"}
CONDA_PATH = ["PATH=/opt/conda/bin:/usr/local/bin:/usr/bin:/bin"]
COMPAT: Files = {"usr/local/cuda/compat/lib.real/libcuda.so.1": linked(soname="libcuda.so.1")}
ACCOUNTS = b"root:x:0:0::/root:/bin/sh\njovyan:x:1000:100::/home:/bin/bash\nray:x:1001:100::/:\n"
Shape = tuple[Files, Mapping[str, Any], Mapping[str, str]]
GOOD: dict[str, Shape] = {
    "plain": ({}, {}, {}),
    "NGC": (
        {
            "opt/nvidia/nvidia_entrypoint.sh": SCRIPT,
            "usr/bin/jupyter": b"#!/usr/bin/python3\n",
            **COMPAT,
        },
        {
            "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
            "Cmd": [],
            "User": "",
            "WorkingDir": "/workspace",
            "Env": [
                "NVIDIA_REQUIRE_CUDA=cuda>=9.0",
                "TORCH_CUDA_ARCH_LIST=7.0 7.5 8.0 9.0+PTX",
                f"LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:{NVIDIA}",
                "NCCL_VERSION=2.27.3",
                "TF_ENABLE_ONEDNN_OPTS=1",
                "TENSORBOARD_PORT=6006",
            ],
        },
        {},
    ),
    "AWS's": (
        {"usr/local/bin/start_with_right_hostname.sh": b'#!/usr/bin/env bash\nbash -c "$*"\n'},
        {
            "Entrypoint": ["bash", "-m", "start_with_right_hostname.sh"],
            "Cmd": ["/bin/bash"],
            "WorkingDir": "/",
            "User": "",
            "Env": ["DLC_CONTAINER_TYPE=training", "KMP_BLOCKTIME=1"],
        },
        {},
    ),
    "Google's": (
        {
            "entrypoint.sh": SCRIPT,
            "run_jupyter.sh": b"#!/bin/bash\n. /env.sh\nexec jupyter lab $X\n",
            **CONDA,
        },
        {
            "Entrypoint": ["/entrypoint.sh"],
            "Cmd": ["/run_jupyter.sh"],
            "Env": CONDA_PATH,
            "User": "root",
        },
        CONDA_LINKS,
    ),
    "Jupyter's": (
        {
            "usr/local/bin/start.sh": START,
            "usr/local/bin/start-notebook.py": b"#!/usr/bin/env -S python -u\n",
            "etc/passwd": ACCOUNTS,
            **CONDA,
        },
        {
            "Entrypoint": ["tini", "-g", "--", "start.sh"],
            "Cmd": ["start-notebook.py"],
            "User": "jovyan",
            "Env": CONDA_PATH,
            "Healthcheck": {"Test": ["CMD-SHELL", "/healthcheck.py"]},
        },
        CONDA_LINKS,
    ),
    "conda's": (
        CONDA,
        {"Cmd": ["conda", "run", "--no-capture-output", "python", "x.py"], "Env": CONDA_PATH},
        CONDA_LINKS,
    ),
    "micromamba's": (
        {"usr/local/bin/_entrypoint.sh": SCRIPT},
        {
            "Entrypoint": ["/usr/local/bin/_entrypoint.sh"],
            "Cmd": ["python", "-c", "import sys"],
            "User": "app",
        },
        {},
    ),
    "vLLM's": (
        {
            f"{SITE}/vllm/entrypoints/openai/api_server.py": b"",
            "opt/venv/bin/vllm": b"#!/opt/venv/bin/python\n",
        },
        {
            "Entrypoint": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            "Cmd": [],
            "User": "",
            "Env": ["UV_HTTP_TIMEOUT=500", "NCCL_CUMEM_ENABLE=0"],
        },
        {},
    ),
    "vLLM's program": (
        {"opt/venv/bin/vllm": b"#!/opt/venv/bin/python\n"},
        {"Entrypoint": ["vllm", "serve"], "Cmd": []},
        {},
    ),
    "tensorflow/tensorflow": (
        {"etc/bash.bashrc": b"# CUDA_VISIBLE_DEVICES=\n", "etc/profile": b"export PATH\n"},
        {
            "Cmd": ["/bin/bash"],
            "User": "",
            "Env": [
                f"LD_LIBRARY_PATH={CUDA_PATH}:{NVIDIA}",
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
            ],
        },
        {},
    ),
    "pytorch/pytorch": (
        CONDA,
        {
            "Cmd": ["bash"],
            "User": "",
            "WorkingDir": "/workspace",
            "Env": [*CONDA_PATH, "PYTORCH_VERSION=2.9.0", "NVIDIA_VISIBLE_DEVICES=all"],
        },
        CONDA_LINKS,
    ),
    "a server's": (
        {"usr/src/entrypoint.sh": b"#!/bin/bash\n./run --port 80\n"},
        {"Entrypoint": ["./entrypoint.sh"], "Cmd": [], "WorkingDir": "/usr/src"},
        {},
    ),
    "cog's": (
        {f"{SITE}/cog/server/http.py": b"", "sbin/tini": b"x"},
        {
            "Entrypoint": ["/sbin/tini", "--"],
            "Cmd": ["python", "-m", "cog.server.http"],
            "WorkingDir": "/src",
            "User": "",
        },
        {},
    ),
    "Ray's": (
        {"etc/passwd": ACCOUNTS},
        {"Cmd": ["bash"], "User": "ray", "WorkingDir": "/home/ray"},
        {},
    ),
    "uv's": (
        {"app/src/acme/__main__.py": b"", f"{SITE}/acme.pth": b"/app/src\n"},
        {"Cmd": ["/opt/venv/bin/python", "-m", "acme"], "WorkingDir": "/app"},
        {},
    ),
    "a project's, editable": (
        {
            f"{SITE}/__editable___acme_finder.py": b"",
            f"{SITE}/__editable__.acme.pth": EDITABLE,
        },
        {"Cmd": ["python", "-m", "acme.train"]},
        {},
    ),
    "Poetry's": (
        {"opt/venv/bin/poetry": b"#!/opt/venv/bin/python\n"},
        {"Entrypoint": ["poetry", "run"], "Cmd": ["python", "x.py"]},
        {},
    ),
    "a shell's line": (
        {},
        {"Cmd": ["/bin/sh", "-c", "nvidia-smi || true; python train.py --lr $LR 2>&1 | tee log"]},
        {},
    ),
    "a volume's program": (
        {},
        {"Cmd": ["python", "/workspace/main.py"], "Volumes": {"/workspace": {}}},
        {},
    ),
    "torchrun's": (
        {"opt/venv/bin/torchrun": b"#!/opt/venv/bin/python\n"},
        {
            "Entrypoint": ["torchrun", "--standalone", "--nproc-per-node=gpu", "/app/train.py"],
            "Cmd": [],
        },
        {},
    ),
    "distroless": (
        {"bin/sh": None, "bin/bash": None, "usr/bin/env": None},
        {"Entrypoint": ["/usr/bin/python3"], "Cmd": ["/app/train.py"], "User": "65532"},
        {},
    ),
    "supervisor's": (
        {"usr/bin/supervisord": b"#!/usr/bin/python3\n"},
        {"Cmd": ["/usr/bin/supervisord", "-n", "-c", "/etc/supervisord.conf"], "User": ""},
        {},
    ),
}


@pytest.mark.parametrize("framework", OWN)
@pytest.mark.parametrize("name", GOOD)
def test_an_image_as_its_publishers_lay_it_out_is_not_refused(framework: str, name: str) -> None:
    changes, config, links = GOOD[name]
    refused = {
        result.name: [problem.message for problem in result.problems]
        for result in shapes.judged(shapes.image(framework, changes, config, links)).values()
        if result.problems
    }
    assert refused == {}
