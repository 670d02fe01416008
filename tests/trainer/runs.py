"""Runs of the trainer, in this process and in others."""

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tests.campaign import cluster as cluster
from tests.trainer import forked

SMOKE = ROOT / "builder/prove/records"
QUICK = ("--records", SMOKE, "--image-size", 8)
"""Of each run, unless it is given another value."""
SECONDS = 300
"""What a run may take to end, on a busy machine."""


class Process:
    """A run in a process of its own, whose lines are read one by one."""

    def __init__(self, job: Path, *options: object, **environment: str) -> None:
        job.mkdir(parents=True, exist_ok=True)
        self._errors = job / f"stderr-{environment.get('NAME', '')}"
        words = [str(one) for one in (*QUICK, "--job-dir", job, *options)]
        variables = {**os.environ, "HOME": "/nonexistent", **environment}
        self.process, self._out = forked.start(words, variables, str(self._errors))
        self.lines: list[dict] = []

    def until(self, event: str, step: int = 0) -> dict:
        """Read on to the first line of this event at or after a step."""
        for text in self._out:
            self.lines.append(json.loads(text))
            if self.lines[-1]["event"] == event and self.lines[-1].get("step", 0) >= step:
                return self.lines[-1]
        pytest.fail(f"ended without {event!r}: {self.lines[-3:]}\n{self.stderr()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """Read the remaining lines and wait. Returns the exit code."""
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.start()
        self.lines += map(json.loads, self._out)
        self.process.join()
        assert limit.is_alive(), f"not over after {SECONDS} s: {self.lines[-3:]}"
        limit.cancel()
        assert self.process.exitcode is not None
        return self.process.exitcode

    def close(self) -> None:
        """End it, however far it is."""
        self.process.kill()
        self.process.join()
        self._out.close()

    def events(self, name: str) -> list[dict]:
        return [line for line in self.lines if line["event"] == name]

    def stderr(self) -> str:
        return self._errors.read_text()


class Task:
    """`trainer.task.main` in this process; a call returns exit code and event lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str], job: Path) -> None:
        self._capsys, self._job = capsys, job

    def __call__(self, *arguments: object) -> tuple[int, list[dict]]:
        from trainer import task

        self._capsys.readouterr()
        code = task.main([str(one) for one in (*QUICK, "--job-dir", self._job, *arguments)])
        return code, [json.loads(text) for text in self._capsys.readouterr().out.splitlines()]


def done(job: Path, *options: object) -> list[dict]:
    """The event lines of a run in this process, for the job that several tests look at."""
    from trainer import task

    given = [str(one) for one in (*QUICK, "--job-dir", job, *options)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert task.main(given) == 0, said.getvalue()
    return [json.loads(text) for text in said.getvalue().splitlines()]


def copied(job: Path, to: Path) -> Path:
    """A job's folder as it would be there; its config.json names the folders in it."""
    shutil.copytree(job, to, dirs_exist_ok=True)
    config = to / "config.json"
    config.write_text(config.read_text().replace(str(job), str(to)))
    return to


@functools.cache
def mirrored() -> Any:
    """This process's only strategy of two devices. A second strategy would use the same keys for
    its collective operations, for which TensorFlow remembers the first one's shapes."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # too late only where another test did it
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
    assert len(tf.config.list_logical_devices("CPU")) == 2, "call it where the module is imported"
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def weights(job: Path, step: int) -> dict[str, np.ndarray]:
    with np.load(job / f"checkpoints/step-{step:08d}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def same_weights(one: Path, other: Path, step: int) -> None:
    first, second = weights(one, step), weights(other, step)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars that TensorBoard reads from a run's event files, by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    for tag, values in found.items():
        assert len({value.step for value in values}) == len(values), f"{tag}: a step is there twice"
    return {tag: {value.step: value.value for value in values} for tag, values in found.items()}
