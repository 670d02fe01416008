"""tools/prove-on-gpu on a machine without a GPU: it says so, and that nothing was proven."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/prove-on-gpu"


def run(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    environment = {**os.environ, "PATH": str(path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_a_gpu_or_a_framework_nothing_is_proven(tmp_path: Path) -> None:
    done = run(path=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "nvidia-smi finds no GPU" in done.stderr
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Some GPU, 7.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = run("--framework", "torch", path=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "neither PyTorch nor TensorFlow" in done.stderr


@pytest.mark.long
def test_the_same_computations_twice_give_the_same_results(tmp_path: Path) -> None:
    """What the comparison rests on; here on the CPU."""
    import numpy

    for name in ("first", "second"):
        done = run("--run", str(tmp_path / name), "--framework", "tensorflow", path=Path("/bin"))
        assert done.returncode == 0, done.stderr
    first, second = (numpy.load(tmp_path / f"{name}.npz") for name in ("first", "second"))
    assert len(first.files) >= 20
    for name in first.files:
        numpy.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.long
def test_programs_that_people_write_build_and_train_compiled_and_not(tmp_path: Path) -> None:
    """Here on the CPU: it shows nothing about cuDNN."""
    import numpy

    out = tmp_path / "programs"
    done = run("--run", str(out), "--framework", "tensorflow", "--programs", path=Path("/bin"))
    assert done.returncode == 0, done.stderr
    assert json.loads(out.with_suffix(".json").read_text())["errors"] == {}
    losses = numpy.load(out.with_suffix(".npz"))
    names = [
        f"{name}, {how}" for name in ("pictures", "words") for how in ("compiled", "not compiled")
    ]
    assert losses.files == names
    for name in ("pictures", "words"):
        compiled, plain = losses[f"{name}, compiled"], losses[f"{name}, not compiled"]
        numpy.testing.assert_allclose(compiled, plain, rtol=1e-3)
        assert numpy.isfinite(plain).all()
