"""The check `environment`: variables that hide a GPU, cripple it, swallow words, or hold on one
machine only."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from builder.audit.audited import gpu_named
from builder.config import image_yaml
from builder.facts.accelerators import Kind
from builder.image import dockerfile
from builder.prove.checks import environment, machine
from builder.prove.image import Image
from builder.prove.judge import Run
from tests import ROOT
from tests.devicecode.writer import container, library, linked, sass
from tests.prove.reading import SITE, Files, layer, plain, read

NVIDIA = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"


def messages(variables: dict[str, str], kind: Kind = "gpu") -> list[str]:
    defects = list(environment.judge({"LD_LIBRARY_PATH": NVIDIA, **variables}, kind))
    assert all(defect.fix for defect in defects)
    return [defect.message for defect in defects]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= in the image hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0 in the image leaves out every ot"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "NVIDIA_VISIBLE_DEVICES=void in the image: the cont"),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, "NVIDIA_VISIBLE_DEVICES=0,1 in the image: the contai"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, "NVIDIA_DRIVER_CAPABILITIES=utility has no c"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "TF_FORCE_GPU_ALLOW_GROWTH=True has no effect"),
        ({"TF_GPU_ALLOW_GROWTH": "true"}, "nothing reads TF_GPU_ALLOW_GROWTH: it looks like TF_F"),
        ({"CUDA_FORCE_PTX_JIT": "1"}, "CUDA_FORCE_PTX_JIT in the image passes over all machine"),
        ({"TF_GPU_ALLOCATOR": "cudamalloc"}, "TF_GPU_ALLOCATOR=cudamalloc is no allocator of"),
        ({"NCCL_NET": "FasTrak"}, "NCCL_NET=FasTrak asks for a plugin of one machine's network"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}, "NVIDIA_REQUIRE_CUDA=cuda>=99.0 asks for what no"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING in the image makes every kernel w"),
        ({"PYTHONOPTIMIZE": "2"}, "PYTHONOPTIMIZE=2 in the image takes docstrings out of every m"),
        ({"TF_NUM_INTRAOP_THREADS": "1"}, "TF_NUM_INTRAOP_THREADS=1 in the image leaves TensorF"),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}, "LD_LIBRARY_PATH has no /usr/local/nvidia/"),
        ({"NCCL_SOCKET_IFNAME": "eno1"}, "NCCL_SOCKET_IFNAME=eno1 in the image names a part of on"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "NCCL_SOCKET_IFNAME=^docker0 does not leave out lo"),
        ({"NCCL_IB_HCA": "mlx5_0"}, "NCCL_IB_HCA=mlx5_0 in the image names a part of one machine"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "HTTPS_PROXY is set in the image: elsewhere there"),
        (
            {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"},
            "GOOGLE_APPLICATION_CREDENTIALS=/key.json is set in the image",
        ),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "TF_CPP_MIN_LOG_LEVEL=3 swallows the line by which Ten"),
        ({"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS=cpu in the image keeps JAX from the acceler"),
        ({"JAX_PLATFORMS": "tpu,cpu"}, "JAX_PLATFORMS=tpu,cpu in the image makes JAX look for a T"),
        ({"TF_GPU_THREAD_MODE": "private"}, "TF_GPU_THREAD_MODE=private is no mode of TensorFlow"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda"}, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda is no alloc"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "XLA_PYTHON_CLIENT_ALLOCATOR=platform in"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "90%"}, "XLA_PYTHON_CLIENT_MEM_FRACTION=90% is no sh"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "90"}, "XLA_PYTHON_CLIENT_MEM_FRACTION=90 is no sha"),
        ({"JAX_DISABLE_JIT": "True"}, "JAX_DISABLE_JIT=True in the image lets JAX compile nothi"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb=128"}, "PYTORCH_CUDA_ALLOC_CONF=max_spl"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1;b:2:3"}, "PYTORCH_CUDA_ALLOC_CONF=a:1;b:2:3: PyTorch"),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:true"},
            "PYTORCH_CUDA_ALLOC_CONF: PyTorch d",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:16"},
            "PYTORCH_CUDA_ALLOC_CONF: PyTorch doe",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size:128"},
            "PYTORCH_CUDA_ALLOC_CONF: max_split_size is",
        ),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, "PYTORCH_NO_CUDA_MEMORY_CACHING in the image "),
        ({"TF_CONFIG": '{"cluster": {}}'}, "TF_CONFIG is set in the image: each container waits"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_COORDINATOR_ADDRESS is set in the image"),
        ({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1 in the image keeps NCCL from the fastest"),
        ({"PIP_EXTRA_INDEX_URL": "https://i/whl/cpu"}, "PIP_EXTRA_INDEX_URL=https://i/whl/cpu i"),
        (
            {"XLA_FLAGS": "--xla_a=1 xla_b=2 --xla_c=3"},
            "XLA_FLAGS: xla_b=2 is no flag, so XLA reads nothing from there on",
        ),
        (
            {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_auto_jit=0"},
            "TF_XLA_FLAGS contradicts itself: --tf_xla_auto_jit=2 and --tf_xla_auto_jit=0",
        ),
    ],
)
def test_a_variable_that_takes_the_gpu_away_is_named(
    variables: dict[str, str], message: str
) -> None:
    (line,) = messages(variables)
    assert line.startswith(message)


@pytest.mark.parametrize("target", image_yaml.targets(ROOT))
def test_no_alarm_on_our_images(target: str) -> None:
    """Each image as it is planned, with what it expects."""
    rendered = dockerfile.load(ROOT, target)
    assert rendered.base
    config = rendered.config.on(rendered.base.config)
    variables = dict(pair.split("=", 1) for pair in config["Env"])
    assert messages(variables, rendered.stack.accelerator.kind) == []
    assert list(machine.judge(config)) == []


FOREIGN = {
    "nvidia/cuda 12": {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.5 brand=tesla,driver>=470,driver<471",
        "NCCL_VERSION": "2.21.5-1",
        "NV_CUDA_CUDART_VERSION": "12.5.39-1",
        "CUDA_VERSION": "12.5.0",
        "NVIDIA_PRODUCT_NAME": "CUDA",
        "LIBRARY_PATH": "/usr/local/cuda/lib64/stubs",
    },
    "tensorflow/tensorflow:latest-gpu": {
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video",
        "LD_LIBRARY_PATH": f"/usr/local/cuda/extras/CUPTI/lib64:/usr/local/cuda/lib64:{NVIDIA}",
        "LANG": "C.UTF-8",
    },
    "AWS's TensorFlow 2.16 for training": {
        "LD_LIBRARY_PATH": f"/usr/local/lib:/opt/amazon/openmpi/lib/:{NVIDIA}:/usr/local/lib",
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "RDMAV_FORK_SAFE": "1",
        "TF_AUTOTUNE_THRESHOLD": "2",
        "TF_VERSION": "2.16",
    },
    "what is usual with PyTorch and JAX": {
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native,expandable_segments:True,max_split_size_mb:128,"
        "roundup_power2_divisions:[256:1,512:2,>:4],garbage_collection_threshold:0.8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True, pinned_use_cuda_host_register:True",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".92",
        "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_UNIFIED_MEMORY": "1",
        "JAX_PLATFORMS": "cuda,cpu",
        "JAX_DISABLE_JIT": "0",
        "TF_CONFIG": "",
        "PIP_EXTRA_INDEX_URL": "https://index/whl/cu128",
    },
    "AlphaFold's": {"TF_FORCE_UNIFIED_MEMORY": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "4.0"},
    "what is usual": {
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GPU_THREAD_MODE": "gpu_private",
        "TF_GPU_THREAD_COUNT": "2",
        "OMP_NUM_THREADS": "1",  # on purpose in many images; TensorFlow has threads of its own
        "TF_NUM_INTRAOP_THREADS": "0",
        "PYTHONOPTIMIZE": "1",
        "ROCR_VISIBLE_DEVICES": "0",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir='/usr/local/my cuda' --xla_dump_to=/tmp/x",
        "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "NCCL_DEBUG": "WARN",
        "no_proxy": "localhost",
        "HTTP_PROXY": "",
    },
}
"""What three published bases set, by their Dockerfiles: NVIDIA's, TensorFlow's
(tensorflow/tools/dockerfiles), AWS's (aws/deep-learning-containers, cu123/Dockerfile.gpu)."""


