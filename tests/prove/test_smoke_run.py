"""Smoke runs of the real CPU image and of copies of it that are broken on purpose."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.config import compatibility, image_yaml
from builder.core.errors import OutsideError
from builder.core.events import Event, StepDone, StepProgress
from builder.engine import BuildRequest, Engine, buildx, containers
from builder.prove import receipts, smoke
from builder.prove.checks import stopping, training
from builder.prove.image import Subject
from builder.prove.receipts import CheckResult, Receipt
from builder.prove.session import LABEL, Limits, Workload
from builder.prove.suite import Check, Suite
from tests.prove.proving import proven
from tests.prove.reading import TRAINER

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SHORT = Workload(steps=200, batch=16, checkpoint_every=20)
"""Half of what a smoke run trains: enough to be killed, and to learn where it matters."""


@pytest.fixture(scope="session")
def prove(engine: Engine) -> Callable[..., tuple[Receipt, str]]:
    """Proves an image by these checks, else by all: the receipt that was written, and the log."""

    def run(image: str, folder: Path, *checks: Check, **more: Any) -> tuple[Receipt, str]:
        suite = Suite(TRAINER.name, checks) if checks else TRAINER
        receipt = proven(engine, image, "cpu", folder, suite, **more)
        return receipt, (folder / smoke.LOG).read_text()

    return run


def left(engine: Engine) -> list[str]:
    """Names of smoke runs' containers and volumes that are there now, those of this process."""
    filters: dict[str, Any] = {"label": f"{containers.OWNER}={containers.owner(os.getpid())}"}
    there: list[Any] = engine.client.containers.list(all=True, filters=filters, ignore_removed=True)
    there += engine.client.volumes.list(filters=filters)
    return [str(thing.name) for thing in there]


def check(receipt: Receipt, name: str) -> CheckResult:
    return next(check for check in receipt.checks if check.name == name)


def messages(receipt: Receipt, name: str) -> list[str]:
    return [problem.message for problem in check(receipt, name).problems]


def test_a_good_image_gets_a_receipt_that_holds(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    events: list[Event] = []
    receipt, log = prove(cpu_image, tmp_path, on_event=events.append, inputs="abc")
    assert receipt.problems == ()
    assert receipt.passed
    image = engine.client.images.get(cpu_image)
    assert TRAINER.holds(receipt, str(image.id))
    assert (receipt.target, receipt.device, receipt.inputs) == ("cpu", "CPU", "abc")

    training = check(receipt, "training").seen
    first, second = training["first"], training["second"]
    assert isinstance(first, dict) and isinstance(second, dict)
    assert first["exit_code"] == 137
    assert second["resumed_at"] == first["last_checkpoint"]
    assert second["last_step"] == training["steps"]
    assert training["accuracy"] >= 0.97  # type: ignore[operator]  # of the held-out digits
    model = check(receipt, "outputs").seen["model"]
    assert isinstance(model, dict)
    assert model["outputs"]["probabilities"] == [4, 10]  # type: ignore[call-overload,index]
    assert check(receipt, "outputs").seen["owners"]["uid"] == 1000  # type: ignore[call-overload,index]

    done = [event.name for event in events if isinstance(event, StepDone)]
    assert done == [f"cpu: {name}" for name in TRAINER.required("CPU")]
    assert receipt.suite == TRAINER.name
    assert any(isinstance(e, StepProgress) and e.total == training["steps"] for e in events)
    assert '"event": "resumed"' in log
    assert left(engine) == []


def test_a_shell_as_the_entry_point_that_keeps_sigterm_for_itself(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    command, tag = 'python -m trainer.task \\"$@\\"; exit $?', f"smoke-test:{os.getpid()}"
    entry = f'ENTRYPOINT ["sh", "-c", "{command}", "sh"]'
    (tmp_path / "Dockerfile").write_text(f"FROM {cpu_image}\n{entry}\n")
    buildx.build(engine, BuildRequest(tmp_path / "Dockerfile", tmp_path, (tag,)))
    checks, limits = (training.CHECK, stopping.CHECK), Limits(grace_seconds=5)
    try:
        receipt, log = prove(tag, tmp_path, *checks, limits=limits, workload=SHORT)
    finally:
        engine.client.images.remove(tag, force=True)
    assert "== exit code" in log
    assert check(receipt, "training").passed, "only a service's SIGTERM shows it"
    (problem,) = messages(receipt, "stopping")
    assert problem.startswith("SIGTERM does not end the trainer: 5 s later it was at step ")
    assert not TRAINER.holds(receipt, receipt.image_id)
    assert left(engine) == []


def test_a_trainer_that_needs_too_much_is_ended_and_one_that_is_over_too_soon_runs_longer(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    memory = Limits(memory=150 * 1024**2)
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, limits=memory)
    assert messages(receipt, "training") == [
        "the trainer needed more memory than its limit and was killed"
    ]
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, limits=Limits(training_seconds=1))
    assert messages(receipt, "training")[0].startswith("the trainer was not done after 1 s")
    short = Workload(steps=20, batch=16, checkpoint_every=20)
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, workload=short)
    assert receipt.problems == ()
    assert check(receipt, "training").seen["steps"] in (80, 320)
    assert left(engine) == []


