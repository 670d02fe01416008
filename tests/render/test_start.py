"""The start hook of an image: any program is refused where its accelerator is not there.

The hook's folder is written as an image has it. The frameworks are modules that end the process
with PASSED, so a program that the hook lets through ends there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder import contract
from builder.render import start
from builder.spec import catalogue, compatibility
from builder.spec.catalogue import ImageSpec
from tests.trainer.test_guard import PAID, PASSED, SECOND, V100, compiler, machine

IMAGES = Path(__file__).parents[2] / "images"
DIGEST = "sha256:" + "0" * 64


def spec(accelerator: str, more: str = "") -> ImageSpec:
    text = f"accelerator: {accelerator}\nsize_budget: 3 GB\n{more}"
    return catalogue.parse(text, IMAGES / "probe/image.yaml")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder like an image's: the hook in app/.start, and frameworks in site."""
    for name, content in start.files(f"ENV PYTHONPATH=/app/{start.FOLDER}").items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ("tensorflow", "torch"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(f"raise SystemExit({PASSED})\n")
    return tmp_path


def python(
    image: Path, program: str, libraries: Path | None = None, **variables: str
) -> tuple[int, str]:
    """Exit code and stderr of a program on the image's Python."""
    paths = f"{image}/app/{start.FOLDER}:{image}/site"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": paths,
            "LD_LIBRARY_PATH": str(libraries or image / "no driver"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


needs_no_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has a driver"
)


# --- what an image says ---------------------------------------------------------------------------


def test_an_image_says_what_it_is_made_for() -> None:
    v100 = spec("V100")
    said = start.environment(v100, compatibility.resolve(v100))
    assert said == {
        contract.ACCELERATOR: "V100,capability=7.0,cuda=12,driver=525",
        "PYTHONPATH": "/app/.start",
    }
    tpu = catalogue.load(IMAGES.parent, "tpu")
    assert start.environment(tpu, compatibility.resolve(tpu))[contract.ACCELERATOR] == "TPU"
    published = spec("V100", f"base: x.example/y@{DIGEST}\n")
    path = start.environment(published, compatibility.resolve(published))["PYTHONPATH"]
    assert path == "/app/.start:$PYTHONPATH", "a published base may have one of its own"


def test_an_image_for_the_cpu_expects_nothing() -> None:
    cpu = spec("CPU")
    assert start.environment(cpu, compatibility.resolve(cpu)) == {}
    assert start.files("ENV A=1") == {}


# --- what the hook does ---------------------------------------------------------------------------


@needs_no_driver
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_program_without_its_accelerator_ends_before_the_framework(
    image: Path, framework: str
) -> None:
    code, said = python(image, f"import {framework}", **{contract.ACCELERATOR: PAID})
    assert code == contract.USAGE
    assert said.startswith("training-image-factory: this job is paid for 2 x V100, and no driver")
    assert f"{contract.ACCELERATOR}=none computes on the CPU" in said
    assert said.count("\n") == 1


def test_a_program_without_its_tpu_ends_before_the_framework(image: Path) -> None:
    """The guard's part for TPUs lies in the image, too."""
    paid = {contract.ACCELERATOR: contract.accelerator("TPU-v5e", 4, topology="4x4")}
    code, said = python(image, "import tensorflow", **paid)
    assert code == contract.USAGE
    assert "paid for TPU-v5e with 4 chips a host with topology 4x4, and this image has no" in said


@needs_no_driver
@pytest.mark.parametrize("hiding", ["try:\n import tensorflow\nexcept BaseException:\n pass", ""])
def test_no_program_can_pass_over_it_by_accident(image: Path, hiding: str) -> None:
    in_a_thread = "import threading\nthreading.Thread(target=__import__, args=['torch']).start()"
    code, _ = python(image, hiding or in_a_thread, **{contract.ACCELERATOR: PAID})
    assert code == contract.USAGE


@pytest.mark.parametrize("value", ["", "none", "auto"])
def test_where_nothing_is_expected_the_hook_is_silent(image: Path, value: str) -> None:
    assert python(image, "import tensorflow", **{contract.ACCELERATOR: value}) == (PASSED, "")


def test_a_program_that_needs_no_framework_needs_no_accelerator(image: Path) -> None:
    assert python(image, "import json", **{contract.ACCELERATOR: PAID}) == (0, "")


def test_what_cannot_be_read_is_refused_by_its_name(image: Path) -> None:
    code, said = python(image, "import tensorflow", **{contract.ACCELERATOR: "2 x V100"})
    assert code == contract.USAGE
    assert f"{contract.ACCELERATOR} 2 x V100: is not none, GPU" in said


def test_a_fault_of_the_guard_ends_no_program(image: Path) -> None:
    (image / "app" / start.FOLDER / start.GUARD / "__init__.py").write_text("raise RuntimeError\n")
    assert python(image, "import tensorflow", **{contract.ACCELERATOR: PAID}) == (PASSED, "")


def test_the_programs_own_sitecustomize_still_runs(image: Path) -> None:
    (image / "site" / "sitecustomize.py").write_text("print('its own')\n")
    assert python(image, "print('program')") == (0, "its own\nprogram\n")


@compiler
def test_with_its_accelerator_a_program_runs(image: Path) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    expected = {contract.ACCELERATOR: PAID}
    assert python(image, "import tensorflow", libraries, **expected) == (PASSED, "")
    image_alone = {contract.ACCELERATOR: "V100,capability=7.0,cuda=12,driver=525"}
    assert python(image, "import tensorflow", libraries, **image_alone) == (PASSED, "")


@compiler
def test_a_launcher_gives_each_process_a_part_but_not_nothing(image: Path) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    expected = {contract.ACCELERATOR: PAID}
    part = {**expected, "CUDA_VISIBLE_DEVICES": "1"}
    assert python(image, "import tensorflow", libraries, **part) == (PASSED, "")
    nothing = {**expected, "CUDA_VISIBLE_DEVICES": ""}
    code, said = python(image, "import tensorflow", libraries, **nothing)
    assert code == contract.USAGE and "shows none of the 2 GPUs here" in said


@compiler
def test_what_a_program_starts_is_not_asked_again(image: Path) -> None:
    """The parent holds the memory of the GPU by then."""
    libraries = machine(image / "lib", V100, SECOND)
    (image / "site/tensorflow/__init__.py").write_text("")
    starts = (
        "import os, subprocess, sys, tensorflow\n"
        "os.environ['LD_LIBRARY_PATH'] = '/nowhere'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', 'import torch']))"
    )
    assert python(image, starts, libraries, **{contract.ACCELERATOR: PAID}) == (PASSED, "")
