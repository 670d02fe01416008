"""Checkpoints that are whole or not there, written while training goes on.

A checkpoint is two files: `step-00000040.npz` with every variable, and then `step-00000040.json`
with the step, the input position, and the size and checksum of the first file. A checkpoint without
a matching second file does not count, on a disk, in a bucket, or after a power cut.

The format is our own for two reasons. A NumPy archive is written several times faster than
tf.train.Checkpoint writes Keras 3's many variables. And TensorFlow's checkpoints do not show that a
file was cut short until restoring them fails.
"""

import io
import json
import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trainer.event_lines import say
from trainer.job import storage

_MARKER = re.compile(r"step-(\d{8,})\.json")


@dataclass(frozen=True)
class Position:
    """Says how far a run is."""

    step: int = 0
    """Optimizer steps made."""
    examples: int = 0
    """Training examples consumed, over all replicas and epochs."""
    epoch: float = 0.0
    """The same in epochs, for people."""


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    variables: Mapping[str, np.ndarray]
    state: Mapping[str, Any] = field(default_factory=dict)
    """What observers, stopwatch and evaluation keep, as JSON."""

    def by_path(self) -> dict[str, np.ndarray]:
        """Return the values by paths; the names have numbers, too: "0004 conv1/kernel"."""
        return {name.partition(" ")[2]: value for name, value in self.variables.items()}


class Torn(Exception):  # noqa: N818 - not a fault of the program: something cut it short
    """A checkpoint is not whole; the message says why."""


