"""A Slurm cluster behind the calls of builder/jobs/backends/protocol.py, by its own commands.

A job's name holds its key. squeue knows a job until minutes after its end, then sacct does. What
replicas print lies in a folder that the nodes share. Sources: Slurm, sbatch, squeue, sacct.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from builder.core import files, settings
from builder.core.backends import Flags
from builder.core.errors import InputError, OutsideError
from builder.core.findings import DoctorFinding
from builder.jobs.backends import protocol
from builder.jobs.backends.protocol import JobStatus, LogLine, ReplicaStatus
from builder.jobs.checks import check_no_plain_secrets, common
from builder.jobs.description.job import Job
from builder.jobs.machines import Pool, replica_names
from builder.jobs.ready import JobImage, Ready, key_of
from training_slurm.options import SlurmSettings
from training_slurm.script import Name, script

_STATES: Final = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"), "pending"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING"), "running"),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), "paused"),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), "expired"),
    "COMPLETED": "succeeded",
    "CANCELLED": "cancelled",
}
"""Every other state is a failure."""
_SILENT: Final = ("Socket timed out", "Unable to contact slurm controller", "Connection refused")


def connect(root: Path, _job: Job | None, flags: Flags, _name: str | None) -> Slurm:
    """Return the cluster whose commands this machine has. Raises InputError."""
    chosen = settings.load(root, tables={"slurm": flags}).table("slurm", SlurmSettings)
    return Slurm(chosen, (root / chosen.folder).absolute())


def findings(backend: Slurm, ready: Ready | None) -> tuple[DoctorFinding, ...]:
    """Return what there is to say of a cluster, and of a job there."""
    found = [DoctorFinding("cluster", "ok", ask("sbatch", "--version").strip())]
    if "--container-image" not in ask("srun", "--help"):
        found.append(DoctorFinding("pyxis", "error", "srun starts no containers", "install pyxis"))
    if ready is not None:
        backend.preflight(ready)
        found.append(DoctorFinding("job", "ok", "the cluster would take it"))
    return tuple(found)


def ask(*command: str, stdin: str = "") -> str:
    """Return what a command of Slurm prints. Raises OutsideError where it refuses or is missing."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OutsideError(f"no {command[0]} here", "run this on a login node") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip().splitlines() or [f"{command[0]}: exit code {done.returncode}"]
    kind = protocol.UnansweredError if any(map(done.stderr.count, _SILENT)) else OutsideError
    raise kind(said[-1], "builder job render --on slurm shows what is sent")