@pytest.mark.parametrize("base", FOREIGN)
def test_no_alarm_on_published_bases(base: str) -> None:
    assert messages(FOREIGN[base]) == []


def test_an_image_for_the_cpu_may_hide_gpus_but_may_not_misspell() -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert messages(variables, "cpu") == []
    assert messages({"LD_LIBRARY_PATH": "", "NCCL_SOCKET_IFNAME": "eth0"}, "cpu") == []
    assert len(messages(variables, "tpu")) == 2
    assert len(messages({"TF_XLA_FLAG": "--tf_xla_auto_jit=2"}, "cpu")) == 1
    assert messages({"PYTHONUNBUFFERED": "1"}, "cpu") == []
    (line,) = messages({"PYTHONUNBUFFERED": ""}, "cpu")
    assert line.startswith("PYTHONUNBUFFERED is empty in the image: lines reach the log late")


def named(variables: dict[str, str], files: Files | None = None) -> list[str]:
    """What is said of an image for a GPU that has these files."""
    pairs = [f"{name}={value}" for name, value in {"LD_LIBRARY_PATH": NVIDIA, **variables}.items()]
    image = read(layer(files or {}), Env=pairs)
    defects, _ = environment.run(Image(image.content, gpu_named("V100")))
    return [defect.message for defect in defects]


