"""The check `environment`: variables of an image that hide a GPU, cripple it or swallow words."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config import lockfile
from builder.facts.accelerators import Kind
from builder.image.plan import image_config
from builder.prove.checks import environment
from builder.prove.probes import environment as inside
from builder.prove.run import Run

ROOT = Path(__file__).parents[2]


def messages(variables: dict[str, str], kind: Kind = "gpu") -> list[str]:
    defects = list(environment.judge(variables, kind))
    assert all(defect.fix for defect in defects)
    return [defect.message for defect in defects]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= in the image hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES=-1 in the image hides every GPU"),
        ({"CUDA_VISIBLE_DEVICES": "all"}, "CUDA_VISIBLE_DEVICES=all in the image hides every"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES=0 in the image leaves out every ot"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "NVIDIA_VISIBLE_DEVICES=void in the image: the cont"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, "NVIDIA_VISIBLE_DEVICES=none in the image: the cont"),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, "NVIDIA_VISIBLE_DEVICES= in the image: the container is"),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, "NVIDIA_VISIBLE_DEVICES=0,1 in the image: the contai"),
        ({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, "NVIDIA_DRIVER_CAPABILITIES=utility has no c"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "True"}, "TF_FORCE_GPU_ALLOW_GROWTH=True has no effect"),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "1"}, "TF_FORCE_GPU_ALLOW_GROWTH=1 has no effect"),
        ({"TF_GPU_ALLOW_GROWTH": "true"}, "nothing reads TF_GPU_ALLOW_GROWTH: it looks like TF_F"),
        ({"TF_FORCE_ALLOW_GPU_GROWTH": "true"}, "nothing reads TF_FORCE_ALLOW_GPU_GROWTH: it loo"),
        ({"CUDA_VISIBLE_DEVICE": "0"}, "nothing reads CUDA_VISIBLE_DEVICE: it looks like CUDA_V"),
        ({"CUDA_FORCE_PTX_JIT": "1"}, "CUDA_FORCE_PTX_JIT in the image passes over all machine"),
        ({"TF_GPU_ALLOCATOR": "cudamalloc"}, "TF_GPU_ALLOCATOR=cudamalloc is no allocator of"),
        ({"NCCL_NET": "FasTrak"}, "NCCL_NET=FasTrak asks for a plugin of one machine's network"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}, "NVIDIA_REQUIRE_CUDA=cuda>=99.0 asks for what no"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING in the image makes every kernel w"),
        ({"PYTHONOPTIMIZE": "2"}, "PYTHONOPTIMIZE=2 in the image takes docstrings out of every m"),
        ({"TF_NUM_INTRAOP_THREADS": "1"}, "TF_NUM_INTRAOP_THREADS=1 in the image leaves TensorF"),
        ({"TF_NUM_INTEROP_THREADS": "1"}, "TF_NUM_INTEROP_THREADS=1 in the image leaves TensorF"),
        ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "TF_CPP_MIN_LOG_LEVEL=3 swallows the line by which Ten"),
        ({"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS=cpu in the image keeps JAX from the acceler"),
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


def test_our_own_bases_and_nvidias_are_let_through() -> None:
    lines = image_config(lockfile.read(ROOT, "v100"))["Env"]
    ours = dict(line.split("=", 1) for line in lines)
    assert ours["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    of_nvidia = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.5 brand=tesla,driver>=470",
        "NV_CUDA_CUDART_VERSION": "12.5.39-1",
        "CUDA_VERSION": "12.5.0",
        "NVIDIA_PRODUCT_NAME": "CUDA",
        "LIBRARY_PATH": "/usr/local/cuda/lib64/stubs",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,video",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GPU_THREAD_MODE": "gpu_private",
        "TF_GPU_THREAD_COUNT": "2",
        "OMP_NUM_THREADS": "1",  # on purpose in many images; TensorFlow has threads of its own
        "TF_NUM_INTRAOP_THREADS": "0",
        "PYTHONOPTIMIZE": "1",
        "ROCR_VISIBLE_DEVICES": "0",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir='/usr/local/my cuda' --xla_dump_to=/tmp/x",
    }
    assert messages(ours) == messages(of_nvidia) == []


def test_an_image_for_the_cpu_may_hide_gpus_but_may_not_misspell() -> None:
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert messages(variables, "cpu") == []
    assert len(messages(variables, "tpu")) == 2
    assert len(messages({"TF_XLA_FLAG": "--tf_xla_auto_jit=2"}, "cpu")) == 1
    assert messages({"PYTHONUNBUFFERED": "1"}, "cpu") == []
    (line,) = messages({"PYTHONUNBUFFERED": ""}, "cpu")
    assert line.startswith("PYTHONUNBUFFERED is empty in the image: lines reach the log late")


def checked(
    variables: dict[str, str], tmp_path: Path, stderr: tuple[str, ...] = ()
) -> tuple[list[str], list[dict[str, Any]]]:
    """The whole check, with the probe on this machine's files: messages, and the requests."""
    requests: list[dict[str, Any]] = []

    def probe(name: str, request: dict[str, Any]) -> Run:
        assert name == inside.__name__
        requests.append(request)
        return Run(0, 0.1, answer=inside.probe(request, "pass"), tail=stderr)

    session = SimpleNamespace(
        config={"Env": [f"{name}={value}" for name, value in variables.items()]},
        subject=SimpleNamespace(stack=SimpleNamespace(accelerator=SimpleNamespace(kind="gpu"))),
        probe=probe,
    )
    defects, _ = environment.run(session)  # type: ignore[arg-type]
    return [defect.message for defect in defects], requests


