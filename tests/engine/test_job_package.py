"""From a user's folder to a finished local job, with one command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import argparse
import json
import pathlib

import helper
import tensorflow as tf
import yaml
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir", required=True, type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=1)
options = parser.parse_args()
weights = tf.Variable([[0.0], [0.0]])
inputs = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
for _ in tqdm(range(options.epochs)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((inputs @ weights - inputs @ [[1.0], [2.0]]) ** 2)
    weights.assign_sub(0.3 * tape.gradient(loss, weights))
(options.job_dir / "result.yaml").write_text(yaml.safe_dump({"loss": float(loss)}))
print(helper.WORDS, options.epochs)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / f"script-{os.getpid()}"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text('WORDS = "epochs done:"\n')
    (folder / "requirements.txt").write_text("pyyaml>=6\ntqdm  # progress\n")
    return folder


def builder(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from builder.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_plain_script_with_two_requirements_is_one_command(
    engine: Engine, script: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    given = ["cpu", "--package", script, "--module", "train", "--job-dir", job, "--json"]
    name = f"cpu-{script.name}"
    try:
        done = builder("job", "local", *given, "--", "--epochs", 40)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "succeeded"
        assert "epochs done: 40" in done.stderr
        assert float((job / "result.yaml").read_text().partition(":")[2]) < 0.1
        assert (job / "result.yaml").stat().st_uid == os.geteuid()
        receipt = json.loads(
            (ROOT / f"build/packages/{name}/build/{name}/receipt.json").read_text()
        )
        checks = {check["name"]: check for check in receipt["checks"]}
        assert all(check["passed"] for check in checks.values())
        assert checks["imports"]["seen"]["modules"] == ["tensorflow", "tqdm", "yaml"]
        assert checks["starts"]["seen"]["answered"] == "--help"
        extra = (ROOT / f"build/packages/{name}/images/{name}/extra.lock").read_text()
        assert "pyyaml==" in extra
        assert "--hash=sha256:" in extra

        again = builder("image", "cpu", "--package", script, "--module", "train")
        assert "up to date" in again.stderr

        (script / "requirements.txt").write_text("pyyaml>=6\ntensorflow<2.20\n")
        refused = builder("job", "local", *given)
        assert refused.returncode == 2
        assert f'{script}/requirements.txt:2: "tensorflow<2.20" would move' in refused.stderr
    finally:
        made = ROOT / f"build/packages/{name}/build/{name}/image.json"
        if made.is_file():  # else it failed before there was anything
            engine.client.images.remove(f"training:{name}", force=True)
            engine.client.images.remove(json.loads(made.read_text())["base"], force=True)
        subprocess.run(["rm", "-rf", ROOT / f"build/packages/{name}"], check=True)
