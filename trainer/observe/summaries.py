"""What TensorBoard shows of a run: scalars and a profile, both written by the chief.

The runs `train` and `validation` have the same tags, so that one chart shows both.
"""

import contextlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from trainer.config import METRICS, Config
from trainer.event_lines import say
from trainer.observe.events import Events
from trainer.observe.observer import Observer, Run
from trainer.observe.utilization import Utilization


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
        self._runs: dict[str, Events] = {}

    def begin(self, run: Run) -> None:
        self._before = run.stopwatch.seconds()
        self._folder = run.config.log_dir
        self._reached = run.position.step

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if first_step <= self._reached:  # back to a checkpoint: these steps are made again
            for events in self._runs.values():
                events.begin(first_step)
        written = {k: v for k, v in metrics.items() if k not in ("seconds", "input_wait")}
        count = len(metrics["loss"])
        for index in range(count):
            values = {name: float(value[index]) for name, value in written.items()}
            if index == count - 1:
                values |= self._speed(run, metrics, count) | self._machine.sample()
            self.events("train").scalars(first_step + index, values)
        self._reached = run.position.step

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        known = {name: result[name] for name in METRICS if name in result}
        self.events("validation").scalars(step, known)

    def end(self, run: Run, outcome: str) -> None:
        for events in self._runs.values():
            events.close()
        self._runs.clear()

    def events(self, name: str) -> Events:
        """Return the event file of the run `name`, "train" or "validation"."""
        if name not in self._runs:
            self._runs[name] = Events(f"{self._folder}/{name}")
            # The first beginning of a folder means nothing to readers.
            self._runs[name].begin(self._reached + 1)
        return self._runs[name]

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
