"""`builder init`, `explain`, `lock`, `render`, `check`, `schema`: what a person sees of them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from builder import cli
from tests import ROOT, commands
from tests.conftest import Run
from tests.shown import shown


def test_explain_gives_each_version_its_reason(here: Path, builder: Run) -> None:
    assert shown(builder("explain", "v100")) == snapshot("""\
accelerator: V100
    AcceleratorType of the aiplatform v1 API; NVIDIA's matrix for the architecture's
.. compute capabilities
TensorFlow: 2.21.0
    device code read from the wheel of tensorflow 2.21.0
Python (TensorFlow 2.21.0 runs on 3.10, 3.11, 3.12, 3.13): 3.11
    metadata of tensorflow 2.21.0's wheels on PyPI
mixed precision computes in: float16
    tensorflow/docs, guide/mixed_precision; NVIDIA, Transformer Engine, support
.. matrix: BF16 from 8.0
V100's compute capability (Volta): 7.0
    AcceleratorType of the aiplatform v1 API; NVIDIA's matrix for the architecture's
.. compute capabilities
CUDA that knows Volta: 9.0 to 12
    NVIDIA, CUDA toolkit, driver and architecture matrix
.. (docs.nvidia.com/datacenter/tesla/drivers)
last driver branch that knows Volta: R580
    NVIDIA, CUDA toolkit, driver and architecture matrix
.. (docs.nvidia.com/datacenter/tesla/drivers)
CUDA that TensorFlow 2.21.0 was built for: 12.5
    metadata of tensorflow 2.21.0's wheels on PyPI
cuDNN that TensorFlow 2.21.0 was built for: 9.3
    metadata of tensorflow 2.21.0's wheels on PyPI
TensorFlow 2.21.0 carries sm_60, sm_70, sm_80, sm_89, sm_90, compute_90; on V100:
.. machine code
    device code read from the wheel of tensorflow 2.21.0
oldest driver for CUDA 12: 525
    NVIDIA, CUDA compatibility, minor version compatibility
.. (docs.nvidia.com/deploy/cuda-compatibility)
compute capabilities that cuDNN 9.10.2.21 has machine code for: 5.0, 6.0, 6.1, 7.0,
.. 8.0, 9.0, 10.0, 12.0
    device code read from the libraries in cuDNN's wheels 8.9.4.25, 8.9.7.29,
.. 9.3.0.75, 9.10.2.21, 9.11.0.98 and 9.28.0.42
device code that stays (prune: tensorflow), for compute capability: 7.0 and newer
.. minors of 7
    the default of image.yaml
nvidia-cublas-cu12: 12.9.1.4
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cuda-cupti-cu12: 12.9.79
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cuda-nvcc-cu12: 12.9.86
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cuda-nvrtc-cu12: 12.9.86
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cuda-runtime-cu12: 12.9.79
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cufft-cu12: 11.4.1.4
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-curand-cu12: 10.3.10.19
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cusolver-cu12: 11.7.5.82
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cusparse-cu12: 12.5.10.65
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-nvjitlink-cu12: 12.9.86
    of CUDA 12.9, as AWS ships it with TensorFlow 2.21: metadata of cuda-toolkit
.. 12.9.1 on PyPI: the libraries that NVIDIA released together as CUDA 12.9 Update 1
nvidia-cudnn-cu12: 9.10.2.21
    the newest with kernels for 7.0: device code read from the libraries in cuDNN's
.. wheels 8.9.4.25, 8.9.7.29, 9.3.0.75, 9.10.2.21, 9.11.0.98 and 9.28.0.42
nvidia-nccl-cu12: 2.30.7
    AWS ships it with TensorFlow 2.21: AWS deep learning containers (2026-07):
.. docker/tensorflow/2.21/Dockerfile.cuda and cuda/pyproject.toml,
.. docs/tensorflow/index.md; pull request 6418 after issue 6417, a Keras convolution
.. is in its GPU tests since (test/tensorflow/single_gpu)
oldest driver for the libraries (PTX 8.8): 575
    what the locked wheels carry: images/device-code.lock
""")


def test_explain_says_why_no_newer_release_works(here: Path, builder: Run) -> None:
    assert shown(builder("explain", "v100-torch")) == snapshot("""\
accelerator: V100
    AcceleratorType of the aiplatform v1 API; NVIDIA's matrix for the architecture's
.. compute capabilities
PyTorch: 2.10.0
    device code read from the wheel of torch 2.10.0
Python (PyTorch 2.10.0 runs on 3.10, 3.11, 3.12, 3.13, 3.14): 3.11
    metadata of torch 2.10.0's wheels on PyPI
