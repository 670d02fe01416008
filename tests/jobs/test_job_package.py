"""From a user's folder to a finished job with one command: here, and on a (loopback) Vertex AI."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from builder.core.project import tag_of
from builder.core.settings import Settings
from builder.engine import Engine
from builder.pipeline import verify
from tests import ROOT, commands
from tests.emulators import vertex as emulator
from tests.jobs import jobset_rules
from tests.prove.reading import PROGRAM
from tests.registry.server import RegistryServer

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]


SCRIPT = """
import argparse
import json
import pathlib

import helper
import yaml
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True, type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=1)
options = parser.parse_args()

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
    pushed = ROOT / "images/pushed.lock"
    before = pushed.read_bytes()
    yield folder
    pushed.write_bytes(before)
    made = ROOT / "build" / f"cpu-{folder.name}" / "image.json"
    if made.is_file():  # else it failed before there was anything
        engine.client.images.remove(f"training:{tag_of(ROOT, f'cpu-{folder.name}')}", force=True)
        engine.client.images.remove(json.loads(made.read_text())["base"], force=True)
    shutil.rmtree(home(folder), ignore_errors=True)
    shutil.rmtree(made.parent, ignore_errors=True)
    (home(folder).parent / f".cpu-{folder.name}.lock").unlink(missing_ok=True)


def home(folder: Path) -> Path:
    """Where the locks of a folder's image lie."""
    return ROOT / "build" / "packages" / f"cpu-{folder.name}"


def built(folder: Path) -> dict[Path, int]:
    """What building has written of a folder, and when."""
    made = ROOT / "build" / f"cpu-{folder.name}"
    return {path: path.stat().st_mtime_ns for path in made.rglob("*.json")}


@pytest.mark.long
def test_a_plain_script_with_two_requirements_is_one_command(script: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    given = ["cpu", "--program", f"{script}:train", "--job-dir", str(job), "--json"]
    name = f"cpu-{script.name}"
    done = commands.builder("job", "local", *given, "--", "--epochs", "40", check=True)
    assert json.loads(done.stdout)["state"] == "succeeded"
    assert "epochs done: 40" in done.stderr
    assert float((job / "result.yaml").read_text().partition(":")[2]) < 0.1
    assert (job / "result.yaml").stat().st_uid == os.geteuid()
    receipt = json.loads((ROOT / f"build/{name}/receipt.json").read_text())
    made = {check["name"]: check for check in receipt["checks"]}
    assert all(check["passed"] for check in made.values())
    assert made["imports"]["seen"]["modules"] == ["tensorflow", "tqdm", "yaml"]
    assert made["starts"]["seen"]["answered"] == "--help"
    extra = (home(script) / f"images/{name}/extra.lock").read_text()
    assert "pyyaml==" in extra
    assert "--hash=sha256:" in extra

    again = commands.builder("image", "cpu", "--program", f"{script}:train")
    assert "up to date" in again.stderr


# --- sent to Vertex AI ----------------------------------------------------------------------------


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulator.Loopback]:
    with emulator.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


Submit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def submit(
    tmp_path: Path,
    registry_server: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    builder: Callable[..., tuple[int, str, str]],
) -> Submit:
    """`builder job submit` of a job with this text, in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "sent.yaml"

    def call(text: str, *words: object) -> tuple[int, str, str]:
        path.write_text(text)
        where = ("--registry", f"{registry_server.host}/package/training")
        return builder("job", "submit", str(path), *where, *map(str, words))

    return call


def test_a_plain_script_is_pushed_and_sent_by_its_digest(
    script: Path,
    registry_server: RegistryServer,
    loopback: emulator.Loopback,
    submit: Submit,
    tmp_path: Path,
) -> None:
    text = JOB.replace("IMAGE", "cpu")
    code, _, err = submit(text, "--program", f"{script}:train", "--", "--epochs", 40)
    assert code == 0, err
    (job,) = loopback.service.jobs.values()
    sent = job.job_spec.worker_pool_specs[0].container_spec
    where, _, digest = sent.image_uri.partition("@")
    assert where == f"{registry_server.host}/package/training"
    assert digest in registry_server.digests("package/training")
    assert registry_server.tags("package/training")[f"cpu-{script.name}"] == digest
    assert any(arg.startswith("--job-dir=gs://my-bucket/jobs/") for arg in sent.args)
    proof = verify.verify(sent.image_uri, Settings())
    assert [check.name for check in proof.receipt.checks] == list(PROGRAM.required("CPU"))
    assert {"loader", "contents", "imports", "starts"} <= set(PROGRAM.required("CPU"))
    assert proof.receipt.suite == "program"
    # the same program as a JobSet, by the same digest, which nobody wrote
    sent_to = ("--on", "kubernetes", "--registry", where, "--program", f"{script}:train")
    done = commands.builder("job", "render", str(tmp_path / "sent.yaml"), *sent_to, check=True)
    manifest = yaml.safe_load(done.stdout)
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
    assert len(loopback.service.jobs) == 1

    # requirements that would move TensorFlow are refused before anything is built
    requirements = (script / "requirements.txt").read_text()
    before = registry_server.tags("package/training"), built(script)
    (script / "requirements.txt").write_text("pyyaml>=6\ntensorflow==2.19.1\n")
    try:
        code, out, err = submit(text, "--program", f"{script}:train")
    finally:
        (script / "requirements.txt").write_text(requirements)
    assert (code, out) == (2, "")
    problem = 'requirements.txt:2: "tensorflow==2.19.1" would move tensorflow-cpu 2.21.0 to '
    assert f"error: {script}/{problem}" in err and "builder explain cpu" in err.splitlines()[-1]
    assert (registry_server.tags("package/training"), built(script)) == before
    assert len(loopback.service.jobs) == 1