def test_what_the_variables_name_has_to_be_in_the_image(tmp_path: Path) -> None:
    gone = tmp_path / "cuda"
    flag = {"XLA_FLAGS": f"--xla_gpu_cuda_data_dir={gone}"}
    assert checked(flag, tmp_path)[0] == [
        f"XLA_FLAGS names the CUDA folder {gone}, which is not in the image"
    ]
    gone.mkdir()
    assert checked(flag, tmp_path)[0] == []
    (line,), _ = checked({"TF_XLA_FLAGS": "tf_xla_auto_jit=2"}, tmp_path)
    assert line.startswith("TF_XLA_FLAGS=tf_xla_auto_jit=2 is read as the name of a file")
    assert checked({"PATH": "/usr/bin"}, tmp_path) == ([], []), "no container for nothing"


def test_a_library_that_cannot_be_preloaded_is_named_unless_the_driver_brings_it(
    tmp_path: Path,
) -> None:
    lines = tuple(
        f"ERROR: ld.so: object '{name}' from LD_PRELOAD cannot be preloaded (cannot open shared "
        "object file): ignored."
        for name in ("libtcmalloc.so.4", "/usr/local/nvidia/lib64/libcuda.so.1")
    )
    (line,), _ = checked({"LD_PRELOAD": "libtcmalloc.so.4"}, tmp_path, lines)
    assert line.startswith("LD_PRELOAD names libtcmalloc.so.4, which cannot be loaded (cannot op")


HOOK = "/app/.start"
OURS = {"TRAINING_ACCELERATOR": "V100,capability=7.0,cuda=12,driver=525", "PYTHONPATH": HOOK}


@pytest.mark.parametrize(
    ("changed", "entrypoint", "message"),
    [
        ({}, ["python", "-m", "trainer.task"], ""),
        ({}, ["sh", "-c", "exec python -u train.py"], ""),
        ({"TRAINING_ACCELERATOR": "none"}, ["python"], "TRAINING_ACCELERATOR=none in the image"),
        ({"PYTHONPATH": "/opt"}, ["python"], "the start hook does not run (PYTHONPATH=/opt)"),
        ({}, ["python", "-I", "train.py"], "the start hook does not run (python -I)"),
        ({}, ["sh", "-c", "python -uS train.py"], "the start hook does not run (python -uS)"),
    ],
)
def test_an_image_that_turns_its_guard_off_is_named(
    changed: dict[str, str], entrypoint: list[str], message: str
) -> None:
    variables = {**OURS, **changed}
    config = {
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Entrypoint": entrypoint,
    }
    defects = [defect.message for defect in environment.without_the_guard(config, OURS)]
    assert [text[: len(message)] for text in defects] == ([message] if message else [])


ABORTS = "import os; print('F0000 Unknown flags in XLA_FLAGS: --xla_x=1', flush=True); os.abort()"


def test_a_flag_that_tensorflow_does_not_know_is_named(tmp_path: Path) -> None:
    (problem,) = inside.probe({"paths": [], "flags": ["XLA_FLAGS"]}, ABORTS)["problems"]
    assert problem["message"] == (
        "XLA_FLAGS: this TensorFlow does not know --xla_x=1: it ends when it begins to compile"
    )
    for program in ("print(1)", "import no_tensorflow"):
        assert inside.probe({"paths": [], "flags": ["XLA_FLAGS"]}, program)["problems"] == []
    (request,) = checked({"XLA_FLAGS": "--xla_dump_to=/tmp/x"}, tmp_path)[1]
    assert request["flags"] == ["XLA_FLAGS"]


@pytest.mark.tensorflow
@pytest.mark.parametrize("variable", ["XLA_FLAGS", "TF_XLA_FLAGS"])
def test_tensorflow_itself_ends_on_such_a_flag(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "--xla_gpu_autotune=1")
    (problem,) = inside.unknown(inside.COMPILE)
    assert problem["message"].startswith(f"{variable}: this TensorFlow does not know --xla_gpu_aut")


def test_files_that_variables_name_have_to_be_there() -> None:
    variables = {"NCCL_TOPO_FILE": "/etc/topo.xml", "CUDA_INJECTION64_PATH": "/opt/libx.so"}
    assert set(environment.paths(variables, "gpu")) == {"/etc/topo.xml", "/opt/libx.so"}
    assert environment.paths(variables, "cpu") == {}