@dataclass(frozen=True)
class Slurm:
    """The jobs that this user has sent to a cluster."""

    title, name, location = "Slurm", "slurm", "this user's queue"

    settings: SlurmSettings
    folder: Path
    """Of their logs and outputs."""

    def check(self, job: Job, image: JobImage, targets: Mapping[str, str]) -> Ready:
        """Return the job with its machines, checked. Raises InputError with every problem."""
        problems, placements, notes = common(job, image, targets)
        with problems.at(("machine",)):
            if len(set(placements)) > 1 or any(each.on_tpu for each in placements):
                raise InputError("the replicas of a batch job have one machine, and no TPU", "")
        with problems.at(("study",)):
            if job.study is not None:
                raise InputError("a study is not one job", "builder job local runs it here")
        with problems.at(("command",)):
            if not (job.command or image.entrypoint):
                raise InputError("what the image starts is not known", "write command: [...]")
        with problems.at(("environment",)):
            for name in job.secrets:
                raise InputError(f"{name}: Slurm keeps no secrets", "read it from a file there")
            check_no_plain_secrets(job, "let the program read {name} from a file of the cluster")
        problems.stop()
        has = {**dict(job), "strategy": job.scheduling.strategy != "standard"}
        unused = [each for each in ("network", "tensorboard", "labels", "strategy") if has[each]]
        notes = [each for each in notes if "no job_dir" not in each]  # /job takes its place
        notes += [f"{each}: Slurm has no such thing" for each in (*unused, *job.elsewhere("slurm"))]
        notes.append("enroot reads layers of gzip alone unless ENROOT_GZIP_PROGRAM is zstd")
        return Ready(job, image, "", placements, None, tuple(notes))

    def preflight(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:
        """Let the cluster check the job without a place in its queue. Raises OutsideError."""
        ask("sbatch", "--test-only", stdin=(sent := self.render(ready, run, attempt))["script"])
        return sent

    def key(self, ready: Ready) -> str:
        """Return a hash of everything that the job asks for; the job's name holds it."""
        return key_of(script(ready, self.settings, Path(), Name(ready.job.id, "")))

    def render(self, ready: Ready, run: int = 1, attempt: int = 1) -> dict[str, Any]:
        """Return the name, the script and what Slurm does not keep of a job."""
        name, job = Name(ready.job.id, self.key(ready), run, attempt), ready.job
        return {
            "name": str(name),
            "script": script(ready, self.settings, self.folder, name),
            "image": ready.image.reference,
            "output": job.output(name.outputs) or str(self.folder / "outputs" / name.outputs),
            "pools": {pool.role: pool.count for pool in job.pools},
        }

    def submit(self, ready: Ready, run: int = 1, attempt: int = 1) -> JobStatus:
        """Put a job into the queue. Raises LostAnswer, OutsideError."""
        sent = self.render(ready, run, attempt)
        files.write(self.folder / sent["name"] / "job.json", json.dumps(sent))
        try:
            number = ask("sbatch", "--parsable", stdin=sent["script"])
        except protocol.UnansweredError as error:
            raise protocol.LostAnswer(error.message, "run the same command again") from error
        return self.get(number.strip().partition(";")[0])  # 123, or 123;CLUSTER

    def with_key(self, key: str) -> tuple[JobStatus, ...]:
        """Return the jobs with this key, the newest first, ended ones too."""
        return tuple(job for job, name in self._all() if name.key == key)

    def list(self, name: str | None = None, limit: int = 20) -> tuple[JobStatus, ...]:
        """Return the newest jobs, the newest first; with `name` those of one description."""
        return tuple(job for job, its in self._all() if name in (None, its.job))[:limit]

    def find(self, name: str) -> JobStatus:
        """Return the job of a number, of a whole name, or the newest of a description."""
        for job, its in self._all():
            if name in (job.name, job.display_name, its.job):
                return job
        raise OutsideError(f"no job is called {name}", "builder job list --on slurm shows all")

    get = find

    def cancel(self, job: JobStatus) -> JobStatus:
        """Ask the job to end: SIGTERM, and SIGKILL after the cluster's KillWait."""
        if self.get(job.name).active:
            ask("scancel", job.name)
        return self.get(job.name)

    def logs(self, job: JobStatus) -> protocol.LogReader:
        """Return a reader of what the replicas print."""
        return JobFiles(self.folder / job.display_name)

    def _all(self) -> Iterator[tuple[JobStatus, Name]]:
        """Yield this backend's jobs, the newest first: as squeue has them, else as sacct does."""
        text, fields = "", "JobIDRaw,JobName,State,Submit,Start,End,Reason"
        recent = ("sacct", "--starttime=now-30days", "--allocations", "--parsable2")
        queued = ("squeue", "--me", "--states=all", "--format=%i|%j|%T|%V|%S|%e|%r")
        with contextlib.suppress(OutsideError):  # a cluster may keep no accounts
            text = ask(*recent, "--noheader", f"--format={fields}")
        rows = [line.split("|") for line in (text + ask(*queued, "--noheader")).splitlines()]
        last = {row[0]: (row, its) for row in rows if row[6:] and (its := Name.parse(row[1]))}
        jobs = [(_status(self.folder / row[1], row, its), its) for row, its in last.values()]
        yield from sorted(jobs, key=lambda each: protocol.by_age(each[0]), reverse=True)


def _status(folder: Path, row: list[str], name: Name) -> JobStatus:
    """Return a job: what Slurm says of it, and what lies in its folder."""
    number, display_name, said, submitted, started, ended, reason = row
    word, known = said.split(" ")[0], dict[str, Any]()  # CANCELLED by 1000
    state = _STATES.get(word, "failed")
    with contextlib.suppress(OSError, ValueError):
        known = json.loads((folder / "job.json").read_text())
    pools = tuple(Pool(role, count) for role, count in known.get("pools", {}).items())
    replicas = tuple(_replica(folder, each, state) for each in replica_names(pools))
    failed = [each for each in replicas if each.state == "failed"]
    waits = "" if reason == "None" else f"waits: {reason}"
    error = {"pending": waits, "failed": word}.get(state, "")
    error = f"{failed[0].name} ran out of memory" if failed and word == "OUT_OF_MEMORY" else error
    return JobStatus(
        name=number,
        display_name=display_name,
        state=state,
        created=_time(submitted),
        started=None if state == "pending" else _time(started),
        ended=None if state in protocol.ACTIVE else _time(ended),
        error=error,
        image=known.get("image", ""),
        output=known.get("output", ""),
        pools=pools,
        replicas=replicas,
        run=name.run,
        attempt=name.attempt,
        failed_code=failed[0].exit_code if failed else None,
    )


def _replica(folder: Path, name: str, state: str) -> ReplicaStatus:
    """Return a replica by the code that its step has left."""
    with contextlib.suppress(OSError, ValueError):
        code = int((folder / f"{name}.exit").read_text())
        bad = "failed" if state == "failed" and code not in (137, 143) else "stopped"
        return ReplicaStatus(name, bad if code else "succeeded", code)
    return ReplicaStatus(name, state)


def _time(text: str) -> datetime | None:
    """Return a time, which Slurm writes in this machine's zone; None for N/A and its like."""
    return datetime.fromisoformat(text).astimezone(UTC) if text[:1].isdigit() else None


@dataclass
class JobFiles(protocol.LogReader):
    """What a job's replicas and its script (service.log) print, each into a file."""

    folder: Path
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> tuple[LogLine, ...]:
        """Return the lines since the last call; a line has the time at which it was read."""
        lines = list[LogLine]()
        for path in sorted(self.folder.glob("*.log")):
            with path.open("rb") as file:
                file.seek(before := self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = before + len(whole + newline)
            texts = whole.decode(errors="replace").split("\n") if newline else ()
            lines += [LogLine.printed(datetime.now(UTC), path.stem, text) for text in texts]
        return tuple(lines)
