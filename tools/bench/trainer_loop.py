"""The training loop compared with a bare model.fit, and a checkpoint with TensorFlow's own.

    python -m tools.bench trainer_loop

Both sides of a pair run in one process, in turns, on the same batches in memory. The table shows
the median of the rounds; the notes also show the smallest, for a machine that others use. An epoch
of model.fit is measured from the end of its first step to the end of its last one, without the cost
of beginning and ending an epoch. The last row is of whole processes (tools/bench/whole_run.py).
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.bench import Row, load, report, seconds, whole_run

ROUNDS, STEPS = 7, 30
MODELS = (("small_cnn", 96, 32), ("MobileNetV2", 96, 16))
"""Name of the model, pixels a side, examples a step."""


def main() -> int:
    import tensorflow as tf

    began = load()
    rows = [steps(name, size, batch) for name, size, batch in MODELS]
    rows += checkpoint() + whole_run.rows()
    facts = {"load before": began, "load after": load(), "tensorflow": tf.__version__}
    report("trainer_loop", rows, facts)
    return 0


def options(name: str, size: int, batch: int, folder: str, *more: str) -> Any:
    from trainer import config

    arguments = ["--records", "-", "--job-dir", folder, "--model", name, "--image-size", str(size)]
    arguments += ["--batch-size", str(batch), "--checkpoint-every", "1000000", *more]
    return config.parse(arguments, {})


def memory(size: int, batch: int) -> Any:
    """Batches that are ready in memory."""
    import tensorflow as tf

    tf.random.set_seed(0)
    images = tf.cast(tf.random.uniform((batch, size, size, 3), 0, 255), tf.uint8)
    labels = tf.random.uniform((batch,), 0, 10, tf.int64)
    return tf.data.Dataset.from_tensors((images, labels)).repeat().prefetch(2)


def steps(name: str, size: int, batch: int) -> Row:
    """Compare the seconds of a step of the whole loop, with its observers, with model.fit's."""
    import tensorflow as tf

    from trainer.loop import inner

    with tempfile.TemporaryDirectory() as folder, quiet():
        config = options(name, size, batch, folder, "--steps", "1000000000")
        trainer = inner.Trainer(tf.distribute.get_strategy(), config, 10, "float32")
        dataset = memory(size, batch)
        whole = whole_loop(trainer, config, iter(dataset))
        times = in_turns(lambda: seconds(whole), model_fit(config, dataset))
    ours, theirs = ([time / STEPS for time in side] for side in times)
    how = (
        f"{name}, {size} x {size}, batch {batch}, CPU; {ROUNDS} rounds of {STEPS} steps in turns, "
        f"median; smallest: {min(ours):.4f}, fit {min(theirs):.4f} s"
    )
    median = statistics.median
    return Row(f"step, {name}", median(ours), median(theirs), "model.fit", how, bar=1.02)


def whole_loop(trainer: Any, config: Any, batches: Any) -> Callable[[], None]:
    """A function that makes STEPS steps of the trainer's whole loop, with its observers."""
    from trainer.input.parts import Shard
    from trainer.job.checkpoints import Position
    from trainer.job.preemption import Preemption
    from trainer.loop import outer
    from trainer.loop.distribution import Cluster
    from trainer.observe import insight
    from trainer.observe.observer import Run
    from trainer.observe.stopwatch import Stopwatch

    trainer.batches = lambda *_: batches
    run = Run(
        config=config,
        place=Cluster(),
        strategy=trainer.strategy,
        model=trainer.model,
        names=tuple("0123456789"),
        train=(Shard("-", 10 * config.batch_size),),
        validation=(),
        stopwatch=Stopwatch(),
        position=Position(),
    )
    watching = insight.observers(config)
    nothing: Any = None
    controller = outer.Controller(trainer, nothing, run, Preemption(), watching)
    for observer in watching:
        observer.begin(run)

    def whole() -> None:
        end = run.position.step + STEPS
        while run.position.step < end:
            controller._train(batches, min(controller._count(), end - run.position.step))
            controller._vote()

    return whole


def model_fit(config: Any, dataset: Any) -> Callable[[], float]:
    """A function that makes STEPS steps of Keras' model.fit and returns their seconds."""
    import keras

    from trainer.model import networks, optimization

    model = networks.build(config, 10, "float32", pretrain=False)
    model.compile(
        optimization.optimizer(config, "float32"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    class Ends(keras.callbacks.Callback):  # type: ignore[misc]
        """When each step of an epoch ended."""

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.times: list[float] = []

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter())

    ends = Ends()

    def fit() -> float:
        model.fit(dataset, steps_per_epoch=STEPS + 1, epochs=1, verbose=0, callbacks=[ends])
        return ends.times[-1] - ends.times[0]

    return fit


def checkpoint() -> list[Row]:
    """Measure for how long a checkpoint stops training, and the step beside which it is written."""
    import tensorflow as tf

    from trainer.job.checkpoints import Background, Checkpoints, Position
    from trainer.loop import inner

    with tempfile.TemporaryDirectory() as folder:
        config = options("DenseNet121", 64, 8, folder)
        trainer = inner.Trainer(tf.distribute.get_strategy(), config, 10, "float32")
        background = Background(Checkpoints(f"{folder}/ours", keep=1))
        own = tf.train.Checkpoint(model=trainer.model, optimizer=trainer.optimizer)
        batches = iter(memory(64, 8))
        trainer.train(batches, 1)
        size = sum(v.numpy().nbytes for v in trainer.variables().values())
        stalls, theirs, after, plain = [], [], [], []
        for step in range(ROUNDS):
            plain.append(seconds(lambda: trainer.train(batches, 1)))
            position = Position(step + 1)

            def snapshot(position: Position = position) -> None:
                trainer.synchronise()
                background.save(position, trainer.snapshot(), {})

            stalls.append(seconds(snapshot))
            after.append(seconds(lambda: trainer.train(batches, 1)))
            background.done(wait=True)
            theirs.append(seconds(lambda: own.write(str(Path(folder) / "theirs"))))
    how = (
        f"DenseNet121 with Adam, {size / 1e6:.0f} MB in {len(trainer.variables())} variables; "
        f"{ROUNDS} rounds in turns, median without the first, which traces. Training keeps both "
        "cores busy, and the write takes its share of them"
    )
    stall, write, beside, step_ = (
        statistics.median(times[1:]) for times in (stalls, theirs, after, plain)
    )
    what = "checkpoint: training stops"
    return [
        Row(what, stall, write, "tf.train.Checkpoint.write", how, bar=1 / 3),
        Row(f"{what}, at most", max(stalls[1:]), None, "", how, bar=0.25, bar_of="ours"),
        Row("checkpoint: a step during the write", beside, step_, "a step without", how),
    ]


def in_turns(*works: Any) -> list[list[float]]:
    """ROUNDS times of each, as each reports them, after a first round that traces and warms up."""
    for work in works:
        work()
    rounds = [[work() for work in works] for _ in range(ROUNDS)]
    return [list(times) for times in zip(*rounds, strict=True)]


def quiet() -> Any:
    """Discard what the trainer prints."""
    return contextlib.redirect_stdout(io.StringIO())
