"""From a user's folder to a finished job with one command: here, and on a (loopback) Vertex AI."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from builder.core.settings import Settings
from builder.engine import Engine
from builder.frameworks.tensorflow.suite import PROGRAM
from builder.jobs import description, images
from builder.pipeline import verify
from tests.emulators import vertex as emulator
from tests.jobs import jobset_rules
from tests.registry import server as registry_server
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import argparse
import json
import pathlib
import sys

import helper
import yaml
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True, type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--exit", type=int, default=0)
options = parser.parse_args()
if options.exit:
    sys.exit(options.exit)

import tensorflow as tf

weights = tf.Variable([[0.0], [0.0]])
inputs = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
for _ in tqdm(range(options.epochs)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((inputs @ weights - inputs @ [[1.0], [2.0]]) ** 2)
    weights.assign_sub(0.3 * tape.gradient(loss, weights))
(options.job_dir / "result.yaml").write_text(yaml.safe_dump({"loss": float(loss)}))
print(helper.WORDS, options.epochs)
"""

JOB = """\
image: IMAGE
region: us-central1
machine: n1-standard-4
job_dir: gs://my-bucket/jobs/{job}
"""


@pytest.fixture(scope="module")
def script(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a script, a module of its own and two requirements; its image is made once."""
    folder = tmp_path_factory.mktemp("program") / f"script-{os.getpid()}"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text('WORDS = "epochs done:"\n')
    (folder / "requirements.txt").write_text("pyyaml>=6\ntqdm  # progress\n")
    yield folder
    made = home(folder) / "build" / f"cpu-{folder.name}" / "image.json"
    if made.is_file():  # else it failed before there was anything
        engine.client.images.remove(f"training:cpu-{folder.name}", force=True)
        engine.client.images.remove(json.loads(made.read_text())["base"], force=True)
    remove(folder)


def home(folder: Path) -> Path:
    """The little project that is made of a folder."""
    return ROOT / "build" / "packages" / f"cpu-{folder.name}"


def remove(folder: Path) -> None:
    shutil.rmtree(home(folder), ignore_errors=True)
    (home(folder).parent / f".cpu-{folder.name}.lock").unlink(missing_ok=True)


@pytest.fixture
def moved(script: Path, tmp_path: Path) -> Iterator[Path]:
    """The same folder with a requirement that would move TensorFlow."""
    folder = tmp_path / f"moved-{os.getpid()}"
    shutil.copytree(script, folder)
    (folder / "requirements.txt").write_text("pyyaml>=6\ntensorflow==2.19.1\n")
    yield folder
    remove(folder)


def builder(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from builder.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_plain_script_with_two_requirements_is_one_command(script: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    given = ["cpu", "--program", f"{script}:train", "--job-dir", job, "--json"]
    name = f"cpu-{script.name}"
    done = builder("job", "local", *given, "--", "--epochs", 40)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert "epochs done: 40" in done.stderr
    assert float((job / "result.yaml").read_text().partition(":")[2]) < 0.1
    assert (job / "result.yaml").stat().st_uid == os.geteuid()
    receipt = json.loads((home(script) / f"build/{name}/receipt.json").read_text())
    made = {check["name"]: check for check in receipt["checks"]}
    assert all(check["passed"] for check in made.values())
    assert made["imports"]["seen"]["modules"] == ["tensorflow", "tqdm", "yaml"]
    assert made["starts"]["seen"]["answered"] == "--help"
    extra = (home(script) / f"images/{name}/extra.lock").read_text()
    assert "pyyaml==" in extra
    assert "--hash=sha256:" in extra

    again = builder("image", "cpu", "--program", f"{script}:train")
    assert "up to date" in again.stderr


# --- sent to Vertex AI ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server.registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


def on_engine(engine: Engine, folder: Path) -> emulator.Executor:
    """Pull what a job names, by its digest, and run it with a folder in place of its bucket."""

    def execute(work: emulator.Work) -> emulator.Done:
        container = work.spec.worker_pool_specs[0].container_spec
        (folder / work.id).mkdir(parents=True)
        (folder / work.id).chmod(0o777)
        engine.client.images.pull(container.image_uri)
        started = engine.client.containers.run(
            container.image_uri,
            [re.sub("gs://.*", "/job", argument) for argument in container.args],
            entrypoint=list(container.command) or None,
            environment={variable.name: variable.value for variable in container.env},
            volumes={str(folder / work.id): {"bind": "/job", "mode": "rw"}},
            detach=True,
        )
        code = started.wait()["StatusCode"]
        for line in started.logs().decode().splitlines():
            work.tell("workerpool0-0", line)
        started.remove()
        return emulator.Done(code)

    return execute


@pytest.fixture
def loopback(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[emulator.Loopback]:
    """A Vertex AI that pulls what a job names, by its digest, and runs it on this engine."""
    with emulator.running(on_engine(engine, tmp_path / "work")) as server:
        monkeypatch.setenv("BUILDER_JOB_ENDPOINT", server.grpc)
        monkeypatch.setenv("BUILDER_JOB_LOGGING_ENDPOINT", server.rest)
        monkeypatch.setenv("BUILDER_JOB_PROJECT", emulator.PROJECT)
        yield server
        jobs = server.service.jobs.values()
        pulled = {job.job_spec.worker_pool_specs[0].container_spec.image_uri for job in jobs}
        for reference in pulled:
            engine.client.images.remove(reference)


Submit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submit(
    tmp_path: Path,
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Submit:
    """`builder job submit` of a job with this text, in this process: exit code, stdout, stderr."""
    from builder import cli

    monkeypatch.chdir(ROOT)
    path = tmp_path / "sent.yaml"

    def call(text: str, *words: object) -> tuple[int, str, str]:
        path.write_text(text)
        where = ["--registry", f"{registry.host}/team/training"]
        command = ["builder", "job", "submit", str(path), *where, *map(str, words)]
        monkeypatch.setattr(sys, "argv", command)
        try:
            cli.main()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def followed(folder: Path, *arguments: object) -> list[object]:
    """The command line's end for a program that is followed until it is over."""
    given: list[object] = ["--program", f"{folder}:train", "--logs", "--poll", "0.1"]
    return [*given, "--json", "--", *arguments]


def test_a_plain_script_is_pushed_by_digest_and_runs_there_to_its_exit_code(
    script: Path,
    registry: RegistryServer,
    loopback: emulator.Loopback,
    submit: Submit,
    tmp_path: Path,
) -> None:
    text = JOB.replace("IMAGE", "cpu")
    code, out, err = submit(text, *followed(script, "--epochs", 40))
    assert code == 0, err
    status = json.loads(out)
    assert status["state"] == "succeeded"
    assert any(
        line.startswith("chief-0") and "epochs done: 40" in line for line in err.splitlines()
    )
    (job,) = loopback.service.jobs.values()
    sent = job.job_spec.worker_pool_specs[0].container_spec
    where, _, digest = sent.image_uri.partition("@")
    assert where == f"{registry.host}/team/training"
    assert digest in registry.digests("team/training")
    assert registry.tags("team/training")[f"cpu-{script.name}"] == digest
    assert any(arg.startswith("--job-dir=gs://my-bucket/jobs/") for arg in sent.args)
    proof = verify.verify(sent.image_uri, Settings())
    assert [check.name for check in proof.receipt.checks] == list(PROGRAM.required("CPU"))
    assert {"loader", "contents", "imports", "starts"} <= set(PROGRAM.required("CPU"))
    assert proof.receipt.suite == "program"
    for command in (("verify",), ("promote", "live")):
        done = builder(command[0], f"{where}:cpu-{script.name}", *command[1:])
        assert done.returncode == 0, done.stderr
    assert registry.tags("team/training")["live"] == digest
    result = tmp_path / "work" / status["name"].rsplit("/", 1)[-1] / "result.yaml"
    assert float(result.read_text().partition(":")[2]) < 0.1

    code, _, err = submit(text, *followed(script, "--exit", 7))
    assert code == 7
    assert "non-zero status of 7" in err
    assert len(loopback.service.jobs) == 2

    # the same program as a JobSet, by the same digest, which nobody wrote
    sent_to = ("--on", "kubernetes", "--registry", where, "--program", f"{script}:train")
    done = builder("job", "render", tmp_path / "sent.yaml", *sent_to)
    assert done.returncode == 0, done.stderr
    manifest = YAML(typ="safe").load(done.stdout)
    assert jobset_rules.problems(manifest) == []
    (role,) = manifest["spec"]["replicatedJobs"]
    (container,) = role["template"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{where}@{digest}"

    # the receipt that was pushed says what the image is for, and a job for a GPU reads it there
    gpu = JOB.replace("IMAGE", f"{where}:cpu-{script.name}") + "accelerators: 1 x T4\n"
    code, _, err = submit(gpu)
    assert code == 2
    assert f"{where}@{digest} is an image for CPU; the job runs on n1-standard-4 with 1 x T4" in err
    assert "write image: t4" in err
    assert len(loopback.service.jobs) == 2
    image, notes = seen(gpu)
    assert (image.accelerator, image.proven) == ("CPU", True)
    assert notes == (f"{where}:cpu-{script.name} is {digest} now",)


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        (
            "",
            'requirements.txt:2: "tensorflow==2.19.1" would move tensorflow-cpu 2.21.0 to ',
            "builder explain cpu",
        ),
        ("accelerators: 1 x T4\n", "cpu is an image for CPU; the job runs on", "image: t4"),
        ("machine: n1-standard-5\n", "training has no n1-standard-5", "n1-standard-4"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built_or_pushed(
    moved: Path,
    registry: RegistryServer,
    loopback: emulator.Loopback,
    submit: Submit,
    change: str,
    problem: str,
    fix: str,
) -> None:
    before = registry.tags("team/training")
    text = JOB.replace("IMAGE", "cpu")
    if change.startswith("machine"):
        text = text.replace("machine: n1-standard-4\n", change)
    else:
        text += change
    code, out, err = submit(text, *followed(moved))
    assert (code, out) == (2, "")
    assert f"error: {moved}" in err or f"error: {moved.parent}/sent.yaml:" in err
    assert problem in err.splitlines()[-2]
    assert fix in err.splitlines()[-1]
    assert registry.tags("team/training") == before
    assert not loopback.service.jobs
    assert not list((home(moved) / "build").rglob("*.json"))


def seen(text: str) -> tuple[Any, tuple[str, ...]]:
    """A job's image as its registry holds it, and what a person is told about it."""
    job = description.parse(text, Path("jobs/cats.yaml"))
    return images.pushed_image(ROOT, job, Settings())
