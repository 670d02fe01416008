"""TensorBoard over job folders on this machine and in Cloud Storage, several jobs in one view.

TensorBoard reads one folder with a link for each job, so that a run is called <job>/train or
<job>/validation. Event files in gs:// are copied beside it, and copied again when they have grown,
because TensorBoard reads gs:// only with TensorFlow. TensorBoard runs without TensorFlow even where
that is installed, because its import takes most of the start.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.core import files, system
from builder.core.errors import InputError, OutsideError
from builder.jobs import description
from builder.jobs.backends.local import folder as folders
from builder.jobs.backends.local import folder as here

MIRROR_EVERY = 15.0
"""Seconds between two looks at Cloud Storage."""

_PROGRAM = (
    "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf'); "
    "from tensorboard import main; sys.exit(main.run_main())"
)
_WANTED = re.compile(r"events\.out\.tfevents\.|/plugins/|\.hparams")
_ADDRESS = re.compile(r"TensorBoard \S+ at (\S+)")


@dataclass(frozen=True)
class JobLogs:
    """One job in the view: its name there, and its folder or gs:// address."""

    name: str
    place: str

    @property
    def remote(self) -> bool:
        return self.place.startswith("gs://")


def sources(root: Path, names: Sequence[str]) -> tuple[JobLogs, ...]:
    """The folders of these jobs: names of local jobs, folders, gs:// addresses; a job that did not
    run here is looked for in its bucket. No name: every local job. Raises InputError."""
    if not names:
        folders = _ran(root)
        if not folders:
            raise InputError(
                "no job has run on this machine yet",
                "builder job local JOB, or name a folder or a gs:// address",
            )
        return tuple(JobLogs(path.name, str(path)) for path in folders)
    found: dict[str, JobLogs] = {}
    for name in names:
        source = _source(root, name)
        while source.name in found:
            source = JobLogs(f"{source.name}+", source.place)
        found[source.name] = source
    return tuple(found.values())


def _ran(root: Path) -> list[Path]:
    """The folders of jobs and of studies that ran here."""
    marks = (folders.LOCAL, folders.STUDY)
    found = {path.parent for mark in marks for path in (root / here.FOLDER).glob(f"*/{mark}")}
    return sorted(found)


def _source(root: Path, name: str) -> JobLogs:
    if name.startswith("gs://"):
        return JobLogs(name.rstrip("/").rpartition("/")[2], name.rstrip("/"))
    if "/" in name and Path(name).is_dir():
        return JobLogs(Path(name).resolve().name, str(Path(name).resolve()))
    folder = here.folder_of(root, name)
    if folder.is_dir():
        return JobLogs(folder.name, str(folder))
    known = [path.name for path in _ran(root)]
    if name in description.names(root):
        job = description.load(root, name)
        if (job.job_dir or "").startswith("gs://") and "{job}" not in (job.job_dir or ""):
            return JobLogs(job.id, str(job.job_dir))
    raise InputError(
        f"{name}: this job has not run here, and its folder is not known",
        f"known: {', '.join(known)}" if known else "name its folder or its gs:// address",
    )


@contextlib.contextmanager
def view(found: Sequence[JobLogs], on_line: Callable[[str], None]) -> Iterator[Path]:
    """The folder for TensorBoard; copies of remote files are kept up to date in the block.

    Raises OutsideError where Cloud Storage refuses.
    """
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as scratch:
        logs = Path(scratch) / "logs"
        logs.mkdir()
        mirrors = []
        for source in found:
            link = logs / source.name
            if source.remote:
                to = Path(scratch) / "remote" / source.name
                to.mkdir(parents=True)
                mirrors.append(BucketMirror(source.place, to))
                link.symlink_to(to)
            else:
                link.symlink_to(_logs(Path(source.place)))
        for mirror in mirrors:
            count = mirror.update()
            on_line(f"{mirror.address}: {count} event files")
        done = threading.Event()
        thread = threading.Thread(target=_keep, args=(mirrors, done, on_line), daemon=True)
        thread.start()
        try:
            yield logs
        finally:
            done.set()
            thread.join(timeout=5)


