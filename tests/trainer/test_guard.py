"""The guard, with a shared library that has NVML's interface: what is refused, and what is not.

The trainer runs as a process of its own: a fork of one that has imported it. Its TensorFlow is a
module that ends the process with PASSED, so a run that the guard lets through ends there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builder import contract
from tests import ROOT
from tests.compiler import compile_library
from trainer import config, event_lines, guard
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
    compiled = compile_library(Path(__file__).parent / "nvml.c")
    shutil.copy(compiled, folder / "libnvidia-ml.so.1")
    if libcuda:
        shutil.copy(compiled, folder / "libcuda.so.1")
    else:
        (folder / "libcuda.so.1").unlink(missing_ok=True)
    return folder


FULL = replace(SECOND, used=12)
USES = """
import json
from trainer.observe import utilization
machine = utilization.Utilization()
machine.end(None, "")
print(json.dumps(machine.of_gpus))
"""
FORKS = """
import json, os, runpy, sys
import trainer.task
del sys.modules["trainer.task"]
for line in sys.stdin:
    options, environment, output = json.loads(line)
    child = os.fork()
    if not child:
        for stream, path in enumerate(output, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = options
        sys.exit(runpy.run_module("trainer.task", run_name="__main__"))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
Train = Callable[..., tuple[int, dict[str, object]]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the trainer's loader looks for a driver's libraries."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def train(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """Runs the trainer: exit code and last event, {} where it printed none."""
    folder = tmp_path_factory.mktemp("trainer")
    for name in ("tensorflow", "keras"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise SystemExit({PASSED})\n")
    paths = {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": f"{folder}:{ROOT}"}
    own = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key}
    own |= paths | {"NVML_MACHINE": str(libraries / MACHINE)}
    output = folder / "stdout", folder / "stderr"
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(
        command, env=own, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as forks:
        assert forks.stdin and forks.stdout
        requests, codes = forks.stdin, forks.stdout

        def run(*options: str, **variables: str) -> tuple[int, dict[str, object]]:
            words = ["--records=r", f"--job-dir={folder}", *options]
            requests.write(json.dumps([words, own | variables, list(map(str, output))]) + "\n")
            requests.flush()
            code = int(codes.readline())
            assert output[1].read_text() == ""
            lines = [json.loads(line) for line in output[0].read_text().splitlines()]
            return code, lines[-1] if lines else {}

        yield run


@dataclass(frozen=True)
class Case:
    """GPUs on a machine, what the job is paid for, and what the guard says of it."""

    gpus: tuple[Gpu, ...]
    says: str
    paid: str
    driver: dict[str, Any]
    environment: dict[str, str]


def case(*gpus: Gpu, says: str = "", paid: str = PAID, **more: Any) -> Case:
    """`more`: what `machine` takes, and in capitals variables of the environment."""
    driver = {name: value for name, value in more.items() if name.islower()}
    return Case(gpus, says, paid, driver, {k: v for k, v in more.items() if k not in driver})


REFUSED = {
    "an old driver": case(
        *(V100, SECOND),
        driver="520.61.05",
        cuda=11080,
        says="the driver here is 520.61.05, and this image's CUDA 12 needs 525 or newer",
    ),
    "another GPU": case(
        *(V100, T4),
        says="GPU 1 is a Tesla T4 (compute capability 7.5): take a machine with V100 (7.0), or the "
        "image and the job for this GPU",
    ),
    "one is missing": case(V100, says="only 1 GPU is in this container"),
    "none is given": case(says="no GPU is in this container"),
    "another container's": case(V100, Gpu(error=4), says="only 1 GPU is in this container"),
    "hidden": case(
        *(V100, SECOND),
        CUDA_VISIBLE_DEVICES="0",
        says="CUDA_VISIBLE_DEVICES=0 shows 1 of the 2 GPUs here: remove it",
    ),
    "all hidden": case(V100, SECOND, CUDA_VISIBLE_DEVICES="-1", says="shows none of the 2 GPUs"),
    "lost": case(
        *(V100, Gpu(error=15)),
        says="GPU 1 answers with an error: GPU is lost, it has fallen off the bus (NVML error 15)",
    ),
    "needs a reset": case(Gpu(error=16), SECOND, says="GPU 0 answers with an error: GPU requires"),
    "no spare rows of memory": case(
        *(V100, Gpu(A100, capability=(8, 0), memory=1)),
        says="GPU 1 has bad memory that it cannot replace",
    ),
    "a page that waits for a reset": case(
        *(V100, Gpu(memory=2)),
        says="GPU 1 has had an uncorrectable memory error, and starts no program until it is reset",
    ),
    "full": case(
        *(V100, Gpu(used=16)),
        says="another process holds 100% of the memory of GPU 1 (Tesla V100-SXM2-16GB)",
    ),
    "no module in the kernel": case(init=9, says="the driver's kernel module is not loaded"),
    "updated while it ran": case(init=18, says="of another version than its kernel module"),
    "no access any more": case(init=999, says="does not start: unknown error (NVML error 999)"),
    "without libcuda": case(V100, SECOND, libcuda=False, says="CAPABILITIES=compute,utility"),
    "no fabric manager": case(V100, SECOND, cuinit=802, says="the fabric manager does not run"),
    "libraries of another driver": case(V100, SECOND, cuinit=803, says="error 803, libcuda.so.1"),
    "a cgroup without devices": case(V100, SECOND, cuinit=100, says="error 100, no GPU is given"),
    "no word for it": case(V100, SECOND, cuinit=719, says="error 719, see CUresult"),
    "MIG without a slice": case(V100, Gpu(A100, mig=1), says="GPU 1 has MIG switched on and no"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_is_paid_for_nothing_is_refused(
    name: str, libraries: Path, train: Train
) -> None:
    given = REFUSED[name]
    machine(libraries, *given.gpus, **given.driver)
    code, event = train(**{contract.ACCELERATOR: given.paid}, **given.environment)
    assert code == contract.USAGE
    assert (event["event"], event["severity"]) == ("error", "ERROR")
    message = str(event["message"])
    assert message.startswith("this job is paid for 2 x V100, and ")
    assert given.says in message and "--accelerator none trains on the CPU" in message
    assert "\n" not in message


SLICED = Gpu(A100, "GPU-1", (8, 0), mig=1, slices=(SLICE,))
GOOD = {
    "as paid for": case(V100, SECOND),
    "more than paid for": case(V100, SECOND, paid="V100:1"),
    "no version": case(V100, SECOND, paid="V100:2", driver=""),
    "a V100S is a V100": case(Gpu("Tesla V100S-PCIE-32GB"), paid="V100"),
    "any GPU": case(T4, paid="GPU"),
    "by its alias": case(Gpu(A100, capability=(8, 0), mig=0), paid="A100-40GB"),
    "rows that were replaced": case(Gpu(A100, capability=(8, 0), memory=2), paid="A100"),
    "a page that was corrected": case(Gpu(memory=3), paid="V100"),
    "by number": case(V100, T4, paid="T4", CUDA_VISIBLE_DEVICES="1"),
    "by UUID": case(V100, SECOND, CUDA_VISIBLE_DEVICES="GPU-2c, GPU-0a1b"),
    "a broken one, hidden": case(Gpu(error=15), V100, paid="V100", CUDA_VISIBLE_DEVICES="1"),
    "a broken one more than is paid for": case(V100, Gpu(error=15), paid="V100:1"),
    "an image's own GPU, of a newer minor": case(
        Gpu("NVIDIA L4", capability=(8, 9)), paid="A100,capability=8.0,cuda=12,driver=525"
    ),
    "forward compatibility package": case(V100, SECOND, driver="470.57.02"),
    "shared on purpose": case(V100, Gpu(used=16), TF_FORCE_GPU_ALLOW_GROWTH="true"),
    "a slice": case(SLICED, paid="A100"),
    "a slice by UUID": case(SLICED, paid="A100:1,capability=8.0", CUDA_VISIBLE_DEVICES="MIG-6a7b"),
    "the CPU is wanted": case(paid="none", init=9),
    "an empty variable": case(paid="", init=9),
    "nothing is expected": case(V100, Gpu(error=15), paid="", CUDA_VISIBLE_DEVICES="-1"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_paid_for_and_there_is_not_refused(
    name: str, libraries: Path, train: Train
) -> None:
    given = GOOD[name]
    machine(libraries, *given.gpus, **given.driver)
    ran = train(**{contract.ACCELERATOR: given.paid}, **given.environment)
    assert ran == (PASSED, {})


def test_a_driver_that_compiles_no_such_ptx_is_too_old() -> None:
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
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine(tmp_path, V100, cuinit=-1)))
    monkeypatch.setenv("NVML_MACHINE", str(tmp_path / MACHINE))
    assert cuda.missing(seconds=1) == (
        "the driver does not answer: cuInit did not return in 1 s: restart the machine"
    )


def test_the_option_wins_over_what_the_place_says(libraries: Path, train: Train) -> None:
    machine(libraries, T4)
    place = {contract.ACCELERATOR: PAID}
    assert train("--accelerator", "T4", **place) == (PASSED, {})
    assert train("--accelerator=none", **place) == (PASSED, {})
    code, event = train("--accelerator", "L4")
    assert code == contract.USAGE
    assert "paid for 1 x L4, and GPU 0 is a Tesla T4 (compute capability 7.5)" in str(
        event["message"]
    )


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


def test_a_machine_without_a_driver_refuses_a_job_that_is_paid_for(
    libraries: Path, train: Train
) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    for path in libraries.iterdir():
        path.unlink()
    code, event = train(**{contract.ACCELERATOR: PAID})
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


@pytest.mark.parametrize(
    ("gpus", "init", "visible", "said"),
    [
        ((V100, FULL), 0, None, {"gpu_percent": 40.5, "gpu_memory_bytes": 13 * GB}),
        ((V100, FULL), 0, "1", {"gpu_percent": 75.0, "gpu_memory_bytes": 12 * GB}),
        ((replace(V100, error=15),), 0, None, {}),
        ((V100,), 9, None, {}),
        ((), 0, None, {}),
    ],
    ids=["two", "one of two", "lost", "no driver", "none"],
)  # fmt: skip
def test_what_a_step_says_of_the_gpus(
    gpus: tuple[Gpu, ...], init: int, visible: str | None, said: dict[str, float], tmp_path: Path
) -> None:
    """As nvidia-ml-py reads them from the library; nothing where nothing can be read, and no 0."""
    folder = machine(tmp_path, *gpus, init=init)
    own = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key}
    own |= {"LD_LIBRARY_PATH": str(folder), "NVML_MACHINE": str(folder / MACHINE)}
    own |= {"PYTHONPATH": str(ROOT), **({"CUDA_VISIBLE_DEVICES": visible} if visible else {})}
    text = subprocess.run(
        [sys.executable, "-c", USES], env=own, check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(text) == said
    event = contract.parse(event_lines.line("step", "step 1", step=1, **json.loads(text)))
    assert event is not None
    assert (event.gpu_percent, event.gpu_memory_bytes) == (
        said.get("gpu_percent"),
        said.get("gpu_memory_bytes"),
    )
