"""Smoke runs of the real CPU image and of copies of it that are broken on purpose."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.core.errors import CheckFailed, OutsideError
from builder.core.events import Event, StepDone, StepProgress
from builder.engine import BuildRequest, Engine, containers
from builder.lock import model
from builder.prove import receipts, smoke
from builder.prove.bench import LABEL, Limits, Subject, Workload
from builder.prove.receipts import CheckResult, Receipt
from builder.spec import catalogue, compatibility
from builder.tensorflow.suite import TRAINER

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SMALL = SimpleNamespace(
    compressed_bytes=300_000_000,
    unpacked_bytes=900_000_000,
    budget_bytes=600_000_000,
    packages=(("tensorflow 2.21.0", 200_000_000), ("numpy 2.1.0", 20_000_000)),
)
"""Sizes within their budget; the image itself has others."""
SHORT = Workload(steps=200, batch=16, checkpoint_every=20)
"""Half of what a smoke run trains: enough to be killed, and to learn where it matters."""
GIVEN = os.environ.get("SMOKE_TEST_IMAGE", "")
"""A training image to take instead of the repository's own: its packages are not compared."""


@pytest.fixture(scope="session")
def cpu_image(engine: Engine) -> str:
    """The repository's image for the CPU, as `builder build` makes it."""
    if GIVEN:
        return GIVEN
    command = [sys.executable, "-c", "from builder.cli import main; main()", "build", "cpu"]
    subprocess.run(command, cwd=ROOT, check=True)
    return "training:cpu"


@pytest.fixture(scope="session")
def prove(engine: Engine) -> Callable[..., tuple[Receipt, str]]:
    """Runs a smoke test: the receipt that was written, and the log."""

    def run(
        image: str, folder: Path, inputs: str = "", sizes: Any = SMALL, **more: Any
    ) -> tuple[Receipt, str]:
        spec = catalogue.load(ROOT, "cpu")
        packages = (
            {} if GIVEN else {p.name: p.version for p in model.read(ROOT, "cpu").packages.values()}
        )
        with contextlib.suppress(CheckFailed):
            stack = compatibility.resolve(spec)
            subject = Subject(
                image, spec, stack, packages, smoke.RECORDS, inputs=inputs, sizes=sizes
            )
            smoke.smoke(engine, subject, TRAINER, folder, **more)
        receipt = receipts.read(folder / receipts.FILE)
        assert receipt is not None
        return receipt, (folder / smoke.LOG).read_text()

    return run


