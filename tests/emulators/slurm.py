"""The commands of a Slurm cluster, as far as its users see them: sbatch, srun, squeue, sacct ...

`running` puts them into a folder for PATH. A job is a process of this machine; what its replicas do
a test says (`Cluster.does`). Words, columns and codes are those of Slurm 24.05 (doc/man/man1).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol")
ENDED = ("COMPLETED", "FAILED", "CANCELLED by 1000", "OUT_OF_MEMORY", "TIMEOUT")
HOME = "FAKE_SLURM"
Values = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """The cluster's files: `jobs/`, the steps that run, what a test has said."""

    folder: Path

    @property
    def path(self) -> str:
        """PATH with the cluster's commands."""
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def does(self, code: int = 0, stays: bool = False, of: str = "", state: str = "") -> None:
        """Say what the replicas of the jobs to come do: print `hello`, and end with a code or stay
        until a signal. of: the one that ends, others stay. state: Slurm's word for a failure."""
        says = {"code": code, "stays": stays, "of": of, "state": state}
        new = self.folder / "does.new"  # a step may read it now
        new.write_text(json.dumps(says))
        new.rename(self.folder / "does")

    def is_(self, fault: str) -> None:
        """Let the cluster be `full`, `forgetful` (of ended jobs), without `accounts`, or lose its
        `answers`."""
        (self.folder / fault).touch()

    def steps(self) -> list[Values]:
        """Return what srun was called with, and the variables of each step."""
        lines = (self.folder / "steps").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def jobs(self) -> list[Values]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("jobs/*.json"))]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster, until whose end its jobs are gone."""
    (folder / "bin").mkdir(parents=True)
    (folder / "jobs").mkdir()
    for name in COMMANDS:
        own = folder / "bin" / name
        own.write_text(
            f'#!/bin/sh\n{HOME}={folder} exec {sys.executable} -SE {__file__} {name} "$@"\n'
        )
        own.chmod(0o755)
    cluster = Cluster(folder)
    cluster.does()
    try:
        yield cluster
    finally:
        for job in filter(lambda job: job["pid"], cluster.jobs()):
            with suppress(ProcessLookupError):
                os.killpg(job["pid"], signal.SIGKILL)


# --- the commands ---------------------------------------------------------------------------------


def now() -> str:
    return datetime.now().strftime("%Y-%m-%dT%H:%M:%S")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def job_file(number: str) -> Path:
    return Path(os.environ[HOME]) / "jobs" / f"{number}.json"


def change(number: str, **values: Any) -> Values:
    """Change what is known of a job, unless it has ended, and return it; one process at a time."""
    path = job_file(number)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job: Values = json.loads(path.read_text()) if path.exists() else {"id": number}
        if job.get("state") in ENDED:
            return job
        job |= values
        path.with_suffix(".new").write_text(json.dumps(job))
        path.with_suffix(".new").rename(path)
        return job


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a call, and what stands behind them."""
    options, rest = dict[str, str](), list(words)
    while rest and rest[0].startswith("--"):
        name, _, value = rest.pop(0).partition("=")
        if name == "--":
            break
        options[name] = value
    return options, rest


def refuse(*lines: str) -> int:
    sys.stderr.write("".join(f"sbatch: error: {line}\n" for line in lines))
    return 1


def sbatch(home: Path, options: dict[str, str], _rest: list[str]) -> int:
    if "--version" in options:
        say("slurm 24.05.4")
        return 0
    script = sys.stdin.read()
    written, _ = split(shlex.split(" ".join(re.findall(r"^#SBATCH (.+)$", script, re.M))))
    if (partition := written.get("--partition", "gpu")) not in ("gpu", "cpu"):
        failed = "Batch job submission failed: Invalid partition name specified"
        return refuse(f"invalid partition specified: {partition}", failed)
    if "--test-only" in options:
        nodes = f"{written['--nodes']} nodes in partition {partition}"
        sys.stderr.write(f"sbatch: Job 1 to start at {now()} using 16 processors on {nodes}\n")
        return 0
    number = str(101 + len(list(home.glob("jobs/*.json"))))
    (home / "jobs" / f"{number}.sh").write_text(script)
    waits = (home / "full").exists()
    change(number, name=written["--job-name"], state="PENDING", submit=now(), options=written)
    change(number, reason="Resources" if waits else "None", start="N/A", end="N/A", pid=0)
    if not waits:
        runner = [sys.executable, "-SE", __file__, "run", number]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            runner, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
        )
        change(number, pid=process.pid)
    if (home / "answers").exists():
        (home / "answers").unlink()
        return refuse("Batch job submission failed: Socket timed out on send/recv operation")
    say(number)
    return 0


