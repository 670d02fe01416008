"""The training loop: an inner one on the device, an outer one on the host.

`Trainer` makes N steps in one call, without the host in between; `Controller` owns everything that
happens between two calls: checkpoints, summaries, evaluation, signals. It works for one device
and for tf.distribute's synchronous strategies alike; model.fit does not (Keras 3's fails under
MultiWorkerMirroredStrategy, and it cannot take up its input in the middle of an epoch).
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import data, model
from trainer.checkpoints import Checkpoints, Position, Torn
from trainer.config import Config, UsageError
from trainer.distribution import Cluster
from trainer.preemption import Preempted, Preemption
from trainer.report import say


class NotFinite(Exception):  # noqa: N818 - named for what the loss is
    """The loss became NaN or infinite."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"the loss of step {step} is {loss}: try a smaller --learning-rate")
        self.step = step


class Trainer:
    """Model, optimizer and the functions that run on the devices."""

    def __init__(self, strategy: tf.distribute.Strategy, config: Config, classes: int, policy: str):
        if config.batch_size % strategy.num_replicas_in_sync:
            raise UsageError(
                f"--batch-size {config.batch_size} does not divide by the "
                f"{strategy.num_replicas_in_sync} replicas of this machine"
            )
        self.strategy = strategy
        self.config = config
        self.classes = classes
        with strategy.scope():
            self.model = model.small_cnn(classes, config.image_size, policy)
            # Named, or a second one in a process has other names for the same variables.
            self.optimizer: Any = keras.optimizers.Adam(config.learning_rate, name="adam")
            if policy == "mixed_float16":
                self.optimizer = keras.optimizers.LossScaleOptimizer(
                    self.optimizer, name="loss_scale"
                )
            self.optimizer.build(self.model.trainable_variables)

    @property
    def replica_batch_size(self) -> int:
        return self.config.batch_size // self.strategy.num_replicas_in_sync

    @tf.function
    def train(self, iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        """Make `steps` steps; the mean loss of each."""
        losses = tf.TensorArray(tf.float32, size=steps)
        for step in tf.range(steps):
            loss = self.strategy.run(self._train_step, args=(next(iterator),))
            losses = losses.write(step, self._sum(loss))
        return losses.stack()

    @tf.function
    def evaluate(self, iterator: Any, batches: tf.Tensor) -> tf.Tensor:
        """Sums over `batches` batches a replica: loss, correct answers, examples."""
        totals = tf.zeros([3])
        for _ in tf.range(batches):
            totals += self._sum(self.strategy.run(self._evaluate_step, args=(next(iterator),)))
        return totals

    @tf.function
    def total(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of a number over all replicas; every worker has to ask."""
        return self._sum(self.strategy.run(tf.identity, args=(value,)))

    def wait(self) -> None:
        """Return when every worker is here."""
        self.total(tf.constant(0.0))

    def variables(self) -> dict[str, Any]:
        """Everything that training changes, by a name that a second process gives it too."""
        everything = (*self.model.variables, *self.optimizer.variables)
        return {f"{number:04d} {v.path}": v for number, v in enumerate(everything)}

    def snapshot(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.variables().items()}

    def restore(self, values: Any) -> None:
        """Raises UsageError where `values` belong to another model."""
        variables = self.variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: value.shape for name, value in values.items()}:
            raise UsageError(
                f"the checkpoints in {self.config.checkpoint_dir} are of another model, image "
                "size, precision or number of classes: use another --job-dir"
            )
        with self.strategy.scope():
            for name, variable in variables.items():
                variable.assign(values[name])

    def _sum(self, per_replica: Any) -> tf.Tensor:
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    def _train_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            # Divided by the batch of all replicas: the optimizer sums their gradients.
            loss = tf.reduce_sum(_losses(labels, logits)) / self.config.batch_size
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        return loss

    def _evaluate_step(self, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels, weights = batch
        logits = self.model(images, training=False)
        correct = tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float32)
        sums = (weights * _losses(labels, logits), weights * correct, weights)
        return tf.stack([tf.reduce_sum(values) for values in sums])


class Summaries:
    """TensorBoard's event files, written without TensorBoard: the image need not have it.

    Training and evaluation are two runs below one folder, so that a chart shows both.
    """

    def __init__(self, folder: str, write: bool) -> None:
        self._folder = folder
        self._write = write
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        proto = tf.compat.v1.SummaryMetadata
        self._metadata = proto(plugin_data=proto.PluginData(plugin_name="scalars"))

    def scalars(self, run: str, step: int, **values: float) -> None:
        if not self._write:
            return
        if run not in self._writers:
            self._writers[run] = tf.summary.create_file_writer(f"{self._folder}/{run}")
        with self._writers[run].as_default():
            for tag, value in values.items():
                tf.summary.write(tag, np.float32(value), step=step, metadata=self._metadata)

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()


class Controller:
    """The outer loop of one worker."""

    def __init__(
        self,
        trainer: Trainer,
        place: Cluster,
        train: tuple[data.Shard, ...],
        validation: tuple[data.Shard, ...],
        preemption: Preemption,
    ) -> None:
        config = trainer.config
        self.trainer = trainer
        self.config = config
        self.place = place
        self.train = train
        self.validation = validation
        self.preemption = preemption
        self.checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
        self.summaries = Summaries(config.log_dir, write=place.chief)
        self.position = Position()

    def run(self) -> dict[str, float]:
        """Train to the last step. Returns the last evaluation. Raises NotFinite, Preempted."""
        self._restore()
        batches = self._training_batches()
        evaluate = self._evaluation()
        every = (self.config.checkpoint_every, self.config.evaluate_every, self.config.steps)
        while self.position.step < self.config.steps:
            self.preemption.saved(False)
            step = self.position.step
            until_stop = (period - step % period for period in every if period)
            self._train(batches, min(self.config.steps_per_loop, *until_stop))
            step = self.position.step
            stop = self._stop_requested()
            due = [bool(period) and step % period == 0 for period in every]
            if stop or any(due):
                self._save()
            if stop:
                self.summaries.flush()
                self.trainer.wait()  # None may leave while the chief still writes.
                raise Preempted(step)
            if due[1] and step < self.config.steps:
                self.preemption.saved(True)
                evaluate()
        self.preemption.saved(True)
        return evaluate()

    def _restore(self) -> None:
        """Take up the newest whole checkpoint, passing and removing torn ones."""
        if self.place.chief:
            self.checkpoints.sweep()
        for step in reversed(self.checkpoints.steps()):
            try:
                checkpoint = self.checkpoints.load(step)
            except Torn as torn:
                say("torn", f"a checkpoint that is not whole, passed: {torn}", "WARNING", step=step)
                if self.place.chief:  # It would count among the ones to keep.
                    self.checkpoints.remove(step)
                continue
            self.trainer.restore(checkpoint.variables)
            self.position = checkpoint.position
            text = f"resumed after step {step}, epoch {self.position.epoch:.2f}"
            say("resumed", text, step=step, epoch=self.position.epoch)
            break
        if self.place.workers > 1:
            step = self.position.step
            total = float(self.trainer.total(tf.constant(float(step))))
            if total != step * self.trainer.strategy.num_replicas_in_sync:
                raise UsageError(
                    f"this worker resumes after step {step}, others do not: "
                    f"{self.config.checkpoint_dir} has to be the same folder for all"
                )

    def _training_batches(self) -> Any:
        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return data.training(
                self.train,
                context,
                batch_size=self.trainer.replica_batch_size,
                image_size=self.config.image_size,
                classes=self.trainer.classes,
                seed=self.config.seed,
                consumed=self.position.examples,
            )

        return iter(self.trainer.strategy.distribute_datasets_from_function(make))

    def _evaluation(self) -> Callable[[], dict[str, float]]:
        """A function that evaluates at the present position and reports."""
        contexts = []

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            contexts.append(context)
            return data.evaluation(
                self.validation,
                context,
                batch_size=self.trainer.replica_batch_size,
                image_size=self.config.image_size,
                classes=self.trainer.classes,
            )

        dataset = self.trainer.strategy.distribute_datasets_from_function(make)
        batches = data.evaluation_batches(
            self.validation, contexts[0], self.trainer.replica_batch_size
        )

        def evaluate() -> dict[str, float]:
            sums = self.trainer.evaluate(iter(dataset), tf.constant(batches)).numpy()
            loss, correct, examples = map(float, sums)
            result = {"loss": loss / examples, "accuracy": correct / examples}
            step = self.position.step
            self.summaries.scalars("validation", step, **result)
            text = f"step {step}: validation loss {result['loss']:.4f}, "
            text += f"accuracy {result['accuracy']:.4f} on {examples:.0f} examples"
            say("evaluated", text, step=step, examples=int(examples), **result)
            return result

        return evaluate

    def _train(self, batches: Any, count: int) -> None:
        """Make `count` steps and report them."""
        started = time.perf_counter()
        losses = self.trainer.train(batches, tf.constant(count)).numpy()
        seconds = time.perf_counter() - started
        for step, loss in enumerate(losses, start=self.position.step + 1):
            if not np.isfinite(loss):
                raise NotFinite(step, float(loss))
            self.summaries.scalars("train", step, loss=loss)
        examples = self.position.examples + count * self.config.batch_size
        epoch = examples / sum(shard.records for shard in self.train)
        step = self.position.step + count
        self.position = Position(step, examples, epoch)
        loss, speed = float(np.mean(losses)), count * self.config.batch_size / seconds
        self.summaries.scalars("train", step, epoch=epoch, examples_per_second=speed)
        if self.place.chief:
            text = f"step {step} of {self.config.steps}: loss {loss:.4f}"
            speed = round(speed, 1)
            say("step", text, step=step, loss=loss, epoch=epoch, examples_per_second=speed)

    def _stop_requested(self) -> bool:
        """All workers stop after the same step, whichever was told to."""
        requested = self.preemption.requested
        if self.place.workers > 1:
            requested = float(self.trainer.total(tf.constant(float(requested)))) > 0
        return requested

    def _save(self) -> None:
        if self.place.chief:
            path = self.checkpoints.save(self.position, self.trainer.snapshot())
            say("checkpoint", f"saved {path}", step=self.position.step)


def _losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
