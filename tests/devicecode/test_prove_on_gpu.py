"""scripts/prove-on-gpu on a machine without a GPU: it says so, and that nothing was proven."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/prove-on-gpu"


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


@pytest.mark.tensorflow
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
