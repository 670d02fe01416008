"""Checkpoints that are whole or not there.

A checkpoint is two files: `step-00000040.npz` with every variable, then `step-00000040.json`,
written last, with the step, the input position, and the size and checksum of the first. On a
disk, in a bucket and after a pulled plug alike, one without a matching second file does not
count.

An own format, because a plain NumPy archive is written several times faster than
tf.train.Checkpoint writes Keras 3's many variables, and because TensorFlow's cannot tell that
one of its files was cut short until restoring it has failed.
"""

import io
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer import storage

_MARKER = re.compile(r"step-(\d{8,})\.json")


@dataclass(frozen=True)
class Position:
    """Where a run is."""

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


class Torn(Exception):  # noqa: N818 - not a fault of the program: something cut it short
    """A checkpoint that is not whole; says why."""


class Checkpoints:
    """A folder of checkpoints, of which the newest `keep` are kept."""

    def __init__(self, folder: str, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a marker, oldest first."""
        if not storage.gfile.isdir(self.folder):
            return []
        names = map(_MARKER.fullmatch, storage.gfile.listdir(self.folder))
        return sorted(int(name[1]) for name in names if name)

    def save(self, position: Position, variables: Mapping[str, np.ndarray]) -> str:
        """Write a checkpoint, then remove the oldest ones. Returns the path of its arrays."""
        buffer = io.BytesIO()
        np.savez(buffer, **variables)
        content = buffer.getvalue()
        arrays, marker = self._paths(position.step)
        storage.write(arrays, content)
        seal = {"bytes": len(content), "crc32": zlib.crc32(content)}
        storage.write(marker, json.dumps({**asdict(position), **seal}).encode())
        for step in self.steps()[: -self.keep]:
            self.remove(step)
        return arrays

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of a step. Raises Torn."""
        arrays, marker = self._paths(step)
        try:
            record: dict[str, Any] = json.loads(storage.read(marker))
            content = storage.read(arrays)
            expected = (record.pop("bytes"), record.pop("crc32"))
            position = Position(**record)
        except (ValueError, TypeError, KeyError, tf.errors.NotFoundError) as error:
            raise Torn(f"{arrays}: {type(error).__name__}: {error}") from error
        if (len(content), zlib.crc32(content)) != expected:
            raise Torn(f"{arrays}: {len(content)} bytes that are not the {expected[0]} written")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return Checkpoint(position, {name: archive[name] for name in archive.files})

    def sweep(self) -> None:
        """Remove what a killed run left half written. Only where no other run writes."""
        whole = {path.rpartition("/")[2] for step in self.steps() for path in self._paths(step)}
        if storage.gfile.isdir(self.folder):
            for name in storage.gfile.listdir(self.folder):
                if name.startswith("step-") and name not in whole:
                    storage.gfile.remove(f"{self.folder}/{name}")

    def remove(self, step: int) -> None:
        """Marker first, so that what is left of an interrupted removal does not count."""
        for path in reversed(self._paths(step)):
            if storage.gfile.exists(path):
                storage.gfile.remove(path)

    def _paths(self, step: int) -> tuple[str, str]:
        stem = f"{self.folder}/step-{step:08d}"
        return f"{stem}.npz", f"{stem}.json"
