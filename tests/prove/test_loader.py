"""The check `loader`: frameworks as their wheels lay them out. What is refused, one fault each, is
in tests/prove/test_many_images.py; here is what is not, and how others repair it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builder.prove.checks import loader
from builder.prove.image import Image
from builder.prove.receipts import Defect, Finding
from tests.devicecode.writer import linked
from tests.prove import shapes
from tests.prove.reading import SITE
from tests.prove.shapes import CUDNN_FILES, FRAMEWORK, Files


def image(
    framework: str,
    changes: Files | None = None,
    links: Mapping[str, str] | None = None,
    **config: Any,
) -> Image:
    return shapes.image(framework, changes or {}, config, links or {})


def said(judged: Image) -> tuple[list[str], list[str]]:
    """What refuses the image, and what is a finding."""
    defects, _ = loader.run(judged)
    findings = [each.message for each in defects if isinstance(each, Finding)]
    return [each.message for each in defects if type(each) is Defect], findings


@pytest.mark.parametrize(("framework", "modules"), [("torch", 1), ("tensorflow", 1), ("jax", 2)])
def test_a_framework_as_its_wheels_lay_it_out_loads(framework: str, modules: int) -> None:
    judged = image(framework)
    assert said(judged) == ([], [])
    assert loader.run(judged)[1]["note"] == f"{modules} modules load, by ld.so's way"


def test_another_package_may_bring_a_library_for_each_release() -> None:
    """NVIDIA's DALI does: one of them has to fit."""
    old = linked("libtorch_cuda.so", undefined=("at_old_sum",))
    variants: Files = {
        f"{SITE}/dali/libdali_torch_2_7.so": old,
        f"{SITE}/dali/libdali_torch_2_8.so": linked("libtorch_cuda.so", undefined=("at_sum",)),
    }
    problems, findings = said(image("torch", variants))
    assert problems == [] and "libdali_torch_2_7.so does not fit" in findings[0]


def test_the_second_copy_that_is_taken_first_is_a_finding() -> None:
    plain: Files = {
        "usr/local/cuda/lib64/libcudnn.so.9": linked(soname="libcudnn.so.9"),
        f"{SITE}/torch/lib/libtorch_cuda.so": linked(
            *("libcudnn.so.9", "libnccl.so.2"), soname="libtorch_cuda.so", defined=("at_sum",),
            runpath=shapes.beside("..", ".."),
        ),
    }  # fmt: skip
    parts = {f"usr/local/cuda/lib64/{name}": linked(soname=name) for name in CUDNN_FILES}
    env = ["LD_LIBRARY_PATH=/usr/local/cuda/lib64"]
    _, findings = said(image("torch", {**plain, **parts}, Env=env))
    assert len(findings) == 1 and "for libcudnn.so.9, and not that of nvidia-cu" in findings[0]
    assert said(image("torch", plain)) == ([], [])


STUB = "usr/local/cuda/lib64/stubs/libcuda.so.1"
COMPAT = "usr/local/cuda/compat/lib.real/libcuda.so.1"


@pytest.mark.parametrize(
    ("path", "env", "conf", "refused"),
    [
        (STUB, "LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs", "", True),
        (COMPAT, "", "/usr/local/cuda/compat/lib.real\n", True),
        (STUB, "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "", False),
        # TensorFlow's own images: the machine's driver is found before
        (STUB, "", "/usr/lib/x86_64-linux-gnu\n/usr/local/cuda/lib64/stubs\n", False),
        # NVIDIA's own images: a script makes the folder compat/lib at the start, where it is needed
        (COMPAT, "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib64", "", False),
    ],
)
def test_a_libcuda_on_the_loaders_path_is_refused(
    path: str, env: str, conf: str, refused: bool
) -> None:
    driver: Files = {path: linked(soname="libcuda.so.1"), "etc/ld.so.conf": conf.encode()}
    problems, _ = said(image("torch", driver, Env=[env] if env else []))
    assert [f"a program takes /{path} for the driver" in text for text in problems] == (
        [True] * refused
    )


OTHERS = tuple(name for name in shapes.FOLDERS if name != "cusolver")
CUSOLVER = f"{SITE}/nvidia/cusolver/lib"
OF_PIP: Files = {
    f"{SITE}/tensorflow/{FRAMEWORK}": linked(
        soname=FRAMEWORK, runpath=shapes.beside("..", folders=OTHERS)
    )
}
"""`pip install tensorflow[and-cuda]==2.21.0`: no folder of cuSOLVER is in its search path."""


def test_tensorflow_with_cuda_of_pip_does_not_find_cusolver() -> None:
    """It is in the image, and TensorFlow does not look there: it trains on the CPU."""
    problems, findings = said(image("tensorflow", OF_PIP))
    assert len(problems) == 1 and findings == []
    assert problems[0].startswith(
        f"TensorFlow 2.21.99 opens libcusolver.so.11, which lies in {CUSOLVER}"
        "/libcusolver.so.11, where libtensorflow_framework does not look for it: TensorFlow sees no"
    )
    for repaired in (
        image("tensorflow", OF_PIP, Env=[f"LD_LIBRARY_PATH={CUSOLVER}"]),
        image("tensorflow", {**OF_PIP, "etc/ld.so.conf": CUSOLVER.encode()}),
        image("tensorflow", OF_PIP, {"usr/lib/libcusolver.so.11": f"{CUSOLVER}/libcusolver.so.11"}),
    ):
        assert said(repaired) == ([], [])


def test_what_an_entry_script_exports_counts_and_what_it_computes_is_a_finding() -> None:
    literal = f'#!/bin/sh\nexport LD_LIBRARY_PATH="{CUSOLVER}:$LD_LIBRARY_PATH"\nexec "$@"\n'
    files: Files = {**OF_PIP, "entry.sh": literal.encode()}
    assert said(image("tensorflow", files, Entrypoint=["/entry.sh"])) == ([], [])
    computed = b'#!/bin/sh\nexport LD_LIBRARY_PATH=$(python -c "import nvidia")\n'
    judged = image("tensorflow", {**files, "entry.sh": computed}, Entrypoint=["/entry.sh"])
    problems, findings = said(judged)
    assert problems == [] and "libcusolver.so.11" in findings[0]
    assert loader.CHECK.judge(judged).status == "not followed"
    assert "entry point's script computes" in loader.run(judged)[1]["not_followed"]


def test_another_libc_is_not_followed() -> None:
    musl = {"usr/bin/python3.11": linked(interpreter="/lib/ld-musl-x86_64.so.1")}
    judged = image("torch", {**musl, **shapes.cuda("nccl", "2.27.99", "libnccl.so.2")})
    assert said(judged) == ([], [])
    assert loader.CHECK.judge(judged).status == "not followed"
    assert loader.run(judged)[1]["not_followed"].startswith("symbols, because")
