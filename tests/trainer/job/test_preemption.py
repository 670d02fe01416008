"""Requests to stop: an exit at once if everything is saved, and in any case within `grace`."""

import signal
import subprocess
import sys

from tests import ROOT


def run(code: str, *signals: int, grace: float = 60) -> tuple[int, str]:
    """A process with a Preemption `p`, which gets a signal once it prints."""
    head = "import threading, time\nfrom trainer.job.preemption import Preemption\n"
    head += f"p = Preemption(grace={grace})\np.install()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", head + code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for number in signals or (signal.SIGTERM,):
        process.stdout.readline()
        process.send_signal(number)
    text, _ = process.communicate(timeout=50)
    return process.returncode, text


def test_while_all_is_saved_it_leaves_at_once() -> None:
    code, text = run("print('here', flush=True)\ntime.sleep(30)")
    assert code == 143
    assert "all work is saved" in text


def test_else_it_leaves_as_soon_as_all_is_saved() -> None:
    code, text = run(
        "p.saved(False)\nprint('here', flush=True)\nwhile not p.requested: time.sleep(0.01)\n"
        "print('saving', flush=True)\np.saved(True)"
    )
    assert code == 143
    assert text.startswith("saving\n")


def test_ctrl_c_saves_first_and_a_second_one_does_not_wait() -> None:
    stuck = "p.saved(False)\nprint('here', flush=True)\n"
    stuck += "while not p.requested: time.sleep(0.01)\nprint('saving', flush=True)\n"
    code, text = run(stuck + "p.saved(True)", signal.SIGINT)
    assert (code, text.startswith("saving\n")) == (143, True)
    code, _ = run(stuck + "time.sleep(30)", signal.SIGINT, signal.SIGINT)
    assert code == -signal.SIGINT


def test_a_process_that_is_stuck_leaves_at_the_end_of_its_grace() -> None:
    code, text = run(
        "p.saved(False)\nprint('here', flush=True)\nthreading.Event().wait()", grace=0.3
    )
    assert code == 143
    assert "no step ended within 0.3 s; the last checkpoint counts" in text
