"""The inner loop: what runs on the devices between two looks of the outer loop (outer.py).

It works for one device and for tf.distribute's synchronous strategies alike. Keras 3's model.fit
fails under MultiWorkerMirroredStrategy, and it cannot resume its input in the middle of an epoch.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.input import data, device, parts, targets
from trainer.input.parts import Shard
from trainer.model import networks, optimization, scores

METRICS = ("loss", "accuracy", "gradient_norm", "learning_rate", "input_wait")
"""Metrics of each step: loss and accuracy over the batch of all replicas; the norm of their
gradient before clipping; seconds until the batch was there (0 with --deterministic)."""


traced = functools.partial(tf.function, autograph=False)
"""tf.function without AutoGraph: rewriting the code of a small run takes longer than the run."""


def named(values: np.ndarray, config: Config) -> dict[str, np.ndarray]:
    """Return the metrics of some steps [steps, len(METRICS)] by name. With values there is no
    accuracy, but their mean absolute error, `mae`."""
    names = ["mae" if metric == "accuracy" else metric for metric in METRICS]
    return dict(zip(names if config.target == targets.VALUES else METRICS, values.T, strict=True))


def summed(strategy: tf.distribute.Strategy, values: tf.Tensor) -> tf.Tensor:
    """Return the sum over all replicas of the `values` that each of them has."""
    each = strategy.run(tf.identity, args=(values,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)


class Trainer:
    """Holds model and optimizer, and the functions that run on the devices."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        config: Config,
        classes: int,
        policy: str,
        workers: int = 1,
        labels: Mapping[str, np.ndarray] | None = None,
        accelerator: str = "",
    ):
        """`labels`: of the training records, by file; --class-weights, --sampling and a model of
        values need them. `accelerator`: GPU, TPU or "". Raises UsageError."""
        if config.batch_size % strategy.num_replicas_in_sync:
            raise UsageError(
                f"--batch-size {config.batch_size} does not divide by the "
                f"{strategy.num_replicas_in_sync} replicas of the run"
            )
        replica = config.batch_size // strategy.num_replicas_in_sync
        if config.xla and strategy.num_replicas_in_sync > 1:  # Their variables lie elsewhere.
            raise UsageError(f"--xla does not work with {strategy.num_replicas_in_sync} replicas")
        if replica % config.accumulate:
            raise UsageError(
                f"--accumulate {config.accumulate}: the batch of {replica} of a replica does not "
                "divide by it"
            )
        self.strategy = strategy
        self.config = config
        self.classes = classes
        known = labels or {}
        self.repeats = self.class_weights = None
        if config.sampling == "balanced":
            self.repeats = parts.Repeats.balanced(known, classes)
        if config.class_weights == "balanced":
            self.class_weights = parts.weights(parts.counts(known, classes))
        self.policy = policy
        self.replicas = strategy.num_replicas_in_sync
        self.workers = workers
        self.on_device = device.useful(config, accelerator)
        self.readers = workers
        """Among how many processes the records are divided: an epoch's order depends on it."""
        with strategy.scope():
            self.model = networks.build(config, classes, policy)
            if config.target == targets.VALUES and known:
                networks.learn_units(self.model, np.concatenate([*known.values()]))
        self.total = traced(functools.partial(summed, strategy))
        self.averages: list[tuple[Any, Any]] = []
        """Each variable of networks.followed with its moving average; none without --ema."""
        self.use_learning_rate(1.0)

    def use_learning_rate(self, factor: float) -> None:
        """Make a new optimizer with `factor` times the learning rate; the old state is lost."""
        config = dataclasses.replace(self.config, learning_rate=self.config.learning_rate * factor)
        with self.strategy.scope():
            self.optimizer = optimization.optimizer(config, self.policy)
            self._make_state()
        self._trace()

    def _make_state(self) -> None:
        self.optimizer.build(self.model.trainable_variables)
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if self.replicas > 1:  # `_train_step` sums the gradients, so that it can clip the sum.
            inner._all_reduce_sum_gradients = list
        followed = networks.followed(self.model) if self.config.ema else []
        self.averages = [(v, inner.add_variable_from_reference(v, "average")) for v in followed]

    def _trace(self) -> None:
        """Make the functions again, since they refer to the optimizer and its variables."""
        self._gradients_function: Any = self._gradients
        if self.config.xla:
            self._gradients_function = traced(self._gradients, jit_compile=True)
        elif self.config.accumulate > 1:  # traced once, called for each part
            self._gradients_function = traced(self._gradients)
        self.synchronise = traced(self._synchronise) if self._drifting() else lambda: None
        self._train = traced(self._train_steps)
        self._snapshot = traced(self._read)

    graph = False
    """Does TensorFlow alone make the batches, so that another process can?"""

    def batches(self, shards: tuple[Shard, ...], consumed: int) -> Any:
        """Return an endless iterator over training batches, after `consumed` examples."""
        make = functools.partial(self._batches_of, shards=shards, consumed=consumed)
        return iter(self.strategy.distribute_datasets_from_function(make))

    def _batches_of(
        self, context: tf.distribute.InputContext, shards: tuple[Shard, ...], consumed: int
    ) -> tf.data.Dataset:
        """Return the endless batches of one worker."""
        return data.training(
            shards,
            context,
            self.config,
            self.classes,
            batch_size=self.config.batch_size // self.replicas,
            consumed=consumed,
            repeats=self.repeats,
            graph=self.graph,
            on_device=self.on_device,
        )

    def train(self, batches: Any, count: int) -> dict[str, np.ndarray]:
        """Make `count` steps, and return METRICS, each with one value a step."""
        return named(self._train(batches, tf.constant(count)).numpy(), self.config)

    def vote(self, values: list[float]) -> list[float]:
        """Return the sum of each value over all workers, which must call it at the same point."""
        if self.workers == 1:
            return values
        local = self.replicas // self.workers
        # In float64, which is exact for any number of steps.
        return [float(v) / local for v in self.total(tf.constant(values, tf.float64)).numpy()]

    def variables(self) -> dict[str, Any]:
        """Return all that training changes, by a name that a second process gives it too."""
        everything = (*self.model.variables, *self.optimizer.variables)
        return {
            f"{number:04d} {v.path}": v
            for number, v in enumerate(everything)
            if not v.path.endswith("/learning_rate")  # an option, not learnt
        }

    def snapshot(self) -> dict[str, tf.Tensor]:
        """Return the present values of all variables, without a copy: TensorFlow gives a variable
        new memory when it changes while its value is held elsewhere (training_op_helpers.h)."""
        return dict(zip(self.variables(), self._snapshot(), strict=True))

    def restore(self, values: Mapping[str, Any]) -> None:
        """Assign a snapshot. Raises UsageError if `values` belong to another model."""
        variables = self.variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: tuple(value.shape) for name, value in values.items()}:
            raise UsageError(
                f"the checkpoints in {self.config.checkpoint_dir} are of another model, image "
                "size, precision, optimizer or number of classes, or differ in --ema: use another "
                "--job-dir"
            )
        with self.strategy.scope():
            for name, variable in variables.items():
                variable.assign(values[name])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """With --ema, give the model the moving averages of its weights and statistics inside."""
        values = [variable.numpy() for variable, _ in self.averages]
        with self.strategy.scope():
            for variable, average in self.averages:
                variable.assign(average.numpy())
        try:
            yield
        finally:
            with self.strategy.scope():
                for (variable, _), value in zip(self.averages, values, strict=True):
                    variable.assign(value)

    def weights(self) -> dict[str, np.ndarray]:
        """Return what a SavedModel has: the variables by their paths, with --ema averaged."""
        values = {variable.path: variable.numpy() for variable in self.model.variables}
        return values | {variable.path: average.numpy() for variable, average in self.averages}

    def _read(self) -> list[tf.Tensor]:
        return [tf.identity(variable) for variable in self.variables().values()]

    def _drifting(self) -> list[Any]:
        """Return the variables that differ among replicas: BatchNorm's moving statistics, and their
        averages."""
        if self.replicas == 1:
            return []
        own = [v for v in self.model.non_trainable_variables if v.dtype.startswith("float")]
        paths = {variable.path for variable in own}
        return own + [average for variable, average in self.averages if variable.path in paths]

    def _synchronise(self) -> None:
        """Give all replicas the mean of their BatchNorm statistics.

        A moving average is linear, so the steps at which this is done change the result by rounding
        only.
        """

        def average() -> None:
            variables = self._drifting()
            context = tf.distribute.get_replica_context()
            # identity gives the values a device. Without one, TensorFlow refuses to reduce them
            # in a process with one replica.
            values = [tf.identity(variable.value) for variable in variables]
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

        self.strategy.run(average)

    def _train_steps(self, iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        def step(number: tf.Tensor, last: tf.Tensor, metrics: Any) -> tuple[Any, ...]:
            with tf.control_dependencies([last]):
                began = self._clock()
            with tf.control_dependencies([began]):
                batch = next(iterator)
            with tf.control_dependencies(self._parts(batch)):
                waited = tf.cast(self._clock() - began, tf.float32)
            each = self.strategy.run(self._train_step, args=(batch,))
            last = self.strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
            return number + 1, last, metrics.write(number, tf.concat([last, [waited]], axis=0))

        metrics = tf.TensorArray(tf.float32, size=steps, element_shape=[len(METRICS)])
        begun = (tf.constant(0), tf.zeros([len(METRICS) - 1]), metrics)
        return tf.while_loop(lambda number, *_: number < steps, step, begun)[2].stack()

    def _clock(self) -> tf.Tensor:
        """Return the time; 0 with --deterministic, under which TensorFlow refuses to."""
        return tf.constant(0.0) if self.config.deterministic else tf.timestamp()

    def _parts(self, batch: Any) -> list[tf.Tensor]:
        local = self.strategy.experimental_local_results
        return [part for tensor in tf.nest.flatten(batch) for part in local(tensor)]

    def _gradients(
        self, images: Any, labels: Any, values: list[Any] | None = None
    ) -> tuple[Any, Any, list[Any]]:
        """Return one replica's share of the loss and of the accuracy, and its scaled gradients.

        `values`: what the trained variables are, where they lie elsewhere; None: themselves.
        """
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(values or [])
            logits = self.model(images, training=True)
            # Divided by the batch of all replicas: the sum of their gradients is the batch's.
            _, deviation = optimization.units(self.config, self.model)
            examples = optimization.losses(
                self.config, labels, logits, self.class_weights, deviation
            )
            loss = tf.reduce_sum(examples) / self.config.batch_size
            for extra in self.model.losses:
                loss += tf.cast(extra, tf.float32) / (self.replicas * self.config.accumulate)
            scaled = self.optimizer.scale_loss(loss)
        agreement = optimization.agreement(self.config, labels, logits)
        accuracy = tf.reduce_sum(agreement) / self.config.batch_size
        return loss, accuracy, tape.gradient(scaled, values or variables)

    def _in_parts(self, images: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Return `_gradients` of the batch, with --accumulate the sum over its parts, each of which
        waits for the one before, so that the memory of one is enough."""
        parts = self.config.accumulate
        if parts == 1:
            return self._gradients_function(images, labels)
        loss = accuracy = tf.constant(0.0)
        total: list[Any] = []
        for some, own in zip(tf.split(images, parts), tf.split(labels, parts), strict=True):
            with tf.control_dependencies([tensor for tensor in total if tensor is not None]):
                more = self._gradients_function(tf.identity(some), tf.identity(own))
            loss, accuracy = loss + more[0], accuracy + more[1]
            pairs = zip(total or [None] * len(more[2]), more[2], strict=True)
            total = [new if old is None else old + new for old, new in pairs]
        return loss, accuracy, total

    def _clipped(self, gradients: Sequence[Any], norm: tf.Tensor) -> list[Any]:
        """Return the gradients, of which some may be None, with at most --clip-norm."""
        if not self.config.clip_norm:
            return list(gradients)
        factor = tf.minimum(1.0, self.config.clip_norm / tf.maximum(norm, 1e-12))
        return [g if g is None else g * tf.cast(factor, g.dtype) for g in gradients]

    def _train_step(self, batch: tuple[Any, tf.Tensor]) -> tf.Tensor:
        batch = device.augmented(*batch, self.config, self.classes)
        loss, accuracy, gradients = self._in_parts(*batch)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        gradients, variables = zip(*[pair for pair in pairs if pair[0] is not None], strict=True)
        if self.replicas > 1:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
        scale = self.optimizer.scale_loss(tf.constant(1.0))
        norm = tf.linalg.global_norm(gradients) / scale
        gradients = self._clipped(gradients, norm)
        rate = tf.cast(self.optimizer.learning_rate, tf.float32)
        self.optimizer.apply(gradients, list(variables))
        share = 1.0 - optimization.kept(self.config.ema, self.optimizer.iterations)
        for variable, average in self.averages:
            average.assign(average + share * (variable - average))
        return tf.stack([loss, accuracy, norm / self.replicas, rate / self.replicas])


class Evaluation:
    """Measures a model over the validation records, each counted once."""

    CHUNK = 4
    """Batches between two checks whether to stop."""
    KEPT = 128 << 20
    """Most bytes of decoded pictures that are kept from one evaluation to the next."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        network: Any,
        config: Config,
        classes: int,
        shards: tuple[Shard, ...],
    ) -> None:
        self.strategy = strategy
        self.model = network
        self.config = config
        self.classes = classes
        self.kind: Any = scores.OF[config.target or targets.CLASS]
        self.scores: Any = None
        """Those of the last evaluation."""
        batch_size = -(-config.batch_size // strategy.num_replicas_in_sync)
        self._kept = False

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            every = data.evaluation_batches(shards, context, batch_size)
            self.batches = min(every, config.evaluate_batches or every)
            own = self.batches * context.num_replicas_in_sync // context.num_input_pipelines
            self._kept = own * batch_size * config.image_size**2 * 3 <= self.KEPT
            read = data.evaluation(shards, context, config, classes, batch_size)
            return read.take(own).cache().repeat() if self._kept else read

        self._make = functools.partial(strategy.distribute_datasets_from_function, make)
        self._dataset: Any = self._make()
        self._iterator: Any = None
        """Of pictures that are kept, after a whole evaluation: it begins again."""
        self._evaluate = traced(self._evaluate_batches)
        self._of_batch = traced(self._evaluate_batch)  # Its graph stands there twice.

    def run(
        self,
        between: Callable[[], None] = lambda: None,
        on: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> dict[str, float]:
        """Evaluate, and return trainer.config.METRICS, examples and seconds.

        `between` is called every CHUNK batches and may end the evaluation by an exception. The
        devices work inside `on`.
        """
        began = time.perf_counter()
        total: dict[str, np.ndarray] = {}
        iterator, self._iterator = self._iterator or iter(self._dataset or self._make()), None
        if self._kept:  # Its cache is this iterator's, which an error may leave half full.
            self._dataset = None
        for first in range(0, self.batches, self.CHUNK):
            if first:
                between()
            count = tf.constant(min(self.CHUNK, self.batches - first))
            with on():
                counts = {name: n.numpy() for name, n in self._evaluate(iterator, count).items()}
            total = {name: total.get(name, 0.0) + n.astype(float) for name, n in counts.items()}
        self._iterator = iterator if self._kept else None
        deviation = np.asarray(optimization.units(self.config, self.model)[1])
        self.scores = self.kind(total, deviation)
        examples, seconds = int(self.scores.examples), time.perf_counter() - began
        return {**self.scores.metrics(), "examples": examples, "seconds": seconds}

    def _evaluate_batches(self, iterator: Any, batches: tf.Tensor) -> scores.Counts:
        """Return the counts of so many batches, which stay on the devices until then."""

        def more(number: tf.Tensor, totals: scores.Counts) -> tuple[tf.Tensor, scores.Counts]:
            counts = self._of_batch(next(iterator))
            return number + 1, {name: totals[name] + counts[name] for name in totals}

        begun = (tf.constant(1), self._of_batch(next(iterator)))
        return tf.while_loop(lambda number, _: number < batches, more, begun)[1]

    def _evaluate_batch(self, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> scores.Counts:
        counts = self.strategy.run(self._count, args=batch)
        local = self.strategy.experimental_local_results
        return {name: local(count)[0] for name, count in counts.items()}

    def _count(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> scores.Counts:
        """Return the counts of a batch on all replicas, which are summed at once."""
        logits = self.model(images, training=False)
        units = optimization.units(self.config, self.model)
        counts = dict(self.kind.count(labels, logits, weights, units))
        context = tf.distribute.get_replica_context()
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, list(counts.values()))
        return dict(zip(counts, total, strict=True))
