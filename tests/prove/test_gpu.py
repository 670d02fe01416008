"""The check `gpu`: what follows from what was measured, and what a machine without the GPU says.

No GPU was at hand. The driver's files and the engine's answer are stand-ins, and so is the program
that runs in a real container: it prints what a hook does (tests/frameworks/test_on_gpu.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from builder import contract
from builder.audit.audited import gpu_named
from builder.cli.group import app
from builder.core.errors import InputError, OutsideError
from builder.engine import BuildRequest, Engine, buildx, gpus
from builder.engine.gpus import MachineGpu
from builder.facts.devices import GIB
from builder.prove import suites
from builder.prove.checks import gpu
from builder.prove.image import RanOnGpu
from builder.prove.judge import Run
from builder.prove.receipts import Defect
from builder.prove.session import Sandbox
from tests.prove.reading import SITE

MEASURED = {"devices": 1, "capability": "7.0", "peak": 5 * GIB, "steps": 20, "seconds": 0.12}
SAID = {"step": "train", "needs": 5.1 * GIB, "least_seconds": 0.1}
CARD, DRIVER = "Tesla V100-SXM2-16GB", "550.54.15"
INFORMATION = "Model: \t\t {}\nIRQ:   \t\t 42\nGPU UUID: \t GPU-??\nDevice Minor: \t 0\n"
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC:\n"
)


def judged(
    run: Run | dict[str, Any], said: dict[str, Any] | None = None, batch: int = 0
) -> tuple[str, str]:
    """The kind of the first answer, and what it says."""
    run = run if isinstance(run, Run) else Run(0, 9.0, answer={"gpu": {**MEASURED, **run}})
    defects, seen = gpu.judge(RanOnGpu(run, CARD, DRIVER, batch), SAID if said is None else said)
    assert all(defect.fix and not defect.fix.startswith("see build/") for defect in defects)
    assert (seen["device"], seen["driver"]) == (CARD, DRIVER)
    if not defects:
        return "", str(seen["note"])
    assert type(defects[0]) is Defect or seen["note"], "a finding refuses no receipt"
    return type(defects[0]).__name__, defects[0].message


def test_what_was_seen_stands_beside_what_was_said() -> None:
    assert judged({})[1] == (
        f"{CARD}, driver {DRIVER}: 5.00 GiB, 5.10 said; 20 steps, each 120 ms, at least 100 said"
    )
    kind, note = judged({"seconds": 0, "steps": 0}, {})
    assert (kind, note) == ("", f"{CARD}, driver {DRIVER}: 5.00 GiB")
    assert judged({"peak": int(5.1 * 1.15 * GIB)})[0] == "", "within the margin"


def test_more_memory_than_was_said_is_a_finding() -> None:
    kind, message = judged({"peak": 7 * GIB})
    assert (kind, message) == (
        "Finding",
        f"{CARD}, driver {DRIVER}: the program took 7.00 GiB, 5.10 said: that is more than the "
        "margin of 15%",
    )
    assert judged({"peak": 7 * GIB}, {})[0] == "", "nothing said"
    assert judged({"peak": 7 * GIB}, SAID | {"uncompiled": True})[0] == "", "it may need more"
    small = {"needs": 2**20, "step": "train"}
    assert judged({"peak": 200 * 2**20}, small)[0] == "", "libraries take workspaces"


def test_a_step_that_is_faster_than_its_least_time_refutes_that() -> None:
    kind, message = judged({"seconds": 0.05})
    assert kind == "Finding" and message.endswith("a step took 50 ms, at least 100 said")


def test_the_programs_own_lines_tell_where_a_call_takes_several_steps() -> None:
    lines = [
        contract.event({"event": "step", "step": step, "examples_per_second": rate})
        for step, rate in ((10, 100.0), (20, 480.0))
    ]
    events = tuple(filter(None, lines))
    run = Run(0, 9.0, events, answer={"gpu": {**MEASURED, "steps": 2, "seconds": 1.5}})
    assert judged(run, {}, batch=48)[1].endswith("; 20 steps, each 100 ms")
    assert judged(run, {})[1].endswith("; 20 steps"), "the batch is not known"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (Run(1, 9.0, tail=("CUDA error: no kernel image is available",)),
         f"the program on {CARD} failed with exit code 1: CUDA error: no kernel image is avail"),
        (Run(137, 900.0, timed_out=True), f"the program on {CARD} was not done after 900 s"),
        (Run(0, 9.0), f"the program ended well, and was not seen to use the GPU: {CARD}, driver"),
        ({"peak": 0}, "the program ended well, and was not seen to use the GPU"),
        ({"capability": ""}, "the program ended well, and was not seen to use the GPU"),
        ({"devices": 0, "peak": 0}, "the framework sees no GPU, and computed on the CPU, although"),
        ({"failed": "RuntimeError: lost"}, f"{CARD}, driver {DRIVER}: not measured: RuntimeError"),
        ({"peak": "much"}, f"{CARD}, driver {DRIVER}: not measured: Input should be a valid int"),
        (Run(0, 1.0, answer={"gpu": [1]}), f"{CARD}, driver {DRIVER}: not measured: "),
    ],
)  # fmt: skip
def test_a_run_that_shows_nothing_refuses_the_image(run: Run | dict[str, Any], says: str) -> None:
    kind, message = judged(run)
    assert kind == "Defect" and message.startswith(says)


def test_a_receipt_of_it_is_one_of_the_same_suite_and_holds_more() -> None:
    assert suites.ON_GPU.name == suites.IMAGE.name
    for accelerator in ("V100", "CPU", "RTX-5090", "8.6"):
        more = suites.ON_GPU.required(accelerator).keys() - suites.IMAGE.required(accelerator)
        assert more == {"gpu"}


# --- the machine ----------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a machine with GPUs of these names: an engine's client."""
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "nvidia")

    def make(*names: str, version: str = VERSION, runtime: str = "nvidia") -> Any:
        for index, name in enumerate(names):
            place = tmp_path / f"nvidia/gpus/0000:0{index}:00.0"
            place.mkdir(parents=True)
            (place / "information").write_text(INFORMATION.format(name))
        if version:
            (tmp_path / "nvidia").mkdir(exist_ok=True)
            (tmp_path / "nvidia/version").write_text(version)
        return lambda: SimpleNamespace(info=lambda: {"Runtimes": {"runc": {}, runtime: {}}})

    return make


