"""What TensorBoard shows of a run: scalars and a profile, both written by the chief.

The runs `train` and `validation` have the same tags, so that one chart shows both. TensorFlow
itself writes the event files: an image need not have TensorBoard.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import METRICS, Config
from trainer.observe.observer import Observer, Run
from trainer.observe.utilization import Utilization
from trainer.report import say

FLUSH = 30
"""Seconds after which events become readable. A bucket gets the whole file again each time."""
_START = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)


class Scalars(Observer):
    """Writes loss, metrics, learning rate and gradient norm of each step; for each call the speed,
    the split of a step, and how the machine is used.

    A failure leaves it out from then on, as any other observer (see observer.Watch).
    """

    def __init__(self, machine: Utilization) -> None:
        self._machine = machine
        self._before: dict[str, float] = {}
        self._reached = 0
        self._folder = ""
        self._writers: dict[str, Any] = {}

    def begin(self, run: Run) -> None:
        self._before = run.stopwatch.seconds()
        self._folder = run.config.log_dir
        self._reached = run.position.step

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if first_step <= self._reached:  # back to a checkpoint: these steps are made again
            for name in self._writers:
                self._write(name, first_step, session_log=_START)
        shown = {k: v for k, v in metrics.items() if k not in ("seconds", "input_wait")}
        count = len(metrics["loss"])
        for index in range(count):
            values = {name: float(value[index]) for name, value in shown.items()}
            if index == count - 1:
                values |= self._speed(run, metrics, count) | self._machine.sample()
            self._scalars("train", first_step + index, values)
        self._reached = run.position.step

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        known = {name: result[name] for name in METRICS if name in result}
        self._scalars("validation", step, known)

    def end(self, run: Run, outcome: str) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _scalars(self, name: str, step: int, values: Mapping[str, float]) -> None:
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            if np.isfinite(value):
                summary.value.add(tag=tag, simple_value=value)
        self._write(name, step, summary=summary)

    def _write(self, name: str, step: int, **content: Any) -> None:
        """Write an event of the run `name`; a reader forgets what came after a _START before it."""
        if name not in self._writers:
            folder = f"{self._folder}/{name}"
            self._writers[name] = tf.summary.create_file_writer(folder, flush_millis=1000 * FLUSH)
            # The first START of a folder means nothing to readers.
            self._write(name, self._reached + 1, session_log=_START)
        event = tf.compat.v1.Event(wall_time=time.time(), step=step, **content)
        # tf.summary has no function that writes a START.
        handle = self._writers[name]._resource
        tf.raw_ops.ImportEvent(writer=handle, event=event.SerializeToString())

    def _speed(self, run: Run, metrics: Mapping[str, np.ndarray], count: int) -> dict[str, float]:
        """Return examples a second, and milliseconds a step by part, since the last call."""
        now = run.stopwatch.seconds()
        split = {
            f"step_ms/{part}": 1000 * (now[part] - self._before.get(part, 0.0)) / count
            for part in ("input", "compute", "checkpoint", "evaluation", "summaries", "other")
        }
        self._before = now
        seconds = float(metrics["seconds"][0])
        return {
            "examples_per_second": run.config.batch_size / seconds,
            "epoch": run.position.epoch,
            "step_ms/total": 1000 * seconds,
            **split,
        }


class Profile(Observer):
    """Runs TensorFlow's profiler over the steps of --profile-steps, on the chief.

    Each of these steps is an inner call of its own and is marked in the trace.
    """

    def __init__(self, config: Config) -> None:
        self.first, self.last = config.profile_steps or (0, 0)
        self._running = False
        self._mark = contextlib.ExitStack()

    def begin(self, run: Run) -> None:
        self._turn(run)

    def until(self, step: int) -> int | None:
        if not self.last or step >= self.last:
            return None
        return max(self.first - 1, step + 1)

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._turn(run)

    def end(self, run: Run, outcome: str) -> None:
        self._stop(run)

    def _turn(self, run: Run) -> None:
        step = run.position.step
        self._mark.close()
        if step >= self.last:
            self._stop(run)
        elif step >= self.first - 1:
            if not self._running:
                tf.profiler.experimental.start(f"{run.config.log_dir}/train")
                self._running = True
            mark = tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1)
            self._mark.enter_context(mark)

    def _stop(self, run: Run) -> None:
        self._mark.close()
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()
            step, folder = run.position.step, f"{run.config.log_dir}/train/plugins/profile"
            say("profile", f"steps {self.first} to {step} are in {folder}", step=step, path=folder)