@pytest.mark.parametrize(
    ("variables", "path", "message"),
    [
        (
            {"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/cuda"},
            "/opt/cuda/bin/ptxas",
            "XLA_FLAGS names the CUDA folder /opt/cuda, which is not in the image",
        ),
        (
            {"TF_XLA_FLAGS": "tf_xla_auto_jit=2"},
            "/tf_xla_auto_jit=2",
            "TF_XLA_FLAGS=tf_xla_auto_jit=2 is read as the name of a file with flags, and there is "
            "none: TensorFlow ends when it begins to compile",
        ),
        (
            {"NCCL_TOPO_FILE": "/etc/topo.xml"},
            "/etc/topo.xml",
            "NCCL_TOPO_FILE=/etc/topo.xml names a file that is not in the image: NCCL ends when it "
            "starts",
        ),
        (
            {"LD_PRELOAD": "/usr/local/nvidia/lib64/libcuda.so.1 libtcmalloc.so.4"},
            "/usr/lib/libtcmalloc.so.4",
            "LD_PRELOAD names libtcmalloc.so.4, which is not in the image: the loader leaves it "
            "out and complains in every process",
        ),
    ],
)
def test_what_the_variables_name_has_to_be_in_the_image(
    variables: dict[str, str], path: str, message: str
) -> None:
    assert named(variables) == [message]
    assert named(variables, plain(path)) == []


HOOK = "/app/.start"
OURS = {"TRAINING_ACCELERATOR": "V100,capability=7.0,cuda=12,driver=525", "PYTHONPATH": HOOK}


@pytest.mark.parametrize(
    ("changed", "entrypoint", "message"),
    [
        ({}, "python -m trainer.task", ""),
        ({}, "sh -c;exec python -u train.py", ""),
        ({"TRAINING_ACCELERATOR": "none"}, "python", "TRAINING_ACCELERATOR=none in the image"),
        ({"PYTHONPATH": "/opt"}, "python", "the start hook does not run (PYTHONPATH=/opt)"),
        ({}, "python -I train.py", "the start hook does not run (python -I)"),
        ({}, "sh -c;python -uS train.py", "the start hook does not run (python -uS)"),
    ],
)
def test_an_image_that_turns_its_guard_off_is_named(
    changed: Any, entrypoint: str, message: str
) -> None:
    variables = [f"{name}={value}" for name, value in {**OURS, **changed}.items()]
    config = {"Env": variables, "Entrypoint": entrypoint.split(";")}
    defects = [defect.message for defect in environment.without_the_guard(config, OURS)]
    assert [text[: len(message)] for text in defects] == ([message] if message else [])


ABORTS = "import os; print('F0000 Unknown flags in XLA_FLAGS: --xla_x=1', flush=True); os.abort()"