def test_the_first_gpu_of_the_name_is_taken(machine: Callable[..., Any]) -> None:
    client = machine("NVIDIA L40", CARD, "Tesla V100S-PCIE-32GB", "NVIDIA GeForce RTX 5090")
    assert gpus.driver() == DRIVER
    for name, index in (("v100", "1"), ("rtx-5090", "3"), ("8.9", "0")):
        assert gpu.device(client, gpu_named(name)).id == index
    with pytest.raises(OutsideError) as error:
        gpu.device(client, gpu_named("l4"))
    assert str(error.value).startswith(
        f"--on-gpu: the image is judged for L4 (8.9), and this machine has NVIDIA L40, {CARD}, "
    )
    assert error.value.fix == "take a machine with L4, or name this GPU: --gpu"


@pytest.mark.parametrize(
    ("names", "more", "says"),
    [
        ((), {"version": ""}, "this machine has no driver of NVIDIA's"),
        ((), {}, f"driver {DRIVER} is here, and no GPU"),
        ((CARD,), {"runtime": "other"}, "the engine gives no GPU to containers: it has no runtime"),
    ],
)
def test_a_machine_says_what_it_lacks(
    names: tuple[str, ...], more: dict[str, str], says: str, machine: Callable[..., Any]
) -> None:
    with pytest.raises(OutsideError, match=says) as error:
        gpu.device(machine(*names, **more), gpu_named("v100"))
    assert error.value.fix and error.value.exit_code == 3


def test_nobody_is_asked_where_no_gpu_is_named() -> None:
    with pytest.raises(InputError, match="nothing says for which GPU"):
        gpu.device(lambda: pytest.fail("asked"), None)


def test_a_driver_that_says_nothing_has_no_version(machine: Callable[..., Any]) -> None:
    machine(version="NVRM version: \n")
    assert gpus.driver() == ""
    assert gpus.requested(()) == {}
    (request,) = gpus.requested(["1"])["device_requests"]
    assert request["DeviceIDs"] == ["1"] and request["Capabilities"] == [["gpu"]]


# --- in a container -------------------------------------------------------------------------------

