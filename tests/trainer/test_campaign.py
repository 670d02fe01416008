"""Interrupted runs with everything switched on end as unbroken ones; what differs is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import campaign


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
    assert campaign.differs(whole, job(tmp_path / "more", 1.0, "b")) == "the predictions differ"


def test_steps_that_did_not_arrive_and_an_end_without_a_word_are_found(tmp_path: Path) -> None:
    assert campaign.lost(job(tmp_path / "all", campaign.STEPS)) == ""
    assert campaign.lost(job(tmp_path / "some", 7)) == f"7 updates of {campaign.STEPS} steps"
    lines = {
        '{"event": "error", "message": "the chief is gone"}\n': True,
        'Traceback ...\n{"event": "error", "message": "a fault"}\n': False,
        '{"event": "step", "message": "step 7"}\n': False,
        "": False,
    }
    log = tmp_path / "log"
    for text, explains in lines.items():
        log.write_text(text)
        assert campaign.explains(log) is explains


def test_what_an_evaluator_lost_or_measured_otherwise_is_found(tmp_path: Path) -> None:
    def folder(name: str, *made: tuple[int, float]) -> Path:
        best = tmp_path / name / "evaluator/best"
        best.mkdir(parents=True)
        (best / "saved_model.pb").touch()
        listed = [{"step": step, "loss": loss, "seconds": hash(name)} for step, loss in made]
        content = json.dumps({"evaluations": listed})
        (best.parent / "evaluations.json").write_text(content)
        return tmp_path / name

    last = campaign.STEPS
    whole = folder("whole", (7, 0.5), (last, 0.1))
    assert campaign.unmeasured(whole, folder("fewer", (last, 0.1))) == ""
    assert campaign.unmeasured(whole, folder("more", (7, 0.5), (14, 0.3), (last, 0.1))) == ""
    assert "step 7 otherwise" in campaign.unmeasured(whole, folder("a", (7, 0.4), (last, 0.1)))
    assert "the steps [7]" in campaign.unmeasured(whole, folder("b", (7, 0.5)))
    assert "the steps" in campaign.unmeasured(whole, folder("c", (last, 0.1), (last, 0.1)))
    (whole / "evaluator/best/saved_model.pb").unlink()
    assert campaign.unmeasured(whole, whole) == "no SavedModel is the best"


def test_the_log_of_the_process_that_ended_wrongly_is_shown_first(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("1chief0", "2worker0", "3worker1")]
    for log in logs:
        log.write_text(f"{log.name} begins{'.' * 5000} ends\n")
    text = campaign.shown(logs, str(logs[1]))
    assert text.startswith("2worker0: 2worker0 begins")
    assert text.index("2worker0 begins") < text.index("1chief0: ...") < text.index("3worker1: ...")
    assert text.count(" begins") == 1, "of the others, the ends"


@pytest.mark.long
def test_interrupted_runs_end_as_unbroken_ones() -> None:
    """In a process of its own, since runs are forked from one that has not used TensorFlow."""
    seconds = 3 * int(os.environ.get("LONG_SECONDS", "60"))  # each kind of cluster has its turn
    limits = ("--seconds", str(seconds), "--seed", os.environ.get("LONG_SEED", "1"))
    command = [sys.executable, "-m", "tests.campaign", *limits]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert campaign.GOOD in done.stdout
