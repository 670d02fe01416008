"""Asynchronous training with parameter servers, without losing an update.

The chief hands out steps, and the workers make them at their own pace with variables that lie on
the servers. Keras 3's own optimizer loses updates there: it reads, computes and assigns, and drops
what another worker did in between. So this module updates with fused kernels that run where the
variable lies, under its lock, and with additions. Loss and gradients are those of every strategy.
docs/trainer.md says what holds and what does not.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.event_lines import leave, say
from trainer.input import device
from trainer.input.parts import Shard
from trainer.job import markers
from trainer.job.preemption import RESTART, Preemption
from trainer.loop import distribution, inner, stalls
from trainer.model import networks

OPTIMIZERS = ("adam", "sgd")
"""Those whose update is one kernel that holds the variable's lock."""
_WORKS: dict[str, tuple[Any, ...]] = {
    "optimizer": OPTIMIZERS,
    "accumulate": (1,),
    "cache": ("none",),
    "ema": (0.0,),
    "weight_decay": (0.0,),
    "xla": (False,),
    "precision": ("float32", "mixed_bfloat16"),
}
"""The values that an option may have here. With mixed_float16, the scale of the loss follows the
last gradients."""
GONE = 5.0
"""A process is gone when nobody has listened at its address for so many seconds."""


class ParameterServers(inner.Trainer):
    """inner.Trainer for the chief of a cluster with parameter servers."""

    graph = True

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        config: Config,
        classes: int,
        policy: str,
        workers: int = 1,
        labels: Mapping[str, np.ndarray] | None = None,
    ):
        """`workers`: number of processes that make steps. Raises UsageError."""
        chosen = {name: getattr(config, name) for name in _WORKS} | {"precision": policy}
        for name, value in chosen.items():
            if value not in (works := _WORKS[name]):
                option = f"--{name.replace('_', '-')} {value}"
                text = f"give {' or '.join(map(str, works))}"
                raise UsageError(f"{option} does not work with parameter servers: {text}")
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(strategy, config, classes, policy, 1, labels)
        self.readers = workers

    def _make_state(self) -> None:
        self.slots: list[list[tf.Variable]] = []
        for variable in self.model.trainable_variables:
            with self.strategy.extended.colocate_vars_with(variable.value):
                zeros = tf.zeros(variable.shape)
                own = [tf.Variable(zeros, trainable=False) for _ in range(slots(self.optimizer))]
                self.slots.append(own)
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    def _trace(self) -> None:
        super()._trace()
        self._step_function = inner.traced(self._step)

    def batches(self, shards: tuple[Shard, ...], consumed: int) -> Any:
        """Return one iterator for each worker, over its own part of the records."""
        contexts = [
            tf.distribute.InputContext(self.readers, number, self.readers)
            for number in range(self.readers)
        ]

        def of_this_worker() -> tf.data.Dataset:
            # The coordinator sends each worker the same graph; only the worker knows its index.
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            own = tf.data.Dataset.from_tensors(tf.cast(worker, tf.int64)).repeat()
            every = [self._batches_of(context, shards, consumed) for context in contexts]
            return tf.data.Dataset.choose_from_datasets(every, own)

        return iter(self.coordinator.create_per_worker_dataset(of_this_worker))

    def train(self, batches: Any, count: int) -> dict[str, np.ndarray]:
        """Return METRICS of `count` steps by the workers, after the last of them. Raises what ended
        one, or a worker's iterator, which TensorFlow wraps."""
        schedule = self.coordinator.schedule
        try:
            results = [schedule(self._step_function, args=(batches,)) for _ in range(count)]
            self.coordinator.join()
        except Exception as error:
            raise getattr(error, "original_exception", error) from None
        return inner.named(np.stack([result.fetch() for result in results]), self.config)

    def variables(self) -> dict[str, Any]:
        named: list[tuple[str, Any]] = [(v.path, v) for v in self.model.variables]
        trained = zip(self.model.trainable_variables, self.slots, strict=True)
        named += [(f"slot{n}/{v.path}", slot) for v, own in trained for n, slot in enumerate(own)]
        named.append(("updates", self.updates))
        return {f"{number:04d} {name}": v for number, (name, v) in enumerate(named)}

    def _drifting(self) -> list[Any]:
        return []

    def gradients(self, images: Any, labels: Any) -> tuple[tf.Tensor, list[Any], list[Any]]:
        """Return [loss, accuracy], gradients of the trained variables, changes of the others.

        All variables are read once, so that a step sees one value of each.
        """
        trained, others = self.model.trainable_variables, self.model.non_trainable_variables
        pulled = [tf.identity(v.value) for v in (*trained, *others)]
        pairs = zip((*trained, *others), pulled, strict=True)
        with keras.StatelessScope(pairs, collect_losses=True) as scope:
            values = pulled[: len(trained)]
            loss, accuracy, gradients = self._gradients(images, labels, values)
        changes = [
            tf.convert_to_tensor(scope.get_current_value(v)) - old
            for v, old in zip(others, pulled[len(trained) :], strict=True)
        ]
        return tf.stack([loss, accuracy]), gradients, changes

    def _step(self, iterator: Any) -> tf.Tensor:
        """Return the metrics of one step on a worker."""
        batch, targets = next(iterator)
        batch = device.augmented(batch, targets, self.config, self.classes)
        metrics, gradients, changes = self.gradients(*batch)
        norm = tf.linalg.global_norm(gradients)
        gradients = self._clipped(gradients, norm)
        made = tf.cast(self.updates.read_value(), tf.float32)
        rate = tf.cast(self.optimizer._learning_rate(made), tf.float32)
        trained = self.model.trainable_variables
        for variable, gradient, own in zip(trained, gradients, self.slots, strict=True):
            if gradient is not None:
                update(self.optimizer, variable, gradient, own, rate, made + 1.0)
        for variable, change in zip(self.model.non_trainable_variables, changes, strict=True):
            variable.value.assign_add(change)
        self.updates.assign_add(1)
        return tf.concat([metrics, [norm, rate, 0.0]], axis=0)