def asked(program: str, **variables: str) -> list[str]:
    """What is said of an image whose framework reads its flags in this program. Python is run here,
    in place of the image's."""
    image = read(target="cpu", Env=[f"{name}={value}" for name, value in variables.items()])

    def start(arguments: list[str], _: float, entrypoint: list[str]) -> Run:
        command = [sys.executable, *arguments[:-1], program or arguments[-1]]
        done = subprocess.run(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return Run(done.returncode, 1.0, tail=tuple(done.stdout.decode().splitlines()))

    session: Any = SimpleNamespace(read=image, subject=image.subject, start=start, python="python3")
    return [defect.message for defect in environment.CHECK.ask(session).problems]


def test_a_flag_that_the_framework_does_not_know_is_named() -> None:
    flags = {"XLA_FLAGS": "--xla_x=1"}
    assert asked(ABORTS, **flags) == [
        "XLA_FLAGS: this TensorFlow does not know --xla_x=1: it ends when it begins to compile"
    ]
    for program in ("print(1)", "import no_tensorflow"):
        assert asked(program, **flags) == []
    assert asked(ABORTS) == [], "nothing is run for nothing"


@pytest.mark.tensorflow
@pytest.mark.parametrize("variable", ["XLA_FLAGS", "TF_XLA_FLAGS"])
def test_tensorflow_itself_ends_on_such_a_flag(variable: str) -> None:
    (message,) = asked("", **{variable: "--xla_gpu_autotune=1"})
    assert message.startswith(f"{variable}: this TensorFlow does not know --xla_gpu_aut")


KERAS = plain("/usr/lib/python3/dist-packages/keras-3.11.0.dist-info/METADATA")
JAX = {f"{SITE}/jaxlib/_jax.so": (linked(), 0o755, 0)}
XLA = {f"{SITE}/jaxlib/_jax.so": (linked() + b"\0xla_gpu_autotune_level\0", 0o755, 0)}
TENSORFLOW = {
    f"{SITE}/tensorflow/python/_pywrap_tensorflow_internal.so": (linked(), 0o755, 0),
    f"{SITE}/tf_keras-2.21.0.dist-info/METADATA": (b"", 0o644, 0),
}
CUBLAS = {"usr/lib/libcublas.so.12": (library(container(sass(70), sass(90))), 0o755, 0)}
RANKS = {"MASTER_ADDR": "10.0.0.2", "RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "files", "message"),
    [
        ({"KERAS_BACKEND": "torch"}, {**KERAS, **JAX}, "KERAS_BACKEND=torch, which is not in the"),
        ({"KERAS_BACKEND": "tf"}, {**KERAS, **TENSORFLOW}, "KERAS_BACKEND=tf, which is not in the"),
        ({"KERAS_BACKEND": "jax"}, {**KERAS, **JAX}, ""),
        ({"KERAS_BACKEND": "torch"}, JAX, ""),
        ({"TF_USE_LEGACY_KERAS": "1"}, TENSORFLOW, ""),
        ({"TF_USE_LEGACY_KERAS": "1"}, JAX, ""),
        (
            {"TF_USE_LEGACY_KERAS": "True"},
            dict([*TENSORFLOW.items()][:1]),
            "TF_USE_LEGACY_KERAS as",
        ),
        ({"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}, {}, "TRITON_PTXAS_PATH=/usr/local/cu"),
        (
            {"NCCL_NET_PLUGIN": "gcp"},
            {},
            "NCCL_NET_PLUGIN=gcp names a plugin that is not in the im",
        ),
        ({"NCCL_NET_PLUGIN": "gcp"}, plain("/opt/lib/libnccl-net-gcp.so"), ""),
        ({"NCCL_NET_PLUGIN": "none"}, {}, ""),
        ({"NCCL_TUNER_PLUGIN": "/opt/lib/tuner.so"}, {}, "NCCL_TUNER_PLUGIN=/opt/lib/tuner.so na"),
        (RANKS, {}, "MASTER_ADDR=10.0.0.2 and RANK=1 are set in the image"),
        ({**RANKS, "RANK": "0", "WORLD_SIZE": "1"}, {}, ""),
        ({"TORCH_CUDA_ARCH_LIST": "8.0;9.0"}, {}, "TORCH_CUDA_ARCH_LIST=8.0;9.0 leaves out 7.0"),
        ({"TORCH_CUDA_ARCH_LIST": "5.2 6.0+PTX 8.0"}, {}, ""),
        ({"TORCH_CUDA_ARCH_LIST": "7.0 8.0"}, {}, ""),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.9"}, CUBLAS, "NVIDIA_REQUIRE_CUDA=cuda>=12.9 keeps ou"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.9 brand=tesla,driver>=525"}, CUBLAS, ""),
        ({"NVIDIA_REQUIRE_CUDA": "driver>=525"}, CUBLAS, ""),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.9"}, {}, ""),
        (
            {"XLA_FLAGS": "--xla_gpu_autotune_level=2 --xla_gpu_autotune=1"},
            XLA,
            "XLA_FLAGS: no library of the image knows --xla_gpu_autotune: XLA",
        ),
        ({"XLA_FLAGS": "--xla_gpu_autotune_level=2"}, XLA, ""),
        ({"XLA_FLAGS": "--xla_gpu_autotune=1"}, JAX, ""),
    ],
)
def test_a_variable_is_compared_with_what_is_in_the_image(
    variables: dict[str, str], files: Files, message: str
) -> None:
    pairs = [f"{name}={value}" for name, value in variables.items()]
    judged = read(layer(files), Env=[f"LD_LIBRARY_PATH={NVIDIA}", *pairs])
    defects, _ = environment.run(Image(judged.content, gpu_named("v100")))
    assert [each.message[: len(message)] for each in defects] == ([message] if message else [])