def run(home: Path, _options: dict[str, str], rest: list[str]) -> int:
    """Run a job's script, as slurmd does, and write how it ended."""
    number = rest[0]
    written = change(number, state="RUNNING", start=now())["options"]
    count = int(written["--nodes"])
    environment = {
        **os.environ,
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": f"node[0-{count - 1}]" if count > 1 else "node0",
        "SLURM_CPUS_PER_TASK": written["--cpus-per-task"],
        "SLURM_EXPORT_ENV": written["--export"],
    }
    with Path(written["--output"]).open("ab") as output:
        script = ["bash", str(home / "jobs" / f"{number}.sh")]
        done = subprocess.run(script, env=environment, stdout=output, stderr=output, check=False)
    failed = json.loads((home / "does").read_text())["state"] or "FAILED"
    change(number, state=failed if done.returncode else "COMPLETED", end=now())
    return 0


def srun(home: Path, options: dict[str, str], rest: list[str]) -> int:
    if "--help" in options:
        say("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
        return 0
    step = {"options": options, "command": rest, "environment": dict(os.environ)}
    with (home / "steps").open("a") as file:
        file.write(json.dumps(step) + "\n")
    (home / f"step-{os.environ['SLURM_JOB_ID']}-{os.getpid()}").touch()
    says = json.loads((home / "does").read_text())
    output = Path(options["--output"])
    with output.open("a") as file:
        file.write("hello\n")
    mine = says["of"] in ("", output.stem)
    while says["stays"] if mine else says["of"]:
        time.sleep(0.05)
    return int(says["code"]) if mine else 0


def scancel(home: Path, options: dict[str, str], rest: list[str]) -> int:
    number = rest[0]
    kind = getattr(signal, f"SIG{options.get('--signal', 'TERM')}")
    job = change(number)
    if "--signal" not in options:
        change(number, state="CANCELLED by 1000", end=now())
    for step in home.glob(f"step-{number}-*"):
        with suppress(ProcessLookupError):
            os.kill(int(step.name.rsplit("-", 1)[1]), kind)
    if "--signal" not in options and job["pid"]:
        with suppress(ProcessLookupError):
            os.killpg(job["pid"], kind)
    return 0


def scontrol(_home: Path, _options: dict[str, str], rest: list[str]) -> int:
    assert rest == ["show", "hostnames"]  # of the list in the variable
    nodes = os.environ["SLURM_JOB_NODELIST"]
    if match := re.fullmatch(r"(\w+)\[(\d+)-(\d+)\]", nodes):
        for index in range(int(match[2]), int(match[3]) + 1):
            say(f"{match[1]}{index}")
    else:
        say(nodes)
    return 0


def squeue(home: Path, options: dict[str, str], _rest: list[str]) -> int:
    letters = {"i": "id", "j": "name", "T": "state", "V": "submit", "S": "start", "e": "end"}
    letters["r"] = "reason"
    for job in Cluster(home).jobs():
        if (home / "forgetful").exists() and job["state"] in ENDED:
            continue
        line = options["--format"]
        for letter, name in letters.items():
            line = line.replace(f"%{letter}", job[name].split(" by ")[0])  # squeue says not by whom
        say(line)
    return 0


def sacct(home: Path, options: dict[str, str], _rest: list[str]) -> int:
    if (home / "accounts").exists():
        sys.stderr.write("Slurm accounting storage is disabled\n")
        return 1
    names = {"JobIDRaw": "id", "JobName": "name", "State": "state", "Submit": "submit"}
    names |= {"Start": "start", "End": "end", "Reason": "reason"}
    for job in Cluster(home).jobs():
        unknown = {"N/A": "Unknown"}
        row = (str(job[names[each]]) for each in options["--format"].split(","))
        say("|".join(unknown.get(value, value) for value in row))
    return 0


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    sys.exit(globals()[name](Path(os.environ[HOME]), *split(words)))
