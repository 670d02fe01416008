"""Real images of PyTorch and JAX, each broken in one way: a check names the cause.

The good image of each target goes through the same checks. tests/prove/broken has TensorFlow's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.config import image_yaml, lockfile
from builder.core.project import tag_of
from builder.engine import BuildRequest, Engine, buildx
from builder.image.plan import site_packages
from builder.prove import suites
from builder.prove.suite import Suite
from tests import ROOT, commands
from tests.prove.proving import proven

from .standins import number, shared_object

TORCH, JAX, TPU = "v100-torch", "v100-jax", "tpu-jax"
SCORE: dict[str, list[bool]] = {TORCH: [], JAX: [], TPU: []}

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.long]


@dataclass(frozen=True)
class Breakage:
    """One way to break a good image.

    lines: of Dockerfile; {site} is the folder of its packages. says: what a message of `check`
    holds. judged_as: the target that the image is asked about; "" for its own. cudnn: the version
    that libcudnn.so.9 and libother.so of the build context name; 0 where there are none.
    """

    name: str
    lines: str
    says: str
    check: str = "loader"
    judged_as: str = ""
    cudnn: int = 0


def _edit(file: str, words: str) -> str:
    """Change a source, and remove its bytecode: an image's is never compared with its source."""
    folder, _, name = file.rpartition("/")
    stem = name.removesuffix(".py")
    return f"RUN sed -i '{words}' {{site}}/{file} && rm {{site}}/{folder}/__pycache__/{stem}.*"


def _without(name: str, path: str, says: str) -> Breakage:
    """Remove a file or a folder of the packages."""
    return Breakage(name, f"RUN rm -r {{site}}/{path}", says)


def _halves(library: str) -> tuple[Breakage, Breakage]:
    """Cut the framework's own library, and take away a part of cuDNN."""
    engines = "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9"
    return (
        Breakage("half a library", f"RUN truncate -s 1M {{site}}/{library}", "was ended by SIGBUS"),
        _without("half a cuDNN", engines, "cuDNN fails at the first"),
    )


