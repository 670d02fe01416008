"""Interrupted runs with everything switched on end with the same bits; what differs is found."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench import campaign


def job(folder: Path, value: float, predictions: str = "a") -> Path:
    """A finished job with one variable."""
    (folder / "checkpoints").mkdir(parents=True)
    variables = {"0000 weight": np.float32([value])}
    np.savez(folder / f"checkpoints/step-{campaign.STEPS:08d}.npz", **variables)
    (folder / "predictions.csv").write_text(predictions)
    return folder


def test_a_bit_that_differs_is_found(tmp_path: Path) -> None:
    whole = job(tmp_path / "whole", 1.0)
    assert campaign.differs(whole, job(tmp_path / "same", 1.0)) == ""
    other = job(tmp_path / "other", float(np.nextafter(np.float32(1), np.float32(2))))
    assert campaign.differs(whole, other) == "0000 weight differs"
    said = campaign.differs(whole, job(tmp_path / "said", 1.0, "b"))
    assert said == "the predictions differ"


@pytest.mark.long
def test_interrupted_runs_end_with_the_bits_of_an_unbroken_one() -> None:
    """In a process of its own, since runs are forked from one that has not used TensorFlow."""
    limits = ("--seconds", os.environ.get("LONG_SECONDS", "60"), "--seed", str(int(time.time())))
    command = [sys.executable, "-m", "bench.campaign", *limits]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "with the same bits" in done.stdout
