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
from builder.facts import frameworks
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
        "NVIDIA_REQUIRE_CUDA": "driver>=525",  # so the container toolkit starts it on no older one
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
@pytest.mark.parametrize(
    "by_accident",
    [
        "try:\n import tensorflow\nexcept BaseException:\n pass",
        "import threading\nthreading.Thread(target=__import__, args=['torch']).start()",
    ],
)
def test_a_program_without_its_accelerator_ends_before_the_framework(
    by_accident: str, image: Path
) -> None:
    code, text = python(image, "import tensorflow", **expecting(PAID))
    assert code == contract.USAGE
    assert text.startswith("training-image-factory: this job is paid for 2 x V100, and no driver")
    assert f"{contract.ACCELERATOR}=none computes on the CPU" in text
    assert text.count("\n") == 1
    tpu = contract.accelerator("TPU-v5e", 4, topology="4x4")
    of_tpu = "paid for TPU-v5e with 4 chips a host with topology 4x4, and this image has no"
    typo = f"{contract.ACCELERATOR} 2 x V100: is not none, GPU"
    for expected, reason in ((tpu, of_tpu), ("2 x V100", typo)):
        code, text = python(image, "import tensorflow", **expecting(expected))
        assert code == contract.USAGE and reason in text
    assert python(image, by_accident, **expecting(PAID))[0] == contract.USAGE


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


LISTS = {
    "tensorflow": (
        "tensorflow/python/eager/context.py",
        """
class Device:
    def __init__(self, kind):
        self.device_type = kind
class Context:
    def _initialize_physical_devices(self, reinitialize=False):
        self._physical_devices = [Device("CPU"), *(Device("GPU") for _ in range(GPUS))]
""",
        "import tensorflow.python.eager.context as m",
        "m.Context()._initialize_physical_devices()",
    ),
    "torch": (
        "torch/cuda/__init__.py",
        "def device_count():\n return GPUS\ndef is_available():\n return GPUS > 0\n",
        "import torch.cuda as m",
        "device = 'cuda' if m.is_available() else 'cpu'",
    ),
    "jax": (
        "jax/_src/xla_bridge.py",
        """
import os
from types import SimpleNamespace as Is
config = Is(jax_platforms=Is(value=os.environ.get("JAX_PLATFORMS")))
def client(count):
    return Is(local_device_count=lambda: count)
def backends():
    return {"cpu": client(1), **({"cuda": client(GPUS)} if GPUS else {})}
def devices():
    return [*backends()]
""",
        "import jax._src.xla_bridge as m",
        "m.devices()",
    ),
}
"""For each framework: the module that lists devices, a stand-in, how it is imported and asked."""


def framework(image: Path, name: str, gpus: int) -> tuple[str, str]:
    """Write a framework that sees so many GPUs; return how it is imported, and asked for them."""
    path, text, load, ask = LISTS[name]
    file = image / "site" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    for parent in file.relative_to(image / "site").parents[:-1]:
        (image / "site" / parent / "__init__.py").write_text("")
    size = "#" * gpus  # of another size: written again within a second, it is read again
    file.write_text(f"GPUS = {gpus}\n{text}{size}")
    return load, ask


@pytest.mark.parametrize("name", frameworks.OWN)
def test_a_framework_that_sees_no_gpu_is_refused_when_it_has_listed_its_devices(
    image: Path, name: str
) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    load, ask = framework(image, name, gpus=0)
    code, text = python(image, f"{load}; {ask}", libraries, **expecting(PAID))
    assert code == contract.USAGE
    assert "paid for 2 x V100, and the framework sees no GPU, although CUDA does" in text
    framework(image, name, gpus=2)
    assert python(image, f"{load}; {ask}", libraries, **expecting(PAID)) == (0, "")


def test_where_no_gpu_is_asked_for_none_is_missed(image: Path) -> None:
    libraries = machine(image / "lib", V100, SECOND)
    load, ask = framework(image, "torch", gpus=0)
    for passed in (
        f"{load}; import os; os.environ['CUDA_VISIBLE_DEVICES'] = '-1'; {ask}",  # on purpose
        f"{load}; import os\nif not os.fork(): {ask}\nelse: exit(os.wait()[1])",  # no CUDA there
    ):
        assert python(image, passed, libraries, **expecting(PAID)) == (0, "")
    looked_at = {**expecting(PAID), "TRAINING_ACCELERATOR_LOOKED_AT": PAID}
    started = python(image, f"{load}; {ask}", libraries, **looked_at)
    assert started == (0, ""), "a process that it started"


def test_jax_on_a_tpu_is_refused_where_it_sees_none_and_has_not_been_told_to(image: Path) -> None:
    lists = "; ".join(framework(image, "jax", gpus=0))
    guard = image / "app" / start.FOLDER / start.GUARD / "__init__.py"
    guard.write_text(guard.read_text() + "\ndef missing(*_, **__):\n    return ''\n")
    tpu = contract.accelerator("TPU-v5e", 4, topology="2x2")
    code, said = python(image, lists, **expecting(tpu))
    assert code == contract.USAGE and "the framework sees no TPU, although one is here" in said
    assert python(image, lists, JAX_PLATFORMS="cpu", **expecting(tpu)) == (0, "")
    file = image / "site" / LISTS["jax"][0]
    file.write_text(file.read_text().replace('"cuda"', '"tpu"').replace("GPUS = 0", "GPUS = 4"))
    assert python(image, lists, **expecting(tpu)) == (0, "")


@pytest.mark.tensorflow
def test_tensorflow_lists_its_devices_where_the_hook_watches() -> None:
    """The name is TensorFlow's own, and private."""
    from tensorflow.python.eager import context

    from builder.frameworks.tensorflow import devices

    made = context.Context()
    made._initialize_physical_devices()
    assert {device.device_type for device in made._physical_devices} >= {"CPU"}
    assert (context.__name__, devices.seen(context, [made], None)) == (devices.MODULE, {"GPU": 0})