TAG = "prove-on-gpu-test:latest"
REQUESTED = gpus.requested
SAYS = f"""test "$TRAINING_ACCELERATOR" = GPU:1 && echo '{json.dumps({"gpu": MEASURED})}'"""


@pytest.fixture
def image(
    engine: Engine,
    context: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., tuple[int, dict[str, Any], str]]]:
    """Proves an image with a framework on a machine with a V100: exit code, check, error."""
    library = f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so"
    lines = f"COPY library /{library}\nUSER 1000:1000\n".replace("//", "/")
    folder = context(lines, {"library": "\x7fELF"})
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (TAG,)))
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "nvidia")
    place = tmp_path / "nvidia/gpus/0000:00:04.0"
    place.mkdir(parents=True)
    (place / "information").write_text(INFORMATION.format(CARD))
    (tmp_path / "nvidia/version").write_text(VERSION)
    monkeypatch.setattr(gpus, "require", lambda _: (MachineGpu("0", CARD),))

    def prove(*options: str, given: bool = False) -> tuple[int, dict[str, Any], str]:
        requested = REQUESTED if given else lambda _: {}  # the engine has no GPU to give
        monkeypatch.setattr(gpus, "requested", requested)
        ended = CliRunner().invoke(app, ["prove", TAG, "--json", "--on-gpu", *options])
        code = getattr(ended.exception, "exit_code", ended.exit_code)
        checks = json.loads(ended.stdout)["checks"] if ended.stdout else []
        by_name = {check["check"]: check for check in checks}
        return code, by_name, str(ended.exception)

    yield prove
    engine.client.images.remove(TAG, force=True)


@pytest.mark.engine
def test_a_program_runs_in_a_container_and_is_compared(
    image: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    _, checks, _ = image("--gpu", "v100", "--run", SAYS)
    assert checks["gpu"]["status"] == "passed", checks["gpu"]
    note = f"{CARD}, driver {DRIVER}: 5.00 GiB; 20 steps, each 120 ms"
    assert checks["gpu"]["note"] == note
    assert checks["start"]["status"] == "passed", "without a GPU the command fails"
    fails = f"test -z $TRAINING_ON_GPU || exit 9; {SAYS}"
    code, checks, _ = image("--gpu", "v100", "--run", fails)
    assert code == 4 and checks["gpu"]["status"] == checks["start"]["status"] == "refused"
    (problem,) = checks["gpu"]["problems"]
    assert problem["message"].startswith(f"the program on {CARD} failed with exit code 9")
    _, checks, _ = image("--gpu", "7.0", "--run", SAYS)
    assert checks["gpu"]["note"] == note
    assert checks["compile"]["note"] == "not asked: nothing is known of 7.0's memory and speed"
    code, checks, error = image("--gpu", "v100", "--run", SAYS.replace('"7.0"', '"7.5"'))
    assert (code, checks) == (3, {}), "nothing is said of the image"
    assert error.startswith(
        f"--on-gpu: the image is judged for V100 (7.0), and this machine has {CARD} (7.5)"
    )


@pytest.mark.engine
def test_what_cannot_be_run_there_is_said_before_it_is(
    image: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    code, _, error = image("--gpu", "v100")
    assert (code, error) == (2, f"--on-gpu: nobody knows which command of {TAG} trains, and ends")
    assert image("--run", "true")[0] == 2
    code, _, error = image("--gpu", "v100", "--topology", "v5e:2x2")
    assert (code, error) == (2, "--on-gpu and --topology are two accelerators")
    code, _, error = image("--gpu", "v100", "--run", "true", given=True)
    assert code == 3 and error.startswith("--on-gpu: the engine gives no container a GPU: "), error


@pytest.mark.engine
def test_a_container_with_a_gpu_is_told_that_it_has_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, image: object
) -> None:
    monkeypatch.setattr(gpus, "requested", lambda _: {})
    with (
        Sandbox(engine.client, engine.client.images.get(TAG)) as sandbox,
        sandbox.container(["true"], {}, gpu="0") as container,
    ):
        container.reload()
        variables, host = container.attrs["Config"]["Env"], container.attrs["HostConfig"]
        assert "TRAINING_ACCELERATOR=GPU:1" in variables
        assert not any(each.startswith("NVIDIA_VISIBLE_DEVICES=") for each in variables)
        assert host["Memory"] == sandbox.limits.memory_with_gpu
        assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"]