@pytest.fixture
def broken(engine: Engine, cpu_image: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes an image of the good one: more instructions, and a program put before the trainer."""
    made: list[str] = []

    def make(instructions: str = "", program: str = "") -> str:
        context = tmp_path / f"context{len(made)}"
        context.mkdir()
        tag = f"smoke-test:{tmp_path.name.strip('-_').lower()}-{os.getpid()}-{len(made)}"
        lines = [f"FROM {cpu_image}", instructions]
        if program:
            (context / "broken.py").write_text(f"import sys\n{program}\n{TRAIN}")
            lines += ["COPY broken.py /app/broken.py", 'ENTRYPOINT ["python", "/app/broken.py"]']
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        engine.build(BuildRequest(context / "Dockerfile", context, (tag,)))
        made.append(tag)
        return tag

    yield make
    for tag in made:
        engine.client.images.remove(tag, force=True)


TRAIN = """
sys.path.insert(0, "/app")
from trainer.task import main
sys.exit(main())
"""


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
    found = engine.client.images.get(cpu_image)
    assert TRAINER.holds(receipt, str(found.id))
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


@pytest.mark.parametrize(
    ("program", "check_name", "message"),
    [
        pytest.param(
            """
            import trainer.loop.inner
            train, made = trainer.loop.inner.Trainer.train, []
            def fail(*a):
                if len(made) == 3:
                    raise RuntimeError("shapes (3, 2) and (4,) do not match")
                made.append(train(*a))
                return made[-1]
            trainer.loop.inner.Trainer.train = fail
            sys.argv.append("--steps-per-loop=1")
            """,
            "training",
            "the trainer failed with exit code 1 after step 3: RuntimeError: shapes (3, 2) and",
            id="raises at step 3",
        ),
        pytest.param(
            'sys.argv.append("--learning-rate=3e38")',
            "training",
            "the trainer ended with a loss that is not finite",
            id="gives NaN",
        ),
        pytest.param(
            """
            import trainer.model.export
            trainer.model.export.export = lambda *a: None
            """,
            "outputs",
            "the trainer wrote no SavedModel: there is no saved_model.pb in /smoke/job/0/model",
            id="writes no SavedModel",
        ),
        pytest.param(
            """
            import urllib.request
            urllib.request.urlopen("https://weights.example/densenet.h5")
            """,
            "training",
            "the trainer needs the network, and has none: urllib.error.URLError",
            id="needs the network",
        ),
        pytest.param(
            'open("/app/cache.bin", "w")',
            "training",
            "the trainer writes outside its job folder: /app/cache.bin",
            id="writes outside its job folder",
        ),
        pytest.param(
            """
            import trainer.job.checkpoints
            trainer.job.checkpoints.Checkpoints.steps = lambda self: []
            """,
            "training",
            "the trainer ignored its checkpoint: killed at step",
            id="ignores its checkpoint",
        ),
        pytest.param(
            'sys.argv.append("--learning-rate=1e-12")',
            "training",
            "the loss does not fall:",
            id="does not learn",
        ),
    ],
)
def test_a_trainer_that_is_broken(
    engine: Engine,
    broken: Callable[..., str],
    prove: Callable[..., Any],
    tmp_path: Path,
    program: str,
    check_name: str,
    message: str,
) -> None:
    image = broken(program='sys.path.insert(0, "/app")\n' + textwrap.dedent(program))
    receipt, log = prove(image, tmp_path, workload=SHORT)
    found = messages(receipt, check_name)
    assert len(found) == 1, found
    assert found[0].startswith(message)
    assert not TRAINER.holds(receipt, receipt.image_id)
    assert check(receipt, "loader").passed, "the other checks ran as well"
    assert check(receipt, "contents").passed
    assert "== exit code" in log
    assert left(engine) == []


def test_an_image_that_runs_as_root_with_secrets_and_no_entry_point(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    key = "-----BEGIN " + "PRIVATE KEY-----"
    token = "ghp_" + "a" * 36
    image = broken(
        f"USER 0\nENV TOKEN={token}\nLABEL note=fine\n"
        f"RUN umask 077; mkdir /secret; (echo '{key}'; head -c 300 /dev/zero | tr '\\0' A) "
        "> /secret/key.pem\n"
        "RUN printf '%s_%036d' ghp 0 > /secret/gone\nRUN rm /secret/gone\n"
        "ENTRYPOINT []"
    )
    receipt, _ = prove(image, tmp_path)
    found = [re.sub(r"step \d+", "step N", line) for line in messages(receipt, "contents")]
    found = [re.sub(r"sha256:\w+", "DIGEST", line) for line in found]
    assert sorted(found) == [
        "layer DIGEST holds a GitHub token: /secret/gone; a later layer hides it",
        "the image holds a private key: /secret/key.pem",
        "the image runs as root: its outputs would belong to root",
        "the image's environment (TOKEN) holds a GitHub token",
        "the image's history (step N) holds a GitHub token",
    ]
    assert messages(receipt, "training") == [
        "the image has no ENTRYPOINT: a training service would start nothing"
    ]
    asked = list(TRAINER.required("CPU"))
    asked = asked[: asked.index("training") + 1]
    assert [c.name for c in receipt.checks] == asked, "no run ended well: nothing to look at"


def test_outputs_of_root_are_seen(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    receipt, _ = prove(broken("USER 0"), tmp_path, workload=SHORT)
    assert check(receipt, "training").passed
    assert messages(receipt, "outputs")[0].startswith("/smoke/job/0/")
    assert "belongs to uid 0" in messages(receipt, "outputs")[0]


def test_a_stub_libcuda_on_the_loaders_path(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so.1"
    image = broken(
        f"USER 0\nRUN mkdir -p {Path(stub).parent} && cp /lib/x86_64-linux-gnu/libz.so.1 {stub}\n"
        f"ENV LD_LIBRARY_PATH={Path(stub).parent}\nUSER 1000\nENTRYPOINT []"
    )
    receipt, _ = prove(image, tmp_path)
    assert messages(receipt, "loader") == [
        f"a libcuda is on the loader's path: {stub}; it shadows the driver's, and TensorFlow sees "
        "no GPU"
    ]


def test_an_environment_that_names_what_is_not_in_the_image(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    image = broken(
        "ENV LD_PRELOAD=/usr/lib/libtcmalloc.so.4 XLA_FLAGS=/etc/xla-flags TF_XLA_FLAG=--x\n"
        "ENTRYPOINT []"
    )
    receipt, _ = prove(image, tmp_path)
    assert [line.partition(":")[0] for line in messages(receipt, "environment")] == [
        "nothing reads TF_XLA_FLAG",
        "XLA_FLAGS=/etc/xla-flags is read as the name of a file with flags, and there is none",
        "LD_PRELOAD names /usr/lib/libtcmalloc.so.4, which cannot be loaded (cannot open shared "
        "object file)",
    ]


def test_a_shell_as_the_entry_point_that_keeps_sigterm_for_itself(
    engine: Engine, broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    command = 'python -m trainer.task \\"$@\\"; exit $?'
    image = broken(f'ENTRYPOINT ["sh", "-c", "{command}", "sh"]')
    receipt, _ = prove(image, tmp_path, limits=Limits(grace_seconds=5), workload=SHORT)
    assert check(receipt, "training").passed, "only a service's SIGTERM shows it"
    (found,) = messages(receipt, "stopping")
    assert found.startswith("SIGTERM does not end the trainer: 5 s later it was at step ")
    assert not TRAINER.holds(receipt, receipt.image_id)
    assert left(engine) == []


def test_rights_that_let_a_job_change_the_image(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    image = broken(
        "USER 0\nRUN chmod u+s /usr/bin/env && chmod o+w /usr/local/bin && chown -R 1000 /app\n"
        "USER 1000:1000\nENTRYPOINT []"
    )
    receipt, _ = prove(image, tmp_path)
    rising, writable, program = messages(receipt, "permissions")
    assert rising == "programs that run with another user's rights: /usr/bin/env"
    assert writable == "everybody may write to what the image runs: /usr/local/bin"
    assert program.startswith("the image's user 1000:1000 can overwrite its program: /app, /app/")


def test_too_little_memory_is_named(
    cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    receipt, _ = prove(cpu_image, tmp_path, limits=Limits(memory=150 * 1024**2))
    assert messages(receipt, "training") == [
        "the trainer needed more memory than its limit and was killed"
    ]


def test_a_trainer_that_takes_too_long_is_ended(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    began = time.monotonic()
    receipt, _ = prove(cpu_image, tmp_path, limits=Limits(training_seconds=1))
    assert messages(receipt, "training")[0].startswith("the trainer was not done after 1 s")
    assert time.monotonic() - began < 60
    assert left(engine) == []


def test_a_run_that_is_over_too_soon_is_made_longer(
    cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    receipt, _ = prove(
        cpu_image, tmp_path, workload=Workload(steps=20, batch=16, checkpoint_every=20)
    )
    assert receipt.problems == ()
    assert check(receipt, "training").seen["steps"] in (80, 320)


def test_a_run_that_cannot_begin_leaves_nothing(
    engine: Engine, cpu_image: str, tmp_path: Path
) -> None:
    spec = catalogue.load(ROOT, "cpu")
    subject = Subject(cpu_image, spec, compatibility.resolve(spec), {}, tmp_path / "no-records")
    with pytest.raises(FileNotFoundError):
        smoke.smoke(engine, subject, TRAINER, tmp_path)
    assert left(engine) == []


def test_an_image_that_is_not_there(prove: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="the engine holds no image training:nothing") as caught:
        prove("training:nothing", tmp_path)
    assert caught.value.fix == "run `builder build` first"


RUN = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from pathlib import Path
from builder import engine
from builder.core.settings import Settings
from builder.prove import smoke
from builder.prove.bench import Subject
from builder.spec import catalogue, compatibility
from builder.tensorflow.suite import TRAINER
root = Path({str(ROOT)!r})
spec = catalogue.load(root, "cpu")
def tell(event):
    print(type(event).__name__, event.name, getattr(event, "line", ""), flush=True)
subject = Subject(sys.argv[1], spec, compatibility.resolve(spec), {{}}, smoke.RECORDS)
smoke.smoke(engine.connect(Settings()), subject, TRAINER, Path(sys.argv[2]), on_event=tell)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_in_the_middle_it_leaves_nothing(
    engine: Engine, cpu_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    with in_training(cpu_image, tmp_path) as process:
        assert of(engine, process), "nothing runs: the test proves nothing"
        process.send_signal(number)
        assert process.wait(60) != 0
    assert of(engine, process) == set()
    assert not (tmp_path / receipts.FILE).exists()


def test_what_a_killed_run_left_is_removed_by_the_next(
    engine: Engine, cpu_image: str, tmp_path: Path
) -> None:
    with in_training(cpu_image, tmp_path) as process:
        process.kill()
        process.wait()
    assert of(engine, process), "nothing was left: the test proves nothing"
    containers.sweep(engine.client, LABEL)
    assert of(engine, process) == set()


def test_what_a_live_run_uses_is_left_alone(engine: Engine, cpu_image: str, tmp_path: Path) -> None:
    with in_training(cpu_image, tmp_path) as process:
        there = of(engine, process)
        containers.sweep(engine.client, LABEL)
        assert there
        assert there <= of(engine, process)
        process.terminate()
        process.wait(60)