mixed precision computes in: float16
    tensorflow/docs, guide/mixed_precision; NVIDIA, Transformer Engine, support
.. matrix: BF16 from 8.0
V100's compute capability: 7.0
    AcceleratorType of the aiplatform v1 API; NVIDIA's matrix for the architecture's
.. compute capabilities
CUDA that PyTorch 2.10.0 asks for: 12.8
    metadata of torch 2.10.0's wheels on PyPI
cuDNN that PyTorch 2.10.0 asks for: 9.10.2.21
    metadata of torch 2.10.0's wheels on PyPI
PyTorch 2.10.0 on V100: machine code
    device code read from the wheel of torch 2.10.0
oldest driver for CUDA 12: 525
    NVIDIA, CUDA compatibility, minor version compatibility
.. (docs.nvidia.com/deploy/cuda-compatibility)
newer for V100 than PyPI has: 2.14.1+cu126 with an index that has it, as
.. UV_INDEX=https://download.pytorch.org/whl/cu126  (not verified)
    pytorch/pytorch, RELEASE.md, release compatibility and CUDA support matrices
.. (pull requests 164471, 175253, 182849, 187075, 194367); no wheel was read
why not PyTorch 2.15.0: PyTorch 2.15.0 (CUDA 13.2, cuDNN 9.26.0.51) has no kernels
.. for V100 (7.0)
    what was read of its wheels: builder/facts/gpu-support.json
why not PyTorch 2.14.1: PyTorch 2.14.1 (CUDA 13.0, cuDNN 9.24.0.43) has no kernels
.. for V100 (7.0)
    what was read of its wheels: builder/facts/gpu-support.json
why not PyTorch 2.13.0: PyTorch 2.13.0 (CUDA 13.0, cuDNN 9.20.0.48) has no kernels
.. for V100 (7.0)
    what was read of its wheels: builder/facts/gpu-support.json
why not PyTorch 2.12.1: PyTorch 2.12.1 (CUDA 13.0, cuDNN 9.20.0.48) has no kernels
.. for V100 (7.0)
    what was read of its wheels: builder/facts/gpu-support.json
why not PyTorch 2.11.0: PyTorch 2.11.0 (CUDA 13.0, cuDNN 9.19.0.56) has no kernels
.. for V100 (7.0)
    what was read of its wheels: builder/facts/gpu-support.json
oldest driver for the libraries (PTX 8.7): 570
    what the locked wheels carry: images/device-code.lock
""")


def test_explain_asks_for_a_target_that_is_there(here: Path, builder: Run) -> None:
    assert shown(builder("explain", "v1000")) == snapshot("""\
| error: no target is called 'v1000': there is no images/v1000/image.yaml
| fix:   write v100; known: a100, b200-torch, cpu, cpu-jax, h100, h100-jax,
| .. h100-torch, l4, t4, t4-torch, tpu, tpu-jax, v100, v100-jax, v100-torch
exit code 2
""")


def test_what_cannot_work_is_refused_with_what_does(here: Path, builder: Run) -> None:
    (here / "images/v100/image.yaml").write_text("accelerator: V100\ntensorflow: '2.22'\n")
    assert shown(builder("explain", "v100")) == snapshot("""\
| error: images/v100/image.yaml:2: tensorflow: no TensorFlow 2.22 is known
| fix:   write tensorflow: 2.21.0
exit code 2
""")


def test_a_field_that_is_not_known_is_named_with_its_line(here: Path, builder: Run) -> None:
    (here / "images/v100/image.yaml").write_text("accelerator: V100\ntensorflw: '2.21'\n")
    assert shown(builder("render")) == snapshot("""\
| error: images/v100/image.yaml:2: tensorflw: unknown key
| fix:   did you mean tensorflow?
exit code 2
""")


def test_lock_check_names_what_is_stale(here: Path, builder: Run) -> None:
    assert shown(builder("lock", "--check")) == snapshot("")
    path = here / "images/v100/image.yaml"
    path.write_text(path.read_text() + "apt: [git]\n")
    assert shown(builder("lock", "--check")) == snapshot("""\
| images/v100/image.lock: image.yaml's apt is ["git"], locked is []
| error: stale locks: 1
| fix:   run builder lock v100
exit code 4
""")
    assert shown(builder("build", "v100")) == snapshot("""\
| error: images/v100/image.lock: image.yaml's apt is ["git"], locked is []
| fix:   run builder lock v100
exit code 4
""")


def test_render_writes_what_image_yaml_and_the_lock_decide(here: Path, builder: Run) -> None:
    (here / "images/v100/Dockerfile").write_text("FROM scratch\n")
    assert shown(builder("render", "--check")) == snapshot("""\
