"""The guard, with a shared library that has NVML's interface: what is refused, and what is not.

The trainer runs as a process of its own. Its TensorFlow is a module that ends the process with
PASSED, so a run that the guard lets through ends there.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder import contract
from tests.compiler import compile_library
from tests.trainer.runs import ROOT
from trainer import config, guard
from trainer.config import UsageError
from trainer.guard import cuda

PASSED = 77
MACHINE = "machine"
"""The file that tells nvml.c which GPUs there are."""
PAID = contract.accelerator("V100", 2, capability="7.0", cuda="12", driver="525")
GB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """A device of the library; its slices follow it."""

    name: str = "Tesla V100-SXM2-16GB"
    uuid: str = "GPU-0a1b"
    capability: tuple[int, int] = (7, 0)
    used: int = 1
    error: int = 0
    mig: int = -1
    slices: tuple["Gpu", ...] = field(default=())
    memory: int = 0

    def lines(self) -> list[str]:
        own = (
            f'"{self.name}" "{self.uuid}" {self.capability[0]} {self.capability[1]} '
            f"{16 * GB} {self.used * GB} {self.error} {self.mig} {len(self.slices)} {self.memory}"
        )
        return [own, *(line for part in self.slices for line in part.lines())]


V100 = Gpu()
SECOND = Gpu(uuid="GPU-2c3d")
T4 = Gpu("Tesla T4", "GPU-4e5f", (7, 5))
A100 = "NVIDIA A100-SXM4-40GB"
SLICE = Gpu(f"{A100} MIG 1g.5gb", "MIG-6a7b", (8, 0))


def machine(
    folder: Path,
    *gpus: Gpu,
    driver: str = "535.104.05",
    init: int = 0,
    cuda: int = 12020,
    cuinit: int = 0,
    libcuda: bool = True,
) -> Path:
    """A folder with the libraries of a driver on a machine with these GPUs."""
    lines = [f"{init} {cuda} {cuinit} {len(gpus)} {driver or '-'}"]
    lines += [line for gpu in gpus for line in gpu.lines()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MACHINE).write_text("\n".join(lines))
    shutil.copy(compile_library(Path(__file__).parent / "nvml.c"), folder / "libnvidia-ml.so.1")
    if libcuda:
        shutil.copy(folder / "libnvidia-ml.so.1", folder / "libcuda.so.1")
    return folder


def environment(libraries: Path, tmp_path: Path, **more: str) -> dict[str, str]:
    stand_in = tmp_path / "stand-in"
    for name in ("tensorflow", "keras"):
        (stand_in / name).mkdir(parents=True, exist_ok=True)
        (stand_in / name / "__init__.py").write_text(f"raise SystemExit({PASSED})\n")
    kept = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key}
    paths = {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": f"{stand_in}:{ROOT}"}
    return {**kept, **paths, "NVML_MACHINE": str(libraries / MACHINE), **more}


def train(
    libraries: Path, tmp_path: Path, *options: str, **more: str
) -> tuple[int, dict[str, object]]:
    """Exit code and last event of a run; {} where it printed none."""
    command = [sys.executable, "-m", "trainer.task", "--records", "r", "--job-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, *options],
        env=environment(libraries, tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, lines[-1] if lines else {}


REFUSED: dict[str, tuple[tuple[Gpu, ...], dict, dict[str, str], str]] = {
    "an old driver": (
        (V100, SECOND),
        {"driver": "520.61.05", "cuda": 11080},
        {},
        "the driver here is 520.61.05, and this image's CUDA 12 needs 525 or newer",
    ),
    "another GPU": (
        (V100, T4),
        {},
        {},
        "GPU 1 is a Tesla T4 (compute capability 7.5): take a machine with V100 "
        "(7.0), or the image and the job for this GPU",
    ),
    "one is missing": ((V100,), {}, {}, "only 1 GPU is in this container"),
    "none is given": ((), {}, {}, "no GPU is in this container"),
    "one belongs to another container": (
        (V100, Gpu(error=4)),
        {},
        {},
        "only 1 GPU is in this container",
    ),
    "hidden": (
        (V100, SECOND),
        {},
        {"CUDA_VISIBLE_DEVICES": "0"},
        "CUDA_VISIBLE_DEVICES=0 shows 1 of the 2 GPUs here: remove it",
    ),
    "all hidden": (
        (V100, SECOND),
        {},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        "CUDA_VISIBLE_DEVICES=-1 shows none of the 2 GPUs here",
    ),
    "lost": (
        (V100, Gpu(error=15)),
        {},
        {},
        "GPU 1 answers with an error: GPU is lost, it has fallen off the bus (NVML error 15)",
    ),
    "needs a reset": ((Gpu(error=16), SECOND), {}, {}, "GPU 0 answers with an error: GPU requires"),
    "no spare rows of memory": (
        (V100, Gpu(A100, capability=(8, 0), memory=1)),
        {},
        {},
        "GPU 1 has bad memory that it cannot replace",
    ),
    "a page that waits for a reset": (
        (V100, Gpu(memory=2)),
        {},
        {},
        "GPU 1 has had an uncorrectable memory error, and starts no program until it is reset",
    ),
    "full": (
        (V100, Gpu(used=16)),
        {},
        {},
        "another process holds 100% of the memory of GPU 1 (Tesla V100-SXM2-16GB)",
    ),
    "no module in the kernel": ((), {"init": 9}, {}, "the driver's kernel module is not loaded"),
    "updated while it ran": ((), {"init": 18}, {}, "of another version than its kernel module"),
    "no access any more": ((), {"init": 999}, {}, "does not start: unknown error (NVML error 999)"),
    "without libcuda": (
        (V100, SECOND),
        {"libcuda": False},
        {},
        "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    "no fabric manager": (
        (V100, SECOND),
        {"cuinit": 802},
        {},
        "CUDA does not start: error 802, the system is not ready: the fabric manager does not run",
    ),
    "libraries of another driver": ((V100, SECOND), {"cuinit": 803}, {}, "error 803, libcuda.so.1"),
    "a cgroup without devices": ((V100, SECOND), {"cuinit": 100}, {}, "error 100, no GPU is given"),
    "no word for it": ((V100, SECOND), {"cuinit": 719}, {}, "error 719, see CUresult"),
    "MIG without a slice": (
        (V100, Gpu(A100, mig=1)),
        {},
        {},
        "GPU 1 has MIG switched on and no slice",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_job_that_is_paid_for_nothing_is_refused(case: str, tmp_path: Path) -> None:
    gpus, driver, given, cause = REFUSED[case]
    libraries = machine(tmp_path / "lib", *gpus, **driver)
    code, event = train(libraries, tmp_path, **{contract.ACCELERATOR: PAID}, **given)
    assert code == contract.USAGE
    assert (event["event"], event["severity"]) == ("error", "ERROR")
    message = str(event["message"])
    assert message.startswith("this job is paid for 2 x V100, and ")
    assert cause in message and "--accelerator none trains on the CPU" in message
    assert "\n" not in message


SHARED = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
GOOD: dict[str, tuple[str, tuple[Gpu, ...], dict, dict[str, str]]] = {
    "as paid for": (PAID, (V100, SECOND), {}, {}),
    "more than paid for": ("V100:1", (V100, SECOND), {}, {}),
    "no version": ("V100:2", (V100, SECOND), {"driver": ""}, {}),
    "a V100S is a V100": ("V100", (Gpu("Tesla V100S-PCIE-32GB"),), {}, {}),
    "any GPU": ("GPU", (T4,), {}, {}),
    "by its alias": ("A100-40GB", (Gpu(A100, capability=(8, 0), mig=0),), {}, {}),
    "rows that were replaced": ("A100", (Gpu(A100, capability=(8, 0), memory=2),), {}, {}),
    "a page that was corrected": ("V100", (Gpu(memory=3),), {}, {}),
    "by number": ("T4", (V100, T4), {}, {"CUDA_VISIBLE_DEVICES": "1"}),
    "by UUID": (PAID, (V100, SECOND), {}, {"CUDA_VISIBLE_DEVICES": "GPU-2c, GPU-0a1b"}),
    "a broken one that is hidden": (
        "V100",
        (Gpu(error=15), V100),
        {},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ),
    "a broken one more than is paid for": ("V100:1", (V100, Gpu(error=15)), {}, {}),
    "an image's own GPU, of a newer minor": (
        "A100,capability=8.0,cuda=12,driver=525",
        (Gpu("NVIDIA L4", capability=(8, 9)),),
        {},
        {},
    ),
    "forward compatibility package": (PAID, (V100, SECOND), {"driver": "470.57.02"}, {}),
    "shared on purpose": (PAID, (V100, Gpu(used=16)), {}, SHARED),
    "a slice": ("A100", (Gpu(A100, capability=(8, 0), mig=1, slices=(SLICE,)),), {}, {}),
    "a slice by UUID": (
        "A100:1,capability=8.0",
        (Gpu(A100, "GPU-1", (8, 0), mig=1, slices=(SLICE,)),),
        {},
        {"CUDA_VISIBLE_DEVICES": "MIG-6a7b"},
    ),
    "a slice as old drivers name it": (
        "A100:1,capability=8.0",
        (Gpu(A100, "GPU-1", (8, 0), mig=1, slices=(SLICE,)),),
        {},
        {"CUDA_VISIBLE_DEVICES": "MIG-GPU-1/7/0"},
    ),
    "the CPU is wanted": ("none", (), {"init": 9}, {}),
    "an empty variable": ("", (), {"init": 9}, {}),
    "nothing is expected": ("", (V100, Gpu(error=15)), {}, {"CUDA_VISIBLE_DEVICES": "-1"}),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_paid_for_and_there_is_not_refused(case: str, tmp_path: Path) -> None:
    expected, gpus, driver, given = GOOD[case]
    libraries = machine(tmp_path / "lib", *gpus, **driver)
    found = train(libraries, tmp_path, **{contract.ACCELERATOR: expected}, **given)
    assert found == (PASSED, {})


def test_a_driver_that_compiles_no_such_ptx_is_too_old(tmp_path: Path) -> None:
    """PTX 8.5 needs CUDA 12.5's driver: 535 runs CUDA 12, and yet ends with an invalid PTX."""
    wanted = guard.expected("H100:1,capability=9.0,cuda=12.5,driver=555", "test")
    assert wanted is not None
    assert guard.too_old(wanted, "535.104.05", (12, 2)) == (
        "the driver here is 535.104.05, and this image's CUDA 12.5 needs 555 or newer: update the "
        "machine's driver"
    )
    assert guard.too_old(wanted, "555.42.02", (12, 5)) == ""
    assert guard.too_old(wanted, "535.104.05", (12, 6)) == "", "a compatibility package"