class Spoiled(Exception):  # noqa: N818 - named for what was found
    """A snapshot has values that are not finite, which no checkpoint may hold."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"{name} is not finite after step {step}")
        self.step = step


class Unwritable(Exception):  # noqa: N818 - named for what the folder is
    """A checkpoint could not be written in several tries."""


class Checkpoints:
    """A folder of checkpoints, of which the newest `keep` are kept."""

    def __init__(self, folder: str, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Return steps that have a marker, oldest first."""
        if not storage.gfile.isdir(self.folder):
            return []
        names = map(_MARKER.fullmatch, storage.gfile.listdir(self.folder))
        return sorted(int(name[1]) for name in names if name)

    def save(
        self,
        position: Position,
        variables: Mapping[str, np.ndarray],
        state: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a checkpoint, then remove the oldest ones. Returns the path of its arrays."""
        buffer = io.BytesIO()
        arrays_by_name: dict[str, Any] = dict(variables)
        np.savez(buffer, **arrays_by_name)
        content = buffer.getvalue()
        arrays, marker = self.paths(position.step)
        storage.write(arrays, content)
        seal = {"bytes": len(content), "crc32": zlib.crc32(content)}
        record = {**asdict(position), **seal, "state": dict(state or {})}
        storage.write(marker, json.dumps(record).encode())
        for step in self.steps()[: -self.keep]:
            self.remove(step)
        return arrays

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Raises Torn."""
        arrays, marker = self.paths(step)
        try:
            record: dict[str, Any] = json.loads(storage.read(marker))
            content = storage.read(arrays)
            expected = (record.pop("bytes"), record.pop("crc32"))
            state = record.pop("state", {})
            position = Position(**record)
        except (ValueError, TypeError, KeyError, AttributeError, *storage.NOT_FOUND) as error:
            raise Torn(f"{arrays}: {type(error).__name__}: {error}") from error
        if (len(content), zlib.crc32(content)) != expected:
            text = f"{len(content):,} bytes do not have the checksum of the {expected[0]:,} written"
            raise Torn(f"{arrays}: {text}")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return Checkpoint(position, {name: archive[name] for name in archive.files}, state)

    def newest(self, remove: bool = False) -> Checkpoint | None:
        """Return the newest whole checkpoint. Each that is not whole is reported and, with
        `remove`, removed: it would count as one of those to keep."""
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except Torn as error:
                text = f"skipped a checkpoint that is not whole: {error}"
                say("torn", text, "WARNING", step=step)
                if remove:
                    self.remove(step)
        return None

    def size(self) -> int:
        """Return bytes of the checkpoints that are there, the best one included."""
        folders = (self, Checkpoints(f"{self.folder}/best", keep=1))
        paths = [
            path for folder in folders for step in folder.steps() for path in folder.paths(step)
        ]
        return sum(storage.gfile.stat(path).length for path in paths if storage.gfile.exists(path))

    def copy(self, step: int, folder: str) -> None:
        """Copy a checkpoint to another folder, of which it becomes the only one."""
        other = Checkpoints(folder, keep=1)
        for source, target in zip(self.paths(step), other.paths(step), strict=True):
            storage.write(target, storage.read(source))
        for old in other.steps():
            if old != step:
                other.remove(old)

    def sweep(self) -> None:
        """Remove what a killed run left half written. Call it only if no other run writes here."""
        whole = {path.rpartition("/")[2] for step in self.steps() for path in self.paths(step)}
        if storage.gfile.isdir(self.folder):
            for name in storage.gfile.listdir(self.folder):
                if name.startswith("step-") and name not in whole:
                    storage.gfile.remove(f"{self.folder}/{name}")

    def remove(self, step: int) -> None:
        """Remove a checkpoint; the marker first, so that what an interrupted removal leaves does
        not count."""
        for path in reversed(self.paths(step)):
            if storage.gfile.exists(path):
                storage.gfile.remove(path)

    def paths(self, step: int) -> tuple[str, str]:
        """Return the two files of a step."""
        stem = f"{self.folder}/step-{step:08d}"
        return f"{stem}.npz", f"{stem}.json"


class Background:
    """Writes snapshots one after the other in a thread of its own.

    `save` returns at once if nothing is being written; otherwise it waits for the snapshot before,
    so that at most one snapshot is held beside the live variables. `done` returns what was written
    since the last call, and raises what went wrong, on the caller's thread.
    """

    TRIES = 3

    def __init__(self, checkpoints: Checkpoints, allowed: Callable[[], None] = lambda: None):
        """`allowed` is called before each commit and raises if this run lost the folder."""
        self.checkpoints = checkpoints
        self._allowed = allowed
        self._jobs: deque[Future[tuple[int, str]]] = deque()

    def save(self, position: Position, tensors: Mapping[str, Any], state: dict[str, Any]) -> None:
        """Write a snapshot: tensors that training will not change."""
        for job in tuple(self._jobs):
            if job.exception():  # which waits for its end
                self._jobs.remove(job)
                job.result()
        written: Future[tuple[int, str]] = Future()
        self._jobs.append(written)
        # a daemon: one that hangs on a frozen disk does not keep the process from its end
        saving = (written, position, tensors, state)
        threading.Thread(target=self._work, args=saving, name="checkpoints", daemon=True).start()

    def done(self, wait: bool = False) -> list[tuple[int, str]]:
        """Return step and path of each checkpoint written since the last call; with `wait`, after
        all snapshots are written.

        Raises Spoiled, Unwritable, or what `allowed` raises; if some were written, the next call
        does.
        """
        saved: list[tuple[int, str]] = []
        while self._jobs and (wait or self._jobs[0].done()):
            if saved and self._jobs[0].exception():
                break
            saved.append(self._jobs.popleft().result())
        return saved

    def wait(self, seconds: float) -> None:
        """Wait until all snapshots are written, or for `seconds`."""
        futures.wait(self._jobs, seconds)

    def _work(self, written: Future[tuple[int, str]], *snapshot: Any) -> None:
        try:
            written.set_result(self._commit(*snapshot))
        except BaseException as error:
            written.set_exception(error)

    def _commit(
        self, position: Position, tensors: Mapping[str, Any], state: dict[str, Any]
    ) -> tuple[int, str]:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Spoiled(position.step, name)
        tries = 0
        while True:
            self._allowed()
            try:
                return position.step, self.checkpoints.save(position, arrays, state)
            except storage.FAILURES as error:
                tries += 1
                if tries == self.TRIES:
                    folder, text = self.checkpoints.folder, str(error).split("\n")[0][:200]
                    raise Unwritable(
                        f"the checkpoint of step {position.step} could not be written to {folder} "
                        f"in {self.TRIES} tries: {text}"
                    ) from error
            time.sleep(2.0 ** (tries - 1))