| error: images/v100/Dockerfile: not what render writes
| fix:   builder render, then git diff shows what changed
exit code 4
""")
    assert shown(builder("render")) == snapshot("| wrote images/v100/Dockerfile\n")
    assert shown(builder("render", "--check")) == snapshot("")


def test_a_check_that_held_is_not_carried_out_and_sees_the_next_change(
    here: Path, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = [p for p in sys.path if "-packages" in p or not p.startswith(str(ROOT))]
    monkeypatch.setattr(sys, "path", steady)  # other tests write into this tree meanwhile
    assert builder("render", "--check") == (0, "", "")
    with monkeypatch.context() as patched:
        patched.setattr(cli, "_check", None)
        assert builder("render", "--check") == (0, "", "")
    (here / "images/t4/Dockerfile").unlink()
    assert builder("render", "--check")[0] == 4


@pytest.mark.slow
def test_a_change_of_each_kind_of_file_is_found_after_a_check_that_held(tmp_path: Path) -> None:
    """Each in a process of its own, in a copy of the factory's source."""
    names = ["builder", "trainer", "images", "examples", "templates", "requirements"]
    for name in names:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("builder.toml", "builder.Dockerfile", "cloudbuild.yaml"):
        shutil.copy(ROOT / name, tmp_path)

    def check() -> int:
        more = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
        return commands.builder("render", "--check", root=tmp_path, **more).returncode

    assert check() == 0
    for path, was, now in (
        (tmp_path / "images/v100/image.yaml", "V100", "T4"),
        (tmp_path / "images/v100/tensorflow.lock", "sha256:", "sha256:0"),
        (tmp_path / "images/os-bookworm.lock", "sha256:", "sha512:"),
        (tmp_path / "images/device-code.lock", '"schema": 2', '"schema": 1'),
        (tmp_path / "images/t4/Dockerfile", "FROM", "from"),
        (tmp_path / "cloudbuild.yaml", "steps:", "Steps:"),
        (tmp_path / "templates/Dockerfile.j2", "LABEL", "label"),
        (tmp_path / "builder.toml", "#", "registry = 1 #"),
        (tmp_path / "requirements/build.txt", "==", "== "),
        (tmp_path / "trainer/requirements.txt", "psutil", "-e psutil"),
        (tmp_path / "builder/facts/accelerators.yaml", "T4", "T5"),
        (tmp_path / "builder/devicecode/pruning/rule.py", "Level 0", "Level 00"),
        (tmp_path / "builder/cloudbuild/rendered.py", '"E2_HIGHCPU_8"', '"E2_HIGHCPU_32"'),
    ):
        text = path.read_text()
        assert was in text, path
        path.write_text(text.replace(was, now))
        assert check() in (2, 4), path
        path.write_text(text)
        assert check() == 0, path


def test_check_says_what_does_not_agree(here: Path, builder: Run) -> None:
    assert shown(builder("check")) == snapshot(
        "| 15 targets: the tables agree, and the wheels carry what the tables say\n"
    )
    (here / "images/schema.json").write_text("{}\n")
    (here / "images/t4/Dockerfile").unlink()
    assert shown(builder("check")) == snapshot("""\
images/schema.json: not today's schema; write it with builder schema
| error: not everything agrees
| fix:   see the lines above
exit code 4
""")


@pytest.mark.parametrize("command", [["check"], ["render", "--check"], ["list"]])
def test_a_broken_builder_toml_is_told_whatever_is_asked(
    here: Path, builder: Run, command: list[str]
) -> None:
    (here / "builder.toml").write_text("registry = [\n")
    assert "builder.toml:1: not TOML" in shown(builder(*command))


def test_schema(here: Path, builder: Run) -> None:
    assert shown(builder("schema")) == snapshot("| wrote images/schema.json\n")


def test_init_in_an_empty_repository(
    tmp_path: Path, builder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits/train.py").write_text("import torch\n")
    (tmp_path / "requirements.txt").write_text("torch\n")
    monkeypatch.chdir(tmp_path)
    assert shown(builder("init", "--target", "v100-torch")) == snapshot("""\
wrote        builder.toml
wrote        images/v100-torch/image.yaml
wrote        .gitignore
took         requirements.txt:1: torch -> torch: 2.10.0, python: 3.11 (PyTorch
.. 2.11.0 (CUDA 13.0, cuDNN 9.19.0.56) has no kernels for V100 (7.0))
took         digits: the program train in digits/
| now: builder image v100-torch
""")
    assert shown(builder("init", "--target", "v100-torch")) == snapshot("""\
nothing to write: the files are there (--force writes them anew)
| now: builder image v100-torch
""")
