"""Does a run with everything switched on end with the same bits when it is interrupted?

    python -m tests.campaign [--trials 50] [--seed 0] [--seconds N]

Each trial starts a run in one process, with two workers, with two workers and a parameter server,
or with an evaluator beside it, and interrupts one of its processes at a random moment: by SIGKILL,
by SIGTERM, by SIGSTOP, or by a disk that is suddenly full. All is started again, interrupted up to
twice more, until it is done. Weights, their average, the optimizer's state and the predictions then
have to be those of the unbroken run, bit by bit; with parameter servers, which are asynchronous,
the run has to end, and every step to have arrived; an evaluator has to have measured the last step,
each step once, and what it measured of a step has to be the same. Each process that ended early has
to say why in its last line. One process that is frozen goes on after two seconds; in a cluster, the
others have to give it up. A full disk needs root, for a small file system in memory; without it,
its trials are left out.

The processes are forked from one that has imported TensorFlow and not used it, which saves most of
the time.
"""

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = Path(__file__).resolve().parents[1] / "builder/prove/records"
STEPS = 50
COMMON = (
    *("--steps", STEPS, "--image-size", 8, "--batch-size", 8, "--peer-timeout", 60),
    *("--steps-per-loop", 3, "--checkpoint-every", 7, "--evaluate-every", 25),
    *("--schedule", "cosine", "--rand-augment", 2, "--mixup", 0.2, "--cutmix", 1),
    *("--crop", 0.6, "--flip", "horizontal", "--sampling", "balanced"),
    *("--class-weights", "balanced", "--label-smoothing", 0.1),
    *("--metric", "f1", "--predictions", "--export", "best"),
)
"""The options of each run."""
SYNCHRONOUS: tuple[object, ...] = ("--deterministic", "--ema", 0.9, "--accumulate", 2)
SYNCHRONOUS += ("--optimizer", "adamw", "--weight-decay", 0.01)
"""More of them, which parameter servers do not have."""
EVALUATED = "an evaluator"
CLUSTERS: dict[str, tuple[str, ...]] = {
    "one process": (),
    "two workers": ("worker", "worker"),
    "parameter servers": ("chief", "worker", "worker", "ps"),
    EVALUATED: ("chief", "evaluator"),
}
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "freeze": signal.SIGSTOP}
WAYS = (*SIGNALS, "disk")
GOOD = "as the unbroken run"
ROOM = 24 << 20
"""Bytes of the disk that becomes full."""
RESTARTS = 3
"""Starts without an interruption: on a busy machine, one may give up another that is only slow."""
LIMIT = 600.0
"""Seconds until an attempt counts as stuck; the last one gets ten times what the unbroken took."""
GIVEN_UP = 240.0
"""Seconds in which the others have to give up a process that is frozen: twice --peer-timeout, and
what starting takes beside other work."""


def explains(log: Path) -> bool:
    """Return whether a process that ended early says why in its last line, without a traceback
    (that of an observer, which ends no run, is a field of its event)."""
    lines = log.read_text().splitlines()
    with contextlib.suppress(ValueError, IndexError):
        says = json.loads(lines[-1])["event"] in ("error", "preempted")
        return says and not any(line.startswith("Traceback") for line in lines)
    return False


