"""The seam between the loop and what looks on: summaries, utilisation, tuning, progress.

The loop calls every observer at the same places on every rank, in the order of the list. An
observer reads and reports; it takes part in no collective, and it changes nothing of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config


class Writer:
    """TensorBoard's event files, written without TensorBoard: the image need not have it.

    Each `run` ("train", "validation", ...) is a folder below `folder`, so that one chart shows
    several. Where `write` is false (every rank but the chief) nothing is written.
    """

    def __init__(self, folder: str, write: bool) -> None:
        self.folder = folder
        self.write = write
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        proto = tf.compat.v1.SummaryMetadata
        self._metadata = proto(plugin_data=proto.PluginData(plugin_name="scalars"))

    def of(self, run: str) -> tf.summary.SummaryWriter:
        """The writer of a run, made when it is first asked for; one that drops all elsewhere."""
        if not self.write:
            return tf.summary.create_noop_writer()
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(f"{self.folder}/{run}")
        return self._writers[run]

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        if not self.write:
            return
        with self.of(run).as_default():
            for tag, value in values.items():
                tf.summary.write(tag, np.float32(value), step=step, metadata=self._metadata)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()


@dataclass
class Run:
    """What an observer may look at. Only the loop writes to it."""

    config: Config
    place: Any
    """trainer.distribution.Cluster: role, index, workers, whether this is the chief."""
    strategy: Any
    model: Any
    optimizer: Any
    names: tuple[str, ...]
    """Of the classes; label n is names[n]."""
    train: tuple[Any, ...]
    """trainer.data.Shard of the training records, and below of the validation ones."""
    validation: tuple[Any, ...]
    ledger: Any
    """trainer.ledger.Ledger: where the time went."""
    writer: Writer
    position: Any
    """trainer.checkpoints.Position: step, examples, epoch; at all times the present one."""
    steps: int
    """Optimizer steps of the whole run, those before a restart included."""
    policy: str = "float32"
    facts: dict[str, Any] = field(default_factory=dict)
    """Software and devices, as in the first log line."""


class Observer:
    """Does nothing at each occasion; override the ones of interest."""

    name = ""
    """Key of its state in a checkpoint; "" for none."""

    def begin(self, run: Run) -> None:
        """Once, after a checkpoint was taken up, before the first step."""

    def until(self, step: int) -> int | None:
        """The next step (> `step`) after which it wants to be called; None: any. One inner call
        never goes past it, so that a profile or a histogram is of the very step asked for."""
        return None

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        """After each inner call: arrays with one value a step, for first_step, first_step + 1, ...
        There are loss, accuracy, gradient_norm, learning_rate, and (the same for all steps of a
        call) seconds, the wall time of one step, and input_wait, the seconds of it without data."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        """After an evaluation of the model as it is: loss, accuracy, examples, seconds."""

    def saved(self, run: Run, step: int, seconds: float) -> None:
        """After a checkpoint was taken: `seconds` for which training stood still for it."""

    def end(self, run: Run, outcome: str) -> None:
        """Once: "done", "stopped" (early), "preempted", "diverged", "fault". Last words only:
        there may be less than a second left. Not called after kill -9."""

    def closed(self, run: Run) -> None:
        """Once, after the last SavedModel, at the very end of a run that is done or stopped."""

    def state(self) -> dict[str, Any]:
        """What is to lie in the checkpoint, as JSON knows it."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """What `state` gave when the checkpoint was taken; called before `begin`."""