def slots(optimizer: Any) -> int:
    """Return how many variables `update` has for each trained one: Adam's moments, or sgd's
    momentum.
    """
    return 2 if isinstance(optimizer, keras.optimizers.Adam) else int(optimizer.momentum > 0)


def update(
    optimizer: Any, variable: Any, gradient: Any, own: list[Any], rate: Any, step: Any
) -> None:
    """Apply step `step` (from 1 on) where the variable lies, with a kernel that holds its lock: the
    rule of Keras' `optimizer`, with the slots `own` in place of its variables.
    """
    target = {"var": variable.value.handle, "use_locking": True}
    if not own:
        tf.raw_ops.ResourceApplyGradientDescent(alpha=rate, delta=gradient, **target)
        return
    target |= {"lr": rate, "grad": gradient}
    if len(own) == 1:
        target |= {"accum": own[0].handle, "momentum": optimizer.momentum}
        tf.raw_ops.ResourceApplyKerasMomentum(use_nesterov=True, **target)
        return
    beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2
    target |= {"beta1": beta_1, "beta1_power": tf.pow(beta_1, step), "m": own[0].handle}
    target |= {"beta2": beta_2, "beta2_power": tf.pow(beta_2, step), "v": own[1].handle}
    tf.raw_ops.ResourceApplyAdam(epsilon=optimizer.epsilon, **target)


class Copy(inner.Evaluation):
    """Evaluates on the chief alone, with a copy of the weights from the servers."""

    def __init__(self, trainer: ParameterServers, shards: tuple[Shard, ...]) -> None:
        self.source = trainer
        config, classes = trainer.config, trainer.classes
        network = networks.build(config, classes, trainer.policy, pretrain=False)
        super().__init__(tf.distribute.get_strategy(), network, config, classes, shards)

    def run(self, between: Any = lambda: None, on: Any = contextlib.nullcontext) -> dict[str, Any]:
        for mine, theirs in zip(self.model.variables, self.source.model.variables, strict=True):
            mine.assign(theirs.numpy())
        return super().run(between, on)


def serve(config: Config, place: distribution.Cluster, preemption: Preemption) -> None:
    """Run a worker or a parameter server until the chief is gone; exit with 143 if the job is not
    done by then. After SIGTERM it stays as long as the chief needs it to save, at most --grace
    seconds.
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # as TensorFlow's guide has it
    spec = distribution.resolver(place).cluster_spec()
    server = tf.distribute.Server(spec, job_name=place.role, task_index=place.task, protocol="grpc")
    preemption.install()
    say("start", f"{place.role} {place.task} serves at {server.target}", role=place.role)
    [address], patience = place.tasks["chief"], config.peer_timeout
    wait, seen = stalls.Wait(f"{place.role} {place.task}"), False
    while wait.seconds < patience:
        presence = stalls.probe(address)
        if presence == "answers":
            wait, seen = stalls.Wait(wait.what), True
            preemption.saved(False)
        elif preemption.requested or (seen and presence == "gone" and wait.seconds > GONE):
            break
        elif wait.due():
            wait.report(f"for chief 0 at {address}: no answer")
        time.sleep(0.5)
    if markers.finished(config) is not None:
        say("done", "the job is done", role=place.role)
        return
    text = "the chief is gone" if seen else f"the chief did not come in {patience:g} s"
    text += ": all processes have to be started again"
    leave(RESTART, "error", text, role=place.role)