def cluster(*roles: str) -> list[dict[str, str]]:
    """Return the environments of processes with these roles, on free ports of loopback."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in roles]
        addresses = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    hosts: dict[str, list[str]] = {}
    tasks: list[dict[str, Any]] = []
    for role, address in zip(roles, addresses, strict=True):
        tasks.append({"type": role, "index": len(hosts.setdefault(role, []))})
        hosts[role].append(address)
    configs = [json.dumps({"cluster": hosts, "task": task}) for task in tasks]
    names = ["{type}{index}".format(**task) for task in tasks]
    return [{"TF_CONFIG": c, "NAME": name} for c, name in zip(configs, names, strict=True)]


def start(job: Path, logs: Path, kind: str) -> list[Process]:
    """Fork the processes of a run; each is called as its log."""
    context = multiprocessing.get_context("fork")
    processes: list[Process] = []
    for environment in cluster(*CLUSTERS[kind]) or [{"TF_CONFIG": "", "NAME": ""}]:
        log = logs / f"{time.monotonic_ns()}{environment['NAME']}"
        log.touch()
        processes.append(context.Process(None, run, str(log), (job, log, kind, environment)))
        processes[-1].start()
    return processes


def run(job: Path, log: Path, kind: str, environment: dict[str, str]) -> None:
    """Run the trainer in this forked process, and exit. A log may not lie on a disk that fills."""
    os.setpgid(0, 0)
    lines = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(lines, 1)
    os.dup2(lines, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    faulthandler.enable()
    os.environ.update(environment)
    from trainer import task

    more = () if kind == "parameter servers" else SYNCHRONOUS
    given = ("--records", RECORDS, "--job-dir", job, *COMMON, *more)
    sys.exit(task.main([str(argument) for argument in given]))


def finish(processes: Sequence[Process], seconds: float = LIMIT) -> list[int | None]:
    """Wait for all processes, at most so long; return their exit codes, negative for a signal, and
    None while they run."""
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    return [process.exitcode for process in processes]


def interrupt(
    kind: str, processes: Sequence[Process], victim: Process, way: str, disk: Path
) -> str:
    """Interrupt a run, and wait for the end of all its processes. Raises RuntimeError.

    Return what is known to hang: the chief of parameter servers that traces a function waits inside
    TensorFlow, with Python's lock, for a process that is frozen, until that one is ended.
    """
    note = ""
    others = [process for process in processes if process is not victim]
    ballast = disk / "ballast"
    if way == "disk":
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 65536):
                pass
    else:
        send(victim, SIGNALS[way])
    try:
        if way == "freeze" and others and kind != EVALUATED:
            if None in finish(others, GIVEN_UP):
                if kind != "parameter servers":
                    raise RuntimeError("a frozen process was not given up")
                note = ", not given up"
            victim.kill()
        elif way == "freeze":
            time.sleep(2.0)
            send(victim, signal.SIGCONT)
        if kind == EVALUATED and finish(processes[:1]) != [0]:
            send(processes[1], signal.SIGTERM)  # It waits for more: a service starts both again.
        allowed = {0, 143, *((2, 3) if way == "disk" else ())}
        for process, code in zip(processes, finish(processes), strict=True):
            if process is victim and code == -signal.SIGKILL and way in ("kill", "freeze"):
                continue
            right = code in allowed
            if right and (code == 0 or explains(Path(process.name))):
                continue
            text = "stuck" if code is None else f"exit code {code}"
            text += " without a last line that says why" if right else ""
            text = f"{way} {called(victim)}: {called(process)} {text}"
            raise RuntimeError(text, process.name)
    finally:
        for process in processes:
            process.kill()
        ballast.unlink(missing_ok=True)
    return note


def called(process: Process) -> str:
    """Return the role and number of a process, as in the name of its log."""
    return Path(process.name).name.lstrip("0123456789")


def send(process: Process, number: signal.Signals) -> None:
    if process.is_alive() and process.pid:
        os.kill(process.pid, number)


def differs(whole: Path, job: Path) -> str:
    """Return what of a finished job is not as in the unbroken one; "": nothing."""
    name = f"checkpoints/step-{STEPS:08d}.npz"
    with np.load(whole / name) as expected, np.load(job / name) as actual:
        if expected.files != actual.files:
            return "other variables"
        for variable in expected.files:
            if expected[variable].tobytes() != actual[variable].tobytes():
                return f"{variable} differs"
    if (whole / "predictions.csv").read_bytes() != (job / "predictions.csv").read_bytes():
        return "the predictions differ"
    return ""


def lost(job: Path) -> str:
    """Return whether steps of a finished job with parameter servers did not arrive; "": all did."""
    with np.load(job / f"checkpoints/step-{STEPS:08d}.npz") as archive:
        updates = int(archive[archive.files[-1]].item())
    return f"{updates} updates of {STEPS} steps" if updates < STEPS else ""


def unmeasured(whole: Path, job: Path) -> str:
    """Return what the evaluator of a finished job lost, or measured otherwise than in the unbroken
    one; "": nothing."""
    expected, actual = (
        json.loads((folder / "evaluator/evaluations.json").read_text())["evaluations"]
        for folder in (whole, job)
    )
    steps = [made["step"] for made in actual]
    if steps != sorted(set(steps)) or steps[-1:] != [STEPS]:
        return f"the evaluator measured the steps {steps}"
    known = {made["step"]: {**made, "seconds": 0} for made in expected}
    if other := [n for n, made in zip(steps, actual, strict=True)
                 if known.get(n, {**made, "seconds": 0}) != {**made, "seconds": 0}]:  # fmt: skip
        return f"the evaluator measured step {other[0]} otherwise"
    return "" if (job / "evaluator/best/saved_model.pb").is_file() else "no SavedModel is the best"


def attempt(
    number: int, kind: str, whole: Path, seconds: float, disk: Path, logs: Path, ways: Sequence[str]
) -> Iterator[str]:
    """Interrupt a run, start it again, and compare it with the unbroken one, which took `seconds`;
    yield each interruption. Raises RuntimeError."""
    chance = random.Random(number)
    job = disk / f"job-{number}"
    for _ in range(chance.randint(1, 3)):
        way, at = chance.choice(ways), chance.uniform(0, seconds)
        processes = start(job, logs, kind)
        victim = chance.choice(processes)
        finish(processes, at)
        note = interrupt(kind, processes, victim, way, disk)
        yield f"{way} {called(victim)} {at:.1f} s{note}: {finish(processes)}"
        if processes[0].exitcode == 0:
            break
    for _ in range(RESTARTS):
        processes = start(job, logs, kind)
        codes = finish(processes, max(LIMIT, 10 * seconds))
        for process in processes:
            process.kill()  # An evaluator waits for a chief that failed.
        if codes != [143] * len(codes):
            break
    if any(code != 0 for code in codes):
        raise RuntimeError(f"exit codes {codes} of the last start")
    problem = lost(job) if kind == "parameter servers" else differs(whole, job)
    if problem := problem or (unmeasured(whole, job) if kind == EVALUATED else ""):
        raise RuntimeError(problem)


def shown(logs: Sequence[Path], wrong: str = "") -> str:
    """Return the ends of some logs, first that of the process that ended wrongly."""
    ordered = sorted(logs, key=lambda log: str(log) != wrong)
    lengths = {str(log): 2000 for log in logs} | {wrong: 12000}
    return "\n".join(f"{log.name}: {log.read_text()[-lengths[str(log)] :]}" for log in ordered)


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


def campaign(trials: int, seed: int, limit: float) -> Counter[tuple[str, str]]:
    """Run the trials one after the other, and begin none after `limit` seconds; print each.

    Return how many there were by cluster, and by outcome or interruption.
    """
    until = time.monotonic() + limit
    from trainer import run, task  # noqa: F401 - what is imported before the fork is not again

    counts: Counter[tuple[str, str]] = Counter()
    whole: dict[str, tuple[Path, float]] = {}
    with tempfile.TemporaryDirectory() as top, small_disk(Path(top, "disk")) as can_fill:
        disk, logs = Path(top, "disk"), Path(top, "logs")
        logs.mkdir()
        if not can_fill:
            print("a full disk is left out: it needs root", flush=True)
        for number in range(seed, seed + trials):
            if counts and time.monotonic() > until:
                break
            kind, outcome = [*CLUSTERS][number % len(CLUSTERS)], GOOD
            interruptions: list[str] = []
            try:
                if kind not in whole:
                    folder, began = Path(top, kind), time.monotonic()
                    if any(code != 0 for code in finish(start(folder, logs, kind))):
                        raise RuntimeError("the unbroken run failed")
                    whole[kind] = folder, time.monotonic() - began
                ways = WAYS if can_fill else WAYS[:-1]
                for interruption in attempt(number, kind, *whole[kind], disk, logs, ways):
                    interruptions.append(interruption)
                    counts[kind, interruption.split()[0]] += 1
            except RuntimeError as error:
                outcome = str(error.args[0])
                print(shown(sorted(logs.iterdir())[-len(CLUSTERS[kind]) - 1 :], *error.args[1:]))
            counts[kind, GOOD if outcome == GOOD else "failed"] += 1
            print(f"{number}, {kind}: {outcome}; {interruptions}", flush=True)
            subprocess.run(["rm", "-rf", str(disk / f"job-{number}")], check=False)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    counts = campaign(options.trials, options.seed, options.seconds)
    for (kind, what), count in sorted(counts.items()):
        print(f"{kind}: {count} {what}")
    return int(any(what == "failed" for _, what in counts))


if __name__ == "__main__":
    sys.exit(main())
