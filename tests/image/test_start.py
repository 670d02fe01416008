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
from builder.config import compatibility, image_yaml
from builder.config.image_yaml import ImageSpec
from builder.image import start
from tests.trainer.test_guard import MACHINE, PAID, PASSED, SECOND, V100, machine

IMAGES = Path(__file__).parents[2] / "images"
DIGEST = "sha256:" + "0" * 64
IMAGE_OF_V100 = "V100,capability=7.0,cuda=12,driver=525"


def spec(accelerator: str, more: str = "") -> ImageSpec:
    text = f"accelerator: {accelerator}\nsize_budget: 3 GB\n{more}"
    return image_yaml.parse(text, IMAGES / "probe/image.yaml")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder like an image's: the hook in app/.start, and frameworks in site."""
    for name, content in start.files(compatibility.resolve(spec("V100"))).items():
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
            "NVML_MACHINE": str(image / "lib" / MACHINE),
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


def expecting(text: str) -> dict[str, str]:
    return {contract.ACCELERATOR: text}


def test_an_image_names_its_accelerator_and_one_for_the_cpu_expects_nothing() -> None:
    v100 = spec("V100")
    assert start.environment(v100, compatibility.resolve(v100)) == {
        contract.ACCELERATOR: IMAGE_OF_V100,
        "PYTHONPATH": "/app/.start",
    }
    tpu = image_yaml.load(IMAGES.parent, "tpu")
    assert start.environment(tpu, compatibility.resolve(tpu))[contract.ACCELERATOR] == "TPU"
    published = spec("V100", f"base: x.example/y@{DIGEST}\n")
    path = start.environment(published, compatibility.resolve(published))["PYTHONPATH"]
    assert path == "/app/.start:$PYTHONPATH", "a published base may have one of its own"
    cpu = spec("CPU")
    assert start.environment(cpu, compatibility.resolve(cpu)) == {}
    assert start.files(compatibility.resolve(cpu)) == {}


@needs_no_driver
def test_a_program_without_its_accelerator_ends_before_the_framework(image: Path) -> None:
    code, text = python(image, "import tensorflow", **expecting(PAID))
    assert code == contract.USAGE
    assert text.startswith("training-image-factory: this job is paid for 2 x V100, and no driver")
    assert f"{contract.ACCELERATOR}=none computes on the CPU" in text
    assert text.count("\n") == 1
    tpu = contract.accelerator("TPU-v5e", 4, topology="4x4")
    code, text = python(image, "import tensorflow", **expecting(tpu))
    assert code == contract.USAGE
    assert "paid for TPU-v5e with 4 chips a host with topology 4x4, and this image has no" in text
    code, text = python(image, "import tensorflow", **expecting("2 x V100"))
    assert code == contract.USAGE
    assert f"{contract.ACCELERATOR} 2 x V100: is not none, GPU" in text


@needs_no_driver
@pytest.mark.parametrize(
    "program",
    [
        "try:\n import tensorflow\nexcept BaseException:\n pass",
        "import threading\nthreading.Thread(target=__import__, args=['torch']).start()",
    ],
)
def test_no_program_can_pass_over_it_by_accident(image: Path, program: str) -> None:
    assert python(image, program, **expecting(PAID))[0] == contract.USAGE


def test_where_nothing_is_expected_or_needed_the_hook_is_silent(image: Path) -> None:
    assert python(image, "import tensorflow", **expecting("none")) == (PASSED, "")
    (image / "site" / "sitecustomize.py").write_text("print('its own')\n")
    assert python(image, "import json", **expecting(PAID)) == (0, "its own\n")
    (image / "app" / start.FOLDER / start.GUARD / "__init__.py").write_text("raise RuntimeError\n")
    faulty = python(image, "import tensorflow", **expecting(PAID))
    assert faulty == (PASSED, "its own\n"), "a fault of the guard ends no program"


def test_with_its_accelerator_a_program_runs(image: Path) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    for expected in (PAID, IMAGE_OF_V100):
        ran = python(image, "import tensorflow", libraries, **expecting(expected))
        assert ran == (PASSED, "")
    nothing = {**expecting(PAID), "CUDA_VISIBLE_DEVICES": ""}
    code, text = python(image, "import tensorflow", libraries, **nothing)
    assert code == contract.USAGE and "shows none of the 2 GPUs here" in text
    # a launcher gives each process a part, and the parent has the GPU's memory by then
    (image / "site/tensorflow/__init__.py").write_text("")
    starts = (
        "import os, subprocess, sys, tensorflow\n"
        "os.environ['LD_LIBRARY_PATH'] = '/nowhere'\n"
        "sys.exit(subprocess.call([sys.executable, '-c', 'import torch']))"
    )
    part = {**expecting(PAID), "CUDA_VISIBLE_DEVICES": "1"}
    assert python(image, starts, libraries, **part) == (PASSED, "")


DEVICES = """
class Device:
    def __init__(self, kind):
        self.device_type = kind
class Context:
    def _initialize_physical_devices(self, reinitialize=False):
        self._physical_devices = [Device("CPU"), *(Device("GPU") for _ in range(GPUS))]
"""
LISTS = "import tensorflow.python.eager.context as c; c.Context()._initialize_physical_devices()"


def framework(image: Path, gpus: int) -> None:
    """Write a TensorFlow that sees so many GPUs."""
    folder = image / "site/tensorflow/python/eager"
    folder.mkdir(parents=True)
    for parent in (folder, folder.parent, folder.parent.parent):
        (parent / "__init__.py").write_text("")
    (folder / "context.py").write_text(f"GPUS = {gpus}\n{DEVICES}")


def test_a_framework_that_sees_no_gpu_is_refused_when_it_has_listed_its_devices(
    image: Path,
) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    framework(image, gpus=0)
    code, text = python(image, LISTS, libraries, **expecting(PAID))
    assert code == contract.USAGE
    assert "paid for 2 x V100, and the framework sees no GPU, although CUDA does" in text
    hides = LISTS.replace("c;", "c, os; os.environ['CUDA_VISIBLE_DEVICES'] = '-1';")
    assert python(image, hides, libraries, **expecting(PAID)) == (0, ""), "on purpose"
    looked_at = {**expecting(PAID), "TRAINING_ACCELERATOR_LOOKED_AT": PAID}
    assert python(image, LISTS, libraries, **looked_at) == (0, ""), "a process that it started"


def test_a_framework_that_sees_its_gpus_goes_on(image: Path) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    framework(image, gpus=2)
    assert python(image, LISTS, libraries, **expecting(PAID)) == (0, "")


@pytest.mark.tensorflow
def test_tensorflow_lists_its_devices_where_the_hook_watches() -> None:
    """The name is TensorFlow's own, and private."""
    from tensorflow.python.eager import context

    made = context.Context()
    made._initialize_physical_devices()
    assert {device.device_type for device in made._physical_devices} >= {"CPU"}
