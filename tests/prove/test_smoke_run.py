"""Smoke runs of the real CPU image and of copies of it that are broken on purpose."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config import compatibility, image_yaml, lockfile
from builder.core.errors import CheckFailed, OutsideError
from builder.core.events import Event, StepDone, StepProgress
from builder.engine import BuildRequest, Engine, buildx, containers
from builder.frameworks.tensorflow.checks import loader, outputs
from builder.frameworks.tensorflow.suite import TRAINER
from builder.image.plan import site_packages
from builder.prove import receipts, smoke
from builder.prove.checks import contents, environment, permissions, stopping, training
from builder.prove.receipts import CheckResult, Receipt
from builder.prove.session import LABEL, Limits, Workload
from builder.prove.subject import Subject
from builder.prove.suite import Check, Suite

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
    """Proves an image by these checks, else by all: the receipt that was written, and the log."""

    def run(
        image: str, folder: Path, *checks: Check, inputs: str = "", **more: Any
    ) -> tuple[Receipt, str]:
        spec = image_yaml.load(ROOT, "cpu")
        packages = (
            {}
            if GIVEN
            else {p.name: p.version for p in lockfile.read(ROOT, "cpu").packages.values()}
        )
        with contextlib.suppress(CheckFailed):
            stack = compatibility.resolve(spec)
            subject = Subject(
                image, spec, stack, packages, smoke.RECORDS, inputs=inputs, sizes=SMALL
            )
            suite = Suite(TRAINER.name, checks) if checks else TRAINER
            smoke.smoke(engine, subject, suite, folder, **more)
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
        buildx.build(engine, BuildRequest(context / "Dockerfile", context, (tag,)))
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
    checks = training.CHECK, outputs.CHECK, permissions.CHECK
    receipt, log = prove(image, tmp_path, *checks, workload=SHORT)
    (problem,) = messages(receipt, check_name)
    assert problem.startswith(message)
    assert not TRAINER.holds(receipt, receipt.image_id)
    assert check(receipt, "permissions").passed, "the checks after it ran as well"
    assert "== exit code" in log
    assert left(engine) == []


def test_an_image_in_which_everything_is_wrong(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    """Secrets, root, a stub of libcuda, variables that lead nowhere, rights for everybody."""
    key, token = "-----BEGIN " + "PRIVATE KEY-----", "ghp_" + "a1B2c3D4e" * 4
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so.1"
    evil = f"{site_packages(lockfile.read(ROOT, 'cpu').python)}/zz_evil.pth"
    image = broken(
        f"USER 0\nENV TOKEN={token} LD_LIBRARY_PATH={Path(stub).parent}\n"
        "ENV LD_PRELOAD=/usr/lib/libtcmalloc.so.4 XLA_FLAGS=/etc/xla-flags TF_XLA_FLAG=--x\n"
        f"RUN umask 077; mkdir /secret; (echo '{key}'; head -c 300 /dev/zero | tr '\\0' A) "
        "> /secret/key.pem\n"
        f"RUN printf '%s_%s' ghp {token[4:]} > /secret/gone\nRUN rm /secret/gone\n"
        f"RUN mkdir -p {Path(stub).parent} && cp /lib/x86_64-linux-gnu/libz.so.1 {stub}\n"
        "RUN chmod u+s /usr/bin/env && chmod o+w /usr/local/bin\n"
        f"RUN echo 'import os' > {evil}\n"
        "ENTRYPOINT []"
    )
    checks = environment.CHECK, loader.CHECK, contents.CHECK, permissions.CHECK
    receipt, _ = prove(image, tmp_path, *checks, training.CHECK, stopping.CHECK)
    assert [line.partition(":")[0] for line in messages(receipt, "environment")] == [
        "nothing reads TF_XLA_FLAG",
        "XLA_FLAGS=/etc/xla-flags is read as the name of a file with flags, and there is none",
        "LD_PRELOAD names /usr/lib/libtcmalloc.so.4, which cannot be loaded (cannot open shared "
        "object file)",
    ]
    assert messages(receipt, "loader") == [
        f"a libcuda is on the loader's path: {stub}; it shadows the driver's, and TensorFlow sees "
        "no GPU"
    ]
    lines = [re.sub(r"step \d+", "step N", line) for line in messages(receipt, "contents")]
    assert sorted(re.sub(r"sha256:\w+", "DIGEST", line) for line in lines) == [
        "layer DIGEST holds a token (github-pat): /secret/gone; a later layer hides it",
        f"nobody accounts for {evil}, {stub}: no locked package brings it, and it would be run",
        "the image holds a private key: /secret/key.pem",
        "the image runs as root: its outputs would belong to root",
        "the image's environment (TOKEN) holds a token (github-pat)",
        "the image's history (step N) holds a token (github-pat)",
    ]
    assert messages(receipt, "permissions") == [
        "programs that run with another user's rights: /usr/bin/env",
        "everybody may write to what the image runs: /usr/local/bin",
    ]
    assert messages(receipt, "training") == [
        "the image has no ENTRYPOINT: a training service would start nothing"
    ]
    assert receipt.checks[-1].name == "training", "no run ended well: nothing to look at"


def test_outputs_of_root_without_a_model(
    broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    program = "sys.path.insert(0, '/app')\nimport trainer.model.export\n"
    image = broken("USER 0", program + "trainer.model.export.export = lambda *a: None")
    receipt, _ = prove(image, tmp_path, training.CHECK, outputs.CHECK, workload=SHORT)
    assert check(receipt, "training").passed
    owner, model = messages(receipt, "outputs")
    assert owner.startswith("/smoke/job/0/") and "belongs to uid 0" in owner
    assert model.startswith("the trainer wrote no SavedModel: there is no saved_model.pb in")


def test_a_shell_as_the_entry_point_that_keeps_sigterm_for_itself(
    engine: Engine, broken: Callable[..., str], prove: Callable[..., Any], tmp_path: Path
) -> None:
    command = 'python -m trainer.task \\"$@\\"; exit $?'
    image = broken(f'ENTRYPOINT ["sh", "-c", "{command}", "sh"]')
    checks, limits = (training.CHECK, stopping.CHECK), Limits(grace_seconds=5)
    receipt, _ = prove(image, tmp_path, *checks, limits=limits, workload=SHORT)
    assert check(receipt, "training").passed, "only a service's SIGTERM shows it"
    (problem,) = messages(receipt, "stopping")
    assert problem.startswith("SIGTERM does not end the trainer: 5 s later it was at step ")
    assert not TRAINER.holds(receipt, receipt.image_id)
    assert left(engine) == []


def test_a_trainer_that_needs_too_much_is_ended(
    engine: Engine, cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    memory = Limits(memory=150 * 1024**2)
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, limits=memory)
    assert messages(receipt, "training") == [
        "the trainer needed more memory than its limit and was killed"
    ]
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, limits=Limits(training_seconds=1))
    assert messages(receipt, "training")[0].startswith("the trainer was not done after 1 s")
    assert left(engine) == []


def test_a_run_that_is_over_too_soon_is_made_longer(
    cpu_image: str, prove: Callable[..., Any], tmp_path: Path
) -> None:
    short = Workload(steps=20, batch=16, checkpoint_every=20)
    receipt, _ = prove(cpu_image, tmp_path, training.CHECK, workload=short)
    assert receipt.problems == ()
    assert check(receipt, "training").seen["steps"] in (80, 320)


def test_a_run_that_cannot_begin_leaves_nothing(
    engine: Engine, cpu_image: str, tmp_path: Path
) -> None:
    spec = image_yaml.load(ROOT, "cpu")
    subject = Subject(cpu_image, spec, compatibility.resolve(spec), {}, tmp_path / "no-records")
    with pytest.raises(FileNotFoundError):
        smoke.smoke(engine, subject, TRAINER, tmp_path)
    assert left(engine) == []


def test_an_image_that_is_not_there(prove: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="the engine has no image training:nothing") as caught:
        prove("training:nothing", tmp_path)
    assert caught.value.fix == "run `builder build` first"


RUN = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from pathlib import Path
from builder.engine import discovery
from builder.core.settings import Settings
from builder.prove import smoke
from builder.prove.subject import Subject
from builder.config import image_yaml, compatibility
from builder.frameworks.tensorflow.suite import TRAINER
root = Path({str(ROOT)!r})
spec = image_yaml.load(root, "cpu")
def tell(event):
    print(type(event).__name__, event.name, getattr(event, "line", ""), flush=True)
subject = Subject(sys.argv[1], spec, compatibility.resolve(spec), {{}}, smoke.RECORDS)
smoke.smoke(discovery.connect(Settings()), subject, TRAINER, Path(sys.argv[2]), on_event=tell)
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