def test_a_driver_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(machine(tmp_path, V100, cuinit=-1), tmp_path).items():
        monkeypatch.setenv(name, value)
    assert cuda.missing(seconds=1) == (
        "the driver does not answer: cuInit did not return in 1 s: restart the machine"
    )


def test_the_option_wins_over_what_the_place_says(tmp_path: Path) -> None:
    libraries = machine(tmp_path / "lib", T4)
    place = {contract.ACCELERATOR: PAID}
    assert train(libraries, tmp_path, "--accelerator", "T4", **place) == (PASSED, {})
    assert train(libraries, tmp_path, "--accelerator=none", **place) == (PASSED, {})
    code, event = train(libraries, tmp_path, "--accelerator", "L4")
    assert code == contract.USAGE
    assert "paid for 1 x L4, and GPU 0 is a Tesla T4 (compute capability 7.5)" in str(
        event["message"]
    )


def test_the_stand_in_has_the_interface_that_nvidias_own_binding_calls(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    gpu = Gpu(A100, "GPU-1", (8, 0), mig=1, slices=(SLICE,))
    libraries = machine(tmp_path / "lib", V100, gpu, Gpu(error=15))
    program = """if True:
        from pynvml import *
        nvmlInit()
        first, second = (nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
        print(nvmlSystemGetDriverVersion(), nvmlDeviceGetCount(), nvmlDeviceGetUUID(first))
        print(nvmlDeviceGetName(first), nvmlDeviceGetCudaComputeCapability(first))
        print(nvmlDeviceGetMemoryInfo(first).used, nvmlDeviceGetMigMode(second))
        part = nvmlDeviceGetMigDeviceHandleByIndex(second, 0)
        print(nvmlDeviceGetMaxMigDeviceCount(second), nvmlDeviceGetName(part))
        try:
            nvmlDeviceGetHandleByIndex(2)
        except NVMLError_GpuIsLost:
            print("lost")
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(libraries, tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "535.104.05 3 GPU-0a1b",
        "Tesla V100-SXM2-16GB (7, 0)",
        f"{GB} [1, 1]",
        f"7 {SLICE.name}",
        "lost",
    ], done.stderr


def test_without_a_driver_the_cause_is_what_did_not_mount_it(tmp_path: Path) -> None:
    assert "nor does this machine have one" in guard.not_mounted({}, tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    nodes = guard.not_mounted({}, tmp_path)
    assert f"{tmp_path}/dev/nvidia0 is here, but not the driver's libraries" in nodes
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    host = guard.not_mounted({}, tmp_path)
    assert "NVIDIA's driver 535.104.05, which is not mounted in this container" in host
    assert "docker run --gpus all" in host and "device plugin" in host
    hidden = guard.not_mounted({"NVIDIA_VISIBLE_DEVICES": "void"}, tmp_path)
    assert hidden.startswith("NVIDIA_VISIBLE_DEVICES=void keeps the GPUs out")


def test_a_machine_without_a_driver_refuses_a_job_that_is_paid_for(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    code, event = train(tmp_path, tmp_path, **{contract.ACCELERATOR: PAID})
    assert code == contract.USAGE
    assert "no driver of NVIDIA is mounted (no libnvidia-ml.so.1)" in str(event["message"])


def test_none_hides_the_gpus_from_tensorflow() -> None:
    environment = {guard.VARIABLE: "V100:2"}
    guard.check("none", environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert guard.refusal(environment) == "", "what it starts does not ask for the V100s again"
    environment = {}
    guard.check("auto", environment)
    assert environment == {}


@pytest.mark.parametrize(
    "wrong", ["V100:0", "V100:x", "2 x V100", "V100:1,driver=new", ":2", "TPU:4,topology=4"]
)
def test_a_description_that_cannot_be_read_names_where_it_stands(wrong: str) -> None:
    given = ["--records=r", "--job-dir=j"]
    with pytest.raises(UsageError, match=f"^{contract.ACCELERATOR} {wrong}: is not"):
        config.parse(given, {contract.ACCELERATOR: wrong})
    with pytest.raises(UsageError, match=f"^--accelerator {wrong}: is not"):
        config.parse([*given, f"--accelerator={wrong}"], {})
