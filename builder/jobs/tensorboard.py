"""TensorBoard over the folders of jobs on this machine and in Cloud Storage, in one view.

TensorBoard reads one folder with a link for each job, so that a run is called <job>/train. Event
files in gs:// are copied beside it, and copied again when they have grown, because TensorBoard
reads gs:// only with TensorFlow. It runs without TensorFlow even where that is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import InputError, OutsideError
from builder.jobs import description
from builder.jobs.backends.local import folder as local

MIRROR_EVERY = 15.0
"""Seconds between two looks at Cloud Storage."""
_WANTED = re.compile(r"events\.out\.tfevents\.|/plugins/|\.hparams")


def sources(root: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Return the folder or the gs:// address of each of these jobs, by its name in the view.

    names: local jobs, folders, gs:// addresses; a job that did not run here is looked for in its
    bucket. No name means every local job. Raises InputError.
    """
    marks = (local.LOCAL, local.STUDY)
    folders = (root / local.FOLDER).glob("*")
    ran = sorted(path for path in folders if any((path / mark).exists() for mark in marks))
    if not names and not ran:
        raise InputError(
            "no job has run on this machine yet",
            "builder job local JOB, or name a folder or a gs:// address",
        )
    addresses = [_address(root, name, ran) for name in names] or [str(path) for path in ran]
    by_name: dict[str, str] = {}
    for address in addresses:
        name = address.rpartition("/")[2]
        while name in by_name:
            name += "+"
        by_name[name] = address
    return by_name


def _address(root: Path, name: str, ran: Sequence[Path]) -> str:
    if name.startswith("gs://"):
        return name.rstrip("/")
    if "/" in name and Path(name).is_dir():
        return str(Path(name).resolve())
    folder = local.folder_of(root, name)
    if folder.is_dir():
        return str(folder)
    job_dir = description.load(root, name).job_dir if name in description.names(root) else None
    if job_dir and job_dir.startswith("gs://") and "{job}" not in job_dir:
        return job_dir.rstrip("/")
    known = ", ".join(path.name for path in ran)
    raise InputError(
        f"{name}: this job has not run here, and its folder is not known",
        f"known: {known}" if known else "name its folder or its gs:// address",
    )


@contextlib.contextmanager
def view(shown: Mapping[str, str], on_line: Callable[[str], None]) -> Iterator[Path]:
    """Yield the folder for TensorBoard; copies of remote files are kept up to date in the block.

    Raises OutsideError where Cloud Storage refuses.
    """
    with tempfile.TemporaryDirectory(prefix="tensorboard-") as scratch:
        logs, mirrors = Path(scratch) / "logs", []
        logs.mkdir()
        for name, address in shown.items():
            if not address.startswith("gs://"):
                (logs / name).symlink_to(_logs(Path(address)))
                continue
            copy = Path(scratch) / "remote" / name
            copy.mkdir(parents=True)
            (logs / name).symlink_to(copy)
            mirrors.append(BucketMirror(address, copy))
            on_line(f"{address}: {mirrors[-1].update()} event files")
        done = threading.Event()

        def keep() -> None:
            while mirrors and not done.wait(MIRROR_EVERY):
                for mirror in mirrors:
                    try:
                        mirror.update()
                    except OutsideError as error:  # it may pass; the copies stay in view
                        on_line(f"{error.message}; tried again in {MIRROR_EVERY:.0f} s")

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield logs
        finally:
            done.set()
            thread.join(timeout=5)


def _logs(folder: Path) -> Path:
    """Return a job's logs/ where it holds all event files, else the whole folder."""
    logs = folder / "logs"
    others = (path for path in folder.rglob("*tfevents*") if not path.is_relative_to(logs))
    return logs if logs.is_dir() and next(others, None) is None else folder


@dataclass
class BucketMirror:
    """A copy of the event files below a gs:// address."""

    address: str
    folder: Path
    _generations: dict[str, int] = field(default_factory=dict)
    _client: Any = None

    def update(self) -> int:
        """Copy what is new or has grown; return how many files there are. Raises OutsideError."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        bucket, _, prefix = f"{self.address}/".removeprefix("gs://").partition("/")
        try:
            self._client = self._client or _storage()
            for blob in self._client.list_blobs(bucket, prefix=prefix):
                name = blob.name[len(prefix) :]
                outside = ".." in Path(name).parts or name.startswith("/")
                if outside or not _WANTED.search(f"/{name}"):
                    continue
                if self._generations.get(name) != blob.generation:
                    path = self.folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(blob.download_as_bytes())  # in place: it reads on from there
                    self._generations[name] = blob.generation
        except (GoogleAPIError, GoogleAuthError, OSError, ValueError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise OutsideError(
                f"{self.address}: Cloud Storage refused: {first[:200]}",
                "gcloud auth application-default login, and check the address",
            ) from error
        return len(self._generations)


def _storage() -> Any:
    storage: Any = importlib.import_module("google.cloud.storage")
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        from google.auth.credentials import AnonymousCredentials

        nobody: Any = AnonymousCredentials  # untyped
        return storage.Client(project="emulated", credentials=nobody())
    return storage.Client()


def serve(shown: Mapping[str, str], host: str, port: int, on_line: Callable[[str], None]) -> None:
    """Show the jobs until Ctrl-C or SIGTERM.

    on_line: is told the address, and what goes wrong. Raises OutsideError where TensorBoard is not
    installed, or cannot start.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise OutsideError(
            "TensorBoard is not installed beside builder",
            f"{Path(sys.executable).parent}/uv pip install --python {sys.executable} tensorboard",
        )
    # TensorBoard does not import TensorFlow, which takes seconds, where this module is there
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard import program  # type: ignore[import-untyped]

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with view(shown, on_line) as logs:
            board = program.TensorBoard()
            board.configure(logdir=str(logs), host=host, port=port, reload_interval=5)
            try:
                address = board.launch()
            except program.TensorBoardServerException as error:
                first = str(error).strip().splitlines()[-1][:200]
                raise OutsideError(
                    f"TensorBoard did not start: {first}", "choose another --port"
                ) from error
            on_line(f"TensorBoard: {address} ({', '.join(shown)}); Ctrl-C ends it")
            threading.Event().wait()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
