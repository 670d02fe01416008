"""Does a run with everything switched on end with the same bits when it is interrupted?

    python -m bench.campaign [--trials 50] [--seed 0] [--seconds N]

Each trial starts the same run and interrupts it at a random moment: by SIGKILL, by SIGTERM, or by a
disk that is suddenly full (and has room again afterwards). Then it is started again, interrupted up
to twice more, until it is done. Weights, the average of the weights, the state of the optimizer and
the predictions have to be those of the unbroken run, bit by bit. A full disk needs root, for a
small file system in memory; without it, its trials are said to be left out.

The runs are forked from a process that has imported TensorFlow and not used it, which saves most of
the time.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

RECORDS = Path(__file__).resolve().parents[1] / "builder/prove/records"
STEPS = 50
EVERYTHING = (
    *("--steps", STEPS, "--image-size", 8, "--batch-size", 8, "--deterministic"),
    *("--steps-per-loop", 3, "--checkpoint-every", 7, "--evaluate-every", 25),
    *("--ema", 0.9, "--accumulate", 2, "--optimizer", "adamw"),
    *("--weight-decay", 0.01, "--schedule", "cosine"),
    *("--rand-augment", 2, "--mixup", 0.2, "--cutmix", 1),
    *("--crop", 0.6, "--flip", "horizontal", "--sampling", "balanced"),
    *("--class-weights", "balanced", "--label-smoothing", 0.1),
    *("--metric", "f1", "--predictions", "--export", "final,best", "--histograms-every", 0),
)
"""The options of each run."""
ROOM = 24 << 20
"""Bytes of the disk that becomes full."""
KINDS = ("kill", "term", "disk")
ENDED = {"kill": {-signal.SIGKILL, 0}, "term": {143, 0}, "disk": {2, 3, 0}}
"""Exit codes that an interruption may lead to; 0: it came too late; 2: the disk was full before the
run began, which refuses to begin then."""
LIMIT = 600.0
"""Seconds until an attempt counts as stuck."""


@dataclass
class Trial:
    """How a run was interrupted, and what came of it."""

    number: int
    interruptions: list[str] = field(default_factory=list)
    problem: str = ""


def start(job: Path, log: Path) -> int:
    """Fork a run; its process id. Its lines go to `log`, which may not lie on a disk that fills."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)
        lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(lines, 1)
        os.dup2(lines, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        from trainer import task

        given = ("--records", RECORDS, "--job-dir", job, *EVERYTHING)
        code = task.main([str(one) for one in given])
        sys.stdout.flush()
    os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """The exit code of a run, negative for a signal; None: it still runs after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.02)


def finish(pid: int) -> int:
    """Wait for a run. Raises RuntimeError if it is stuck, after killing it."""
    code = ended(pid, LIMIT)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise RuntimeError(f"stuck for {LIMIT:g} s")
    return code


def interrupt(pid: int, kind: str, disk: Path) -> int:
    """Interrupt a run and wait for its end; the exit code."""
    if kind == "kill":
        os.kill(pid, signal.SIGKILL)
    elif kind == "term":
        os.kill(pid, signal.SIGTERM)
    else:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\\0" * 65536):
                pass
        try:
            return finish(pid)
        finally:
            ballast.unlink()
    return finish(pid)


def differs(whole: Path, job: Path) -> str:
    """What of a finished job is not as in the unbroken one; "": nothing."""
    name = f"checkpoints/step-{STEPS:08d}.npz"
    with np.load(whole / name) as one, np.load(job / name) as other:
        if one.files != other.files:
            return "other variables"
        for variable in one.files:
            if one[variable].tobytes() != other[variable].tobytes():
                return f"{variable} differs"
    if (whole / "predictions.csv").read_bytes() != (job / "predictions.csv").read_bytes():
        return "the predictions differ"
    return ""


def run(
    trial: Trial, whole: Path, seconds: float, disk: Path, log: Path, kinds: tuple[str, ...]
) -> None:
    """Interrupt a run, start it again, compare it with the unbroken one, which took `seconds`."""
    chance = random.Random(trial.number)
    job = disk / f"job-{trial.number}"
    for _ in range(chance.randint(1, 3)):
        kind, at = chance.choice(kinds), chance.uniform(0, seconds)
        pid = start(job, log)
        code = ended(pid, at)
        if code is None:
            code = interrupt(pid, kind, disk)
        trial.interruptions.append(f"{kind} after {at:.1f} s: {code}")
        if code not in ENDED[kind]:
            trial.problem = f"exit code {code} after {kind}"
            return
        if code == 0:
            break
    code = finish(start(job, log))
    trial.problem = f"exit code {code} of the last start" if code else differs(whole, job)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Make `folder` a file system of ROOM bytes in memory, if this user may."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
    made = os.getuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def campaign(trials: int, seed: int, limit: float) -> list[Trial]:
    """Run the trials one after the other, and begin none after `limit` seconds; print each."""
    until = time.monotonic() + limit
    from trainer import task  # noqa: F401 - what is imported before the fork is not imported again
    from trainer.loop import evaluator, outer  # noqa: F401
    from trainer.model import export, predictions  # noqa: F401
    from trainer.observe import insight  # noqa: F401

    made: list[Trial] = []
    with tempfile.TemporaryDirectory() as top, small_disk(Path(top, "disk")) as can_fill:
        disk, log = Path(top, "disk"), Path(top, "log")
        kinds = KINDS if can_fill else KINDS[:2]
        if not can_fill:
            print("a full disk is left out: it needs root", flush=True)
        whole = Path(top, "whole")
        began = time.monotonic()
        if code := finish(start(whole, log)):
            raise RuntimeError(f"exit code {code}: {log.read_text()[-2000:]}")
        seconds = time.monotonic() - began
        for number in range(seed, seed + trials):
            if made and time.monotonic() > until:
                break
            trial = Trial(number)
            log.unlink()
            try:
                run(trial, whole, seconds, disk, log, kinds)
            except RuntimeError as error:
                trial.problem = str(error)
            if trial.problem:
                print(log.read_text()[-1500:])
            print(
                f"{number}: {trial.problem or 'the same bits'}; {trial.interruptions}", flush=True
            )
            subprocess.run(["rm", "-rf", str(disk / f"job-{number}")], check=False)
            made.append(trial)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    made = campaign(options.trials, options.seed, options.seconds)
    same = sum(not trial.problem for trial in made)
    kinds = Counter(one.split()[0] for trial in made for one in trial.interruptions)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{same} of {len(made)} with the same bits; interruptions: {told}")
    return 0 if same == len(made) else 1


if __name__ == "__main__":
    sys.exit(main())