def _logs(folder: Path) -> Path:
    """A job's logs/ where it holds all event files, else the whole folder."""
    logs = folder / "logs"
    others = (path for path in folder.rglob("*tfevents*") if not path.is_relative_to(logs))
    return logs if logs.is_dir() and next(others, None) is None else folder


def _keep(
    mirrors: Sequence[BucketMirror], done: threading.Event, on_line: Callable[[str], None]
) -> None:
    while mirrors and not done.wait(MIRROR_EVERY):
        for mirror in mirrors:
            try:
                mirror.update()
            except OutsideError as error:  # it may pass; the copies stay in view
                on_line(f"{error.message}; tried again in {MIRROR_EVERY:.0f} s")


@dataclass
class BucketMirror:
    """A copy of the event files below a gs:// address."""

    address: str
    folder: Path

    def __post_init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._client: Any = None

    def update(self) -> int:
        """Copy what is new or has grown. Returns how many files there are. Raises OutsideError."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        bucket, _, prefix = self.address.removeprefix("gs://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        try:
            if self._client is None:
                self._client = _storage()
            for blob in self._client.list_blobs(bucket, prefix=prefix):
                name = blob.name[len(prefix) :]
                parts = Path(name).parts
                if not _WANTED.search(f"/{name}") or ".." in parts or name.startswith("/"):
                    continue
                if self._seen.get(name) == blob.generation:
                    continue
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                content = blob.download_as_bytes()
                self._write(path, content)
                self._seen[name] = blob.generation
        except (GoogleAPIError, GoogleAuthError, OSError, ValueError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise OutsideError(
                f"{self.address}: Cloud Storage refused: {first[:200]}",
                "gcloud auth application-default login, and check the address",
            ) from error
        return len(self._seen)

    def _write(self, path: Path, content: bytes) -> None:
        """Append where the file has only grown: TensorBoard reads on where it stopped."""
        old = path.stat().st_size if path.exists() else 0
        if old and len(content) >= old and path.read_bytes() == content[:old]:
            with path.open("ab") as file:
                file.write(content[old:])
        else:
            files.write(path, content)


def _storage() -> Any:
    storage: Any = importlib.import_module("google.cloud.storage")
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        from google.auth.credentials import AnonymousCredentials

        nobody: Any = AnonymousCredentials  # untyped
        return storage.Client(project="emulated", credentials=nobody())
    return storage.Client()


def serve(
    found: Sequence[JobLogs],
    *,
    host: str = "localhost",
    port: int = 6006,
    on_line: Callable[[str], None],
) -> int:
    """Show the jobs until TensorBoard ends, or Ctrl-C. Returns its exit code.

    on_line: is told the address, and what goes wrong. Raises OutsideError where TensorBoard is not
    installed, or cannot start.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise OutsideError(
            "TensorBoard is not installed beside builder",
            f"{Path(sys.executable).parent}/uv pip install --python {sys.executable} tensorboard",
        )
    with view(found, on_line) as logs:
        command = [sys.executable, "-c", _PROGRAM, f"--logdir={logs}", f"--port={port}"]
        command += [f"--host={host}", "--reload_interval=5"]
        # in a process group of its own, Ctrl-C reaches it only through us
        process = subprocess.Popen(
            system.ending_with_parent(command),
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        before = signal.signal(signal.SIGTERM, _interrupt)
        last = ""
        address = ""
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if match := _ADDRESS.search(line):
                    address = match[1]
                    names = ", ".join(source.name for source in found)
                    on_line(f"TensorBoard: {address} ({names}); Ctrl-C ends it")
                elif line.strip():
                    last = line.strip()
            code = process.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            signal.signal(signal.SIGTERM, before)
        if not address:
            raise OutsideError(f"TensorBoard did not start: {last[:200]}", "choose another --port")
        return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
