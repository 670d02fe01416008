"""Smoke runs of a program that only plays at training: how they go, and how they end."""

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
from tests import ROOT
from tests.prove.proving import proven
from tests.prove.reading import TRAINER

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TRAINS = """\
#!/bin/sh
for word; do
  value=${word#*=}
  case $word in
    --records=*) records=$value ;; --job-dir=*) job=$value ;; --steps=*) steps=$value ;;
    --batch=*) batch=$value ;; --checkpoint-every=*) every=$value ;;
  esac
done
say() { echo "{\\"event\\": \\"$1\\", \\"step\\": $2, \\"loss\\": $((1000 / ($2 + 1)))}"; }
save() { mkdir -p "$job" && echo "$step" > "$job/saved" && say checkpoint "$step"; }
trap 'save; exit 143' TERM
echo begun
ls "$records"/*.tfrecord > /tmp/records || exit 3
held=$(head -c "$batch" /dev/zero | tr '\\0' x)
step=0
if [ -f "$job/saved" ]; then step=$(cat "$job/saved"); say resumed "$step"; fi
while [ "$step" -lt "$steps" ]; do
  step=$((step + 1))
  say step "$step"
  if [ $((step % every)) = 0 ]; then save; fi
  usleep 20000
done
"""
"""A program that keeps to the contract and starts in no time: it holds its batch in memory, waits a
fiftieth of a second for each step, and its loss falls."""
SHORT = Workload(steps=60, batch=16, checkpoint_every=20)
CHECKS = (training.CHECK, stopping.CHECK)


@pytest.fixture(scope="module")
def trainer(
    engine: Engine, busybox: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An image with that program."""
    folder, tag = tmp_path_factory.mktemp("trainer"), f"smoke-test:{os.getpid()}"
    (folder / "busybox").write_bytes(busybox.read_bytes())
    (folder / "train").write_text(TRAINS)
    (folder / "Dockerfile").write_text(
        "FROM scratch\nCOPY --chmod=755 busybox train /bin/\n"
        'RUN ["/bin/busybox", "--install", "/bin"]\nUSER 1000:1000\nENTRYPOINT ["/bin/train"]\n'
    )
    buildx.build(engine, BuildRequest(folder / "Dockerfile", folder, (tag,)))
    yield tag
    engine.client.images.remove(tag, force=True)


@pytest.fixture
def prove(engine: Engine, tmp_path: Path) -> Callable[..., tuple[Receipt, str]]:
    """Proves an image by these checks: the receipt that was written, and the log."""

    def run(image: str, *checks: Check, **more: Any) -> tuple[Receipt, str]:
        more = {"workload": SHORT, **more}
        receipt = proven(engine, image, "cpu", tmp_path, Suite(TRAINER.name, checks), **more)
        return receipt, (tmp_path / smoke.LOG).read_text()

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


def test_a_good_image_gets_a_receipt_and_leaves_nothing(
    engine: Engine, trainer: str, prove: Callable[..., Any]
) -> None:
    events: list[Event] = []
    receipt, log = prove(trainer, *CHECKS, on_event=events.append, inputs="abc")
    assert receipt.problems == () and receipt.passed
    assert receipt.image_id == engine.client.images.get(trainer).id
    assert (receipt.target, receipt.device, receipt.inputs) == ("cpu", "CPU", "abc")
    assert not TRAINER.holds(receipt, receipt.image_id), "not all of its checks were asked"
    seen = check(receipt, "training").seen
    first, second = seen["first"], seen["second"]
    assert isinstance(first, dict) and isinstance(second, dict)
    assert first["exit_code"] == 137
    assert second["resumed_at"] == first["last_checkpoint"]
    assert second["last_step"] == seen["steps"]
    done = [event.name for event in events if isinstance(event, StepDone)]
    assert done == [f"cpu: {one.name}" for one in CHECKS]
    assert any(isinstance(e, StepProgress) and e.total == seen["steps"] for e in events)
    assert '"event": "resumed"' in log
    assert left(engine) == []


def test_a_shell_as_the_entry_point_that_keeps_sigterm_for_itself(
    engine: Engine, trainer: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    tag = f"smoke-test:{os.getpid()}-shell"
    entry = 'ENTRYPOINT ["sh", "-c", "train \\"$@\\"; exit $?", "sh"]'
    (tmp_path / "Dockerfile").write_text(f"FROM {trainer}\n{entry}\n")
    buildx.build(engine, BuildRequest(tmp_path / "Dockerfile", tmp_path, (tag,)))
    try:
        receipt, log = prove(tag, *CHECKS, limits=Limits(grace_seconds=1))
    finally:
        engine.client.images.remove(tag, force=True)
    assert "== exit code" in log
    assert check(receipt, "training").passed, "only a service's SIGTERM shows it"
    (problem,) = messages(receipt, "stopping")
    assert problem.startswith("SIGTERM does not end the trainer: 1 s later it was at step ")
    assert left(engine) == []


@pytest.mark.parametrize(
    ("workload", "limits", "problem"),
    [
        (
            Workload(60, 300_000_000, 20),
            Limits(memory=50 * 1024**2),
            "needed more memory than its limit",
        ),
        (Workload(9999, 16, 9999), Limits(training_seconds=1), "was not done after 1 s"),
    ],
)
def test_a_trainer_that_needs_too_much_is_ended(
    trainer: str, prove: Callable[..., Any], workload: Workload, limits: Limits, problem: str
) -> None:
    receipt, _ = prove(trainer, training.CHECK, limits=limits, workload=workload)
    (said,) = messages(receipt, "training")
    assert said.startswith(f"the trainer {problem}")


def test_one_that_is_over_too_soon_runs_longer(trainer: str, prove: Callable[..., Any]) -> None:
    receipt, _ = prove(trainer, training.CHECK, workload=Workload(20, 16, 20))
    assert receipt.problems == ()
    assert check(receipt, "training").seen["steps"] in (80, 320)


def test_a_run_that_cannot_begin_leaves_nothing(
    engine: Engine, trainer: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(OutsideError, match="the engine has no image training:nothing") as caught:
        prove("training:nothing", *CHECKS)
    assert caught.value.fix == "run `builder build` first"
    spec = image_yaml.load(ROOT, "cpu")
    subject = Subject(trainer, spec, compatibility.resolve(spec), {}, tmp_path / "no-records")
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
from builder.prove.checks import training
from builder.prove.session import Workload
from builder.prove.suite import Suite
root = Path({str(ROOT)!r})
spec = image_yaml.load(root, "cpu")
def tell(event):
    print(type(event).__name__, event.name, getattr(event, "line", ""), flush=True)
subject = Subject(sys.argv[1], spec, compatibility.resolve(spec), {{}}, smoke.RECORDS)
suite, folder, work = Suite("trainer", (training.CHECK,)), Path(sys.argv[2]), Workload(steps=9999)
smoke.smoke(discovery.connect(Settings()), subject, suite, folder, on_event=tell, workload=work)
"""


@contextlib.contextmanager
def in_training(image: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that does a smoke run, when its trainer has begun."""
    command = [sys.executable, "-c", RUN, image, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("StepLog cpu: training begun"):
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
    engine: Engine, trainer: str, tmp_path: Path, number: signal.Signals
) -> None:
    with in_training(trainer, tmp_path) as process:
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