CUDA, PLUGIN = "because of libtorch_cuda.so", "because of xla_cuda_plugin.so"
NVIDIA = "{site}/nvidia"
TABLE: Mapping[str, tuple[Breakage, ...]] = {
    TORCH: (
        _without("no cuBLAS", "nvidia/cublas/lib/libcublas.so.12", "import: libcublas.so.12"),
        _without("no NCCL", "nvidia/nccl/lib/libnccl.so.2", "import: libnccl.so.2"),
        _without("no cuSPARSELt", "nvidia/cusparselt/lib/*.so*", "import: libcusparseLt.so.0"),
        *_halves("torch/lib/libtorch_cuda.so"),
        Breakage(
            "a cuDNN without the GPU",
            "COPY libother.so /usr/lib\nENV LD_PRELOAD=/usr/lib/libother.so",
            "cuDNN 9.28.0, the lock says 9.10.2",
            cudnn=92800,
        ),
        Breakage(
            "a second cuDNN",
            f"RUN mkdir /opt/cudnn && cp {NVIDIA}/cudnn/lib/libcudnn_graph.so.9 /opt/cudnn\n"
            "ENV LD_LIBRARY_PATH=/opt/cudnn",
            "two copies of libcudnn_graph.so.9",
        ),
        _without(
            "half an NVRTC", "nvidia/cuda_nvrtc/lib/libnvrtc-builtins*", "does not compile a kernel"
        ),
        Breakage(
            "a PyTorch for the CPU",
            _edit("torch/version.py", "s/^cuda.*/cuda = None/"),
            "was built without CUDA",
        ),
        Breakage(
            "another release",
            _edit("torch/version.py", 's/^__version__.*/__version__ = "2.9.1"/'),
            "release 2.9.1",
        ),
        Breakage(
            "two torches",
            "RUN mkdir /app/torch && cp {site}/torch/__init__.py /app/torch",
            "two copies of PyTorch",
        ),
        _without("no PyTorch", "torch", "finds no package torch"),
        Breakage("no gcc", "RUN rm /usr/bin/gcc", "Triton cannot start kernels", "compiler"),
        Breakage("no g++", "RUN rm /usr/bin/g++", "InvalidCxxCompiler", "compiler"),
        Breakage(
            "no headers of Python's",
            "RUN rm -r /usr/include/python3.11",
            "Triton cannot start kernels",
            "compiler",
        ),
        Breakage("a cache in HOME", "ENV TRITON_CACHE_DIR=/x", "system: '/x'", "compiler"),
        Breakage("an image for a B200", "", "the lock says 13.2", judged_as="b200-torch"),
        Breakage("kernels without the GPU", "", CUDA, "device-code", "b200-torch"),
    ),
    JAX: (
        _without("no cuBLAS", "nvidia/cublas/lib/libcublas.so.12", "no libcublas"),
        _without("no cuDNN", "nvidia/cudnn/lib/libcudnn.so.9", "Unable to load cuDNN"),
        _without("no cuSOLVER", "nvidia/cusolver/lib/libcusolver.so.11", "no libcusolver"),
        _without("no NCCL", "nvidia/nccl/lib/libnccl.so.2", "opened no libnccl"),
        *_halves("jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
        Breakage(
            "a cuDNN without the GPU",
            f"COPY libcudnn.so.9 {NVIDIA}/cudnn/lib/libcudnn.so.9",
            "is version 9.28.0, the lock says 9.10.2",
            cudnn=92800,
        ),
        _without("wheels for the CPU", "jax_plugins", "JAX has no plugin for CUDA 12"),
        _without("half a plugin", "jax_cuda12_plugin", "cannot ask for its libraries'"),
        _without(
            "a plugin without its library",
            "jax_plugins/xla_cuda12/*.so",
            "has no library: JAX trains on the CPU",
        ),
        Breakage(
            "two plugins",
            "RUN cp -r {site}/jax_plugins/xla_cuda12 {site}/jax_plugins/xla_cuda13",
            "two plugins get into one process",
        ),
        Breakage(
            "two jaxlibs",
            "RUN mkdir /app/jaxlib && cp {site}/jaxlib/__init__.py /app/jaxlib",
            "two copies of jaxlib",
        ),
        Breakage(
            "a jaxlib of another release",
            _edit("jaxlib/version.py", 's/^_release_version: .*/_release_version = "0.11.1"/'),
            "jaxlib is version 0.11.1, but this version",
        ),
        Breakage(
            "a plugin of another release",
            _edit(
                "jax_cuda12_plugin/version.py",
                's/^_release_version: .*/_release_version = "0.11.2"/',
            ),
            "jax-cuda12-plugin is 0.11.2, the lock says 0.12.0.1",
        ),
        _without("no ptxas", "nvidia/cuda_nvcc/bin/ptxas", "XLA finds no ptxas"),
        _without("no libdevice", "nvidia/cuda_nvcc/nvvm/libdevice", "XLA finds no nvvm/lib"),
        Breakage("an image for an H100", "", "no plugin for CUDA 13", judged_as="h100-jax"),
        Breakage("kernels without the GPU", "", PLUGIN, "device-code", "h100-jax"),
    ),
    TPU: (
        _without("no libtpu", "libtpu/libtpu.so", "finds no libtpu: OSError"),
        Breakage(
            "a libtpu of another release",
            "RUN sed -i 's/^Version: .*/Version: 0.0.21/' {site}/libtpu-*.dist-info/METADATA",
            "libtpu is 0.0.21, the lock says 0.0.50.1",
        ),
        Breakage(
            "two libtpus",
            "RUN ln -s {site}/libtpu/libtpu.so /usr/lib/\nENV TPU_LIBRARY_PATH=/usr/lib/libtpu.so",
            "TPU_LIBRARY_PATH leads JAX to /usr/lib/libtpu.so",
        ),
    ),
}


@pytest.fixture(scope="module", params=TABLE)
def good(request: pytest.FixtureRequest) -> str:
    """Each target, whose image the engine has."""
    target: str = request.param
    commands.builder("build", target, check=True)
    return target


def problems(
    engine: Engine, image: str, folder: Path, target: str, checks: tuple[str, ...]
) -> list[str]:
    """Return what some checks say of an image that is asked about as a target's."""
    suite = suites.of_spec(image_yaml.load(ROOT, target))
    asked = tuple(check for check in suite.checks if check.name in checks)
    receipt = proven(engine, image, target, folder, Suite(suite.name, asked))
    return [problem.message for problem in receipt.problems]


def test_the_good_image_stays_green(engine: Engine, good: str, tmp_path: Path) -> None:
    checks = ("loader", "compiler", "device-code", "environment", "machine")
    assert problems(engine, f"training:{tag_of(ROOT, good)}", tmp_path, good, checks) == []


ROWS = [(target, row) for target, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(
    ("good", "row"), ROWS, indirect=["good"], ids=[f"{target}: {row.name}" for target, row in ROWS]
)
def test_a_broken_one_is_refused_with_its_cause(
    engine: Engine, good: str, tmp_path: Path, row: Breakage
) -> None:
    image, judged_as = f"broken-framework:{os.getpid()}", row.judged_as or good
    if row.cudnn:
        for name in ("libcudnn.so.9", "libother.so"):
            shared_object(tmp_path / name, {"cudnnGetVersion": number(row.cudnn)})
    lines = row.lines.format(site=site_packages(lockfile.read(ROOT, good).python))
    (tmp_path / "Dockerfile").write_text(
        f"FROM training:{tag_of(ROOT, good)}\nUSER 0\n{lines}\nUSER 1000:1000\n"
    )
    buildx.build(engine, BuildRequest(tmp_path / "Dockerfile", tmp_path, (image,)))
    try:
        said = problems(engine, image, tmp_path / "proof", judged_as, (row.check,))
    finally:
        engine.client.images.remove(image, force=True)
    SCORE[good].append(any(row.says in line for line in said))
    assert SCORE[good][-1], said


def test_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for target, refused in SCORE.items():
            sys.stdout.write(f"\nbroken {target}: {sum(refused)} of {len(refused)} refused\n")
    assert all(len(refused) == len(TABLE[target]) for target, refused in SCORE.items() if refused)
