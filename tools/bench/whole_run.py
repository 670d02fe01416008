"""Processor time of a whole small run of the trainer, and where it goes, beside model.fit.

    python -m tools.bench.whole_run     # `python -m tools.bench trainer_loop` runs it, too

Each side is a process of its own: scikit-learn's digits, 300 steps of 32 with small_cnn at 32
pixels, an evaluation, a SavedModel. The trainer also makes nine more evaluations, ten checkpoints,
TensorBoard's scalars and a report.
"""

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.bench import Row, real_data
from tools.bench.parts import processor

ROUNDS = 3
"""In turns; the least time of each side counts, as other programs only add to it."""
FIT = """
import sys
import keras

source, out = sys.argv[1:]
about = {"image_size": (32, 32), "batch_size": 32, "validation_split": 0.2, "seed": 0}
train, held_out = (
    keras.utils.image_dataset_from_directory(source, subset=subset, verbose=False, **about)
    for subset in ("training", "validation")
)
layers = keras.layers
x = images = keras.Input((32, 32, 3))
x = layers.Rescaling(1 / 127.5, offset=-1)(x)
for filters in (16, 32, 64):
    x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
model = keras.Model(images, layers.Dense(10)(layers.Flatten()(x)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(train.cache().repeat(), steps_per_epoch=300, epochs=1, verbose=0)
model.evaluate(held_out, verbose=0)
model.export(out, verbose=False)
"""
"""What one writes with Keras alone for pictures in folders of classes."""


def rows() -> list[Row]:
    """Measure both sides, and print where the trainer's time goes."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        with contextlib.redirect_stdout(io.StringIO()):
            records = real_data.records("digits", top, argparse.Namespace())
        given = ("--records", records, "--steps", 300, "--batch-size", 32, "--image-size", 32)
        fit = ("-c", FIT, top / "digits-source", top / "fit")
        times = [
            (spent("-m", "trainer.task", *given, "--job-dir", top / f"job{turn}"), spent(*fit))
            for turn in range(ROUNDS)
        ]
        command = ["-m", "tools.bench.whole_run", *map(str, given), "--job-dir", f"{top}/parts"]
        print(subprocess.check_output([sys.executable, *command], text=True))
    ours, theirs = map(min, zip(*times, strict=True))
    how = f"digits, 300 steps, processor seconds of whole processes, the least of {ROUNDS}"
    return [Row("a whole small run", ours, theirs, "model.fit", how, bar=1.5)]


def spent(*arguments: Any) -> float:
    """Processor seconds of Python with these arguments."""
    before = processor(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)
    return processor(resource.RUSAGE_CHILDREN) - before


class Parts:
    """Processor seconds of all threads by part of the main one, and how often each was called. A
    part does not count what parts inside it take."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._inside = 0.0

    def watch(self, owner: Any, name: str, part: str, first: str = "") -> None:
        """Count the calls of a function for `part`, the first one for `first` if that is given."""
        work: Callable[..., Any] = getattr(owner, name)
        begun: list[str] = []

        def timed(*arguments: Any, **more: Any) -> Any:
            own = part if begun or not first else first
            begun.append(own)
            before, self._inside, start = self._inside, 0.0, time.process_time()
            try:
                return work(*arguments, **more)
            finally:
                taken = time.process_time() - start
                self.seconds[own] += taken - self._inside
                self.calls[own] += 1
                self._inside = before + taken

        setattr(owner, name, timed)


def main() -> int:
    """Run the trainer in this process, and print a table of its parts."""
    parts = Parts()
    import keras  # noqa: F401 - with TensorFlow
    import tensorflow  # noqa: F401

    parts.seconds["import TensorFlow and Keras"] = time.process_time()
    from trainer import run, task
    from trainer.loop.inner import Evaluation, Trainer
    from trainer.loop.outer import Controller
    from trainer.model import results
    from trainer.observe.page import Mistakes, Report
    from trainer.observe.summaries import Scalars

    parts.watch(run, "_on_the_devices", "model, optimizer, validation records")
    parts.watch(Trainer, "batches", "training records")
    parts.watch(Trainer, "train", "steps, with what reads ahead", "first call of steps, traced")
    parts.watch(Evaluation, "run", "evaluations", "first evaluation, traced")
    parts.watch(Mistakes, "evaluated", "worst answers for the report")
    parts.watch(Scalars, "steps", "TensorBoard")
    parts.watch(Controller, "_save", "checkpoints, taken")
    parts.watch(Report, "closed", "the report's page")
    parts.watch(results, "export", "SavedModel")
    with contextlib.redirect_stdout(io.StringIO()):
        code = task.main(sys.argv[1:])
    total = time.process_time()
    parts.seconds["everything else"] = total - sum(parts.seconds.values())
    print("| part of a run | calls | processor s |\n|---|---|---|")
    for part, seconds in sorted(parts.seconds.items(), key=lambda entry: -entry[1]):
        print(f"| {part} | {parts.calls[part] or ''} | {seconds:.2f} |")
    print(f"| all of it | | {total:.2f} |")
    return code


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main())
    print(*rows(), sep="\n")