def test_a_run_that_cannot_begin_leaves_nothing(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(OutsideError, match="the engine has no image training:nothing") as caught:
        prove("training:nothing", tmp_path)
    assert caught.value.fix == "run `builder build` first"
    spec = image_yaml.load(ROOT, "cpu")
    subject = Subject(cpu_image, spec, compatibility.resolve(spec), {}, tmp_path / "no-records")
    with pytest.raises(FileNotFoundError):
        smoke.smoke(engine, subject, TRAINER, tmp_path)
    assert left(engine) == []


RUN = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from pathlib import Path
from builder.engine import discovery
from builder.core.settings import Settings
from builder.prove import smoke
from builder.prove.image import Subject
from builder.config import image_yaml, compatibility
from builder.prove import suites
root = Path({str(ROOT)!r})
spec = image_yaml.load(root, "cpu")
def tell(event):
    print(type(event).__name__, event.name, getattr(event, "line", ""), flush=True)
subject = Subject(sys.argv[1], spec, compatibility.resolve(spec), {{}}, smoke.RECORDS)
suite, folder = suites.of_image({{}}), Path(sys.argv[2])
smoke.smoke(discovery.connect(Settings()), subject, suite, folder, on_event=tell)
"""


@contextlib.contextmanager
def in_training(image: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that does a smoke run, when its trainer has begun."""
    command = [sys.executable, "-c", RUN, image, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("StepLog cpu: training TensorFlow "):
                    break
            yield process
        finally:
            process.kill()


def of(engine: Engine, process: subprocess.Popen[str]) -> set[str]:
    """Names of the containers and volumes that a process made: other runs may be going on."""
    filters: dict[str, Any] = {"label": LABEL}
    there: list[Any] = engine.client.containers.list(all=True, filters=filters, ignore_removed=True)
    there += engine.client.volumes.list(filters=filters)
    owner = f"{socket.gethostname()}:{process.pid}:"
    names = set()
    for thing in there:
        labels = getattr(thing, "labels", None) or thing.attrs["Labels"]
        if labels[containers.OWNER].startswith(owner):
            names.add(thing.name)
    return names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(
    engine: Engine, cpu_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    with in_training(cpu_image, tmp_path) as process:
        used = of(engine, process)
        assert used, "nothing runs: the test proves nothing"
        containers.sweep(engine.client, LABEL)
        assert used <= of(engine, process), "what a live run uses is left alone"
        process.send_signal(number)
        assert process.wait(60) != 0
    if number == signal.SIGKILL:
        assert of(engine, process), "nothing was left: the test proves nothing"
        containers.sweep(engine.client, LABEL)  # as the next run does
    assert of(engine, process) == set()
    assert not (tmp_path / receipts.FILE).exists()
