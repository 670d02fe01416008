"""Asynchronous training with parameter servers, without losing an update.

The chief hands out steps, and the workers make them at their own pace with variables that lie on
the servers. Keras 3's own optimizer loses updates there: it reads, computes and assigns, and drops
what another worker did in between. So this module has its own update: fused kernels that run where
the variable lies, under its lock, and additions for everything else.

What holds: each step's gradient is applied once, and whole, to each variable; no update is lost;
the chief takes a checkpoint while no step is under way, so the checkpoint is consistent. For lion
and lamb TensorFlow has no single kernel: a kernel with the lock keeps the averages, and the
resulting change is subtracted, which other workers' subtractions do not disturb.

What does not hold: a gradient may come from weights some updates old, and a worker may read some
variables before and some after another's update, so two runs never give the same bits. If a worker
dies in a step, the step is made again, and what it had applied counts twice. Each worker goes
through its own part of the records, so a faster worker sees its part more often.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.input import cache
from trainer.input.parts import Shard
from trainer.job import markers, storage
from trainer.job.preemption import RESTART, Preemption
from trainer.loop import distribution, inner, waiting
from trainer.model import networks, optimization
from trainer.report import say

GONE = 5.0
"""A worker or server exits this many seconds after nobody listens at the chief's address."""


class ParameterServers(inner.Trainer):
    """inner.Trainer for the chief of a cluster with parameter servers."""

    def __init__(
        self,
        strategy: tf.distribute.ParameterServerStrategy,
        config: Config,
        classes: int,
        policy: str,
        steps: int = 0,
        workers: int = 1,
        labels: Mapping[str, np.ndarray] | None = None,
    ):
        """`workers`: number of processes that make steps."""
        if config.accumulate > 1:
            raise UsageError("--accumulate does not work with parameter servers")
        if policy == "mixed_float16":
            raise UsageError(
                "--precision mixed_float16 scales the loss by what the last gradients gave, which "
                "does not work with parameter servers: use mixed_bfloat16 or float32"
            )
        if config.cache != cache.NONE:
            raise UsageError(f"--cache {config.cache} does not work with parameter servers")
        if config.ema:
            raise UsageError(
                "--ema does not work with parameter servers, whose weights have no common step"
            )
        self.pipelines = workers
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(strategy, config, classes, policy, steps, 1, labels)

    @property
    def readers(self) -> int:
        return self.pipelines

    def _wants_xla(self) -> bool:
        if self.config.xla == "on":
            inner.left_off("with parameter servers")
        return False

    def use_learning_rate(self, factor: float) -> None:
        """Make a new update rule with `factor` times the learning rate; the old state is lost."""
        self.factor = factor
        self.optimizer = networks.optimizer(self.config, 1, self.total_steps, self.policy)
        self.rule = Rule(self.config, self.optimizer)
        self.factors = networks.factors(self.model, self.config)
        self.slots: list[list[tf.Variable]] = []
        with self.strategy.scope():
            for variable in self.model.trainable_variables:
                with self.strategy.extended.colocate_vars_with(variable.value):
                    self.slots.append([_zeros(variable) for _ in range(self.rule.averages)])
            self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        self._step_function = tf.function(self._step)
        self._snapshot = tf.function(self._read)

    def batches(self, shards: tuple[Shard, ...], consumed: int) -> Any:
        """One iterator for each worker, over its own part of the records."""

        def make(worker: int) -> tf.data.Dataset:
            context = tf.distribute.InputContext(self.pipelines, worker, self.pipelines)
            return self._batches_of(context, shards, consumed)

        spec = make(0).element_spec

        def of_this_worker() -> tf.data.Dataset:
            # The coordinator sends each worker the same graph; only the worker knows its index.
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            choices = [
                lambda number=number: tf.data.experimental.to_variant(make(number))
                for number in range(self.pipelines)
            ]
            variant = tf.switch_case(tf.cast(worker, tf.int32), choices)
            return tf.data.experimental.from_variant(variant, spec)

        return iter(self.coordinator.create_per_worker_dataset(of_this_worker))

    def train(self, batches: Any, count: int) -> dict[str, np.ndarray]:
        """Have the workers make `count` steps, and wait for the last of them."""
        schedule = self.coordinator.schedule
        results = [schedule(self._step_function, args=(batches,)) for _ in range(count)]
        self.coordinator.join()
        values = np.stack([result.fetch() for result in results])
        return inner.named(values, self.config)

    def variables(self) -> dict[str, Any]:
        """Everything that training changes, by a name that a second process gives it too."""
        named = [(v.path, v) for v in self.model.variables]
        for variable, slots in zip(self.model.trainable_variables, self.slots, strict=True):
            named += [(f"slot{n}/{variable.path}", slot) for n, slot in enumerate(slots)]
        named.append(("updates", self.updates))
        return {f"{number:04d} {name}": v for number, (name, v) in enumerate(named)}

    def _read(self) -> list[tf.Tensor]:
        everything = self.variables().values()
        return [tf.identity(v.value if _is_keras(v) else v.read_value()) for v in everything]

    def _drifting(self) -> list[Any]:
        return []

    def gradients(self, images: Any, labels: Any) -> tuple[tf.Tensor, list[Any], list[Any]]:
        """[loss, accuracy], gradients of the trained variables, changes of the others."""
        trained = self.model.trainable_variables
        others = self.model.non_trainable_variables
        pulled = [tf.identity(v.value) for v in (*trained, *others)]
        scope = keras.StatelessScope(zip((*trained, *others), pulled, strict=True))
        with tf.GradientTape() as tape:
            values = pulled[: len(trained)]
            tape.watch(values)
            with scope:
                logits = self.model(images, training=True)
                _, deviation = optimization.units(self.config, self.model)
                examples = optimization.losses(
                    self.config, labels, logits, self.class_weights, deviation
                )
                loss = tf.reduce_mean(examples) + optimization.penalty(self.config, trained)
        right = optimization.agreement(self.config, labels, logits)
        before = pulled[len(trained) :]
        changes = [
            tf.convert_to_tensor(scope.get_current_value(v)) - old
            for v, old in zip(others, before, strict=True)
        ]
        return tf.stack([loss, tf.reduce_mean(right)]), tape.gradient(loss, values), changes

    def _step(self, iterator: Any) -> tf.Tensor:
        """One step on a worker."""
        began = self._clock()
        with tf.control_dependencies([began]):
            images, labels = next(iterator)
        with tf.control_dependencies([images, labels]):
            waited = tf.cast(self._clock() - began, tf.float32)
        metrics, gradients, changes = self.gradients(images, labels)
        norm = tf.linalg.global_norm(gradients)
        if self.config.clip_norm:
            factor = tf.minimum(1.0, self.config.clip_norm / tf.maximum(norm, 1e-12))
            gradients = [None if one is None else one * factor for one in gradients]
        made = tf.cast(self.updates.read_value(), tf.float32)
        rate = tf.cast(self.optimizer._learning_rate(made), tf.float32) * self.factor
        trained = self.model.trainable_variables
        for variable, gradient, slots in zip(trained, gradients, self.slots, strict=True):
            if gradient is not None:
                own = rate * self.factors.get(variable.path, 1.0)
                self.rule.apply(variable, gradient, slots, own, made + 1.0)
        for variable, change in zip(self.model.non_trainable_variables, changes, strict=True):
            variable.value.assign_add(change)
        self.updates.assign_add(1)
        return tf.concat([metrics, [norm, rate, waited]], axis=0)


class Rule:
    """Keras' update rule, in operations that lose no update when several workers use it at once."""

    def __init__(self, config: Config, optimizer: Any) -> None:
        self.name = config.optimizer
        self.momentum = config.momentum
        self.optimizer = optimizer
        """Keras' own optimizer, for its parameters."""

    @property
    def averages(self) -> int:
        """Number of variables that the rule keeps for each trained one."""
        if self.name == "sgd":
            return 1 if self.momentum else 0
        return 1 if self.name == "lion" else 2

    def apply(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, step: Any) -> None:
        """Apply step `step` (from 1 on) where the variable lies, with kernels that hold its
        lock."""
        target = _handle(variable.value)
        rule, ops = self.name, tf.raw_ops
        if self.optimizer.weight_decay and self.optimizer._use_weight_decay(variable):
            variable.value.assign_sub(variable.value * self.optimizer.weight_decay * rate)
        if rule == "sgd" and not slots:
            ops.ResourceApplyGradientDescent(
                var=target, alpha=rate, delta=gradient, use_locking=True
            )
        elif rule == "sgd":
            ops.ResourceApplyKerasMomentum(
                var=target,
                accum=_handle(slots[0]),
                lr=rate,
                grad=gradient,
                momentum=self.momentum,
                use_nesterov=True,
                use_locking=True,
            )
        elif rule == "rmsprop":
            ops.ResourceApplyRMSProp(
                var=target,
                ms=_handle(slots[0]),
                mom=_handle(slots[1]),
                lr=rate,
                rho=self.optimizer.rho,
                momentum=self.momentum,
                epsilon=self.optimizer.epsilon,
                grad=gradient,
                use_locking=True,
            )
        elif rule == "lion":
            self._lion(variable, gradient, slots[0], rate)
        elif rule == "lamb":
            self._lamb(variable, gradient, slots, rate, step)
        else:
            ops.ResourceApplyAdam(
                var=target,
                m=_handle(slots[0]),
                v=_handle(slots[1]),
                beta1_power=tf.pow(self.optimizer.beta_1, step),
                beta2_power=tf.pow(self.optimizer.beta_2, step),
                lr=rate,
                beta1=self.optimizer.beta_1,
                beta2=self.optimizer.beta_2,
                epsilon=self.optimizer.epsilon,
                grad=gradient,
                use_locking=True,
            )

    def _lion(self, variable: Any, gradient: Any, average: Any, rate: Any) -> None:
        one, two = self.optimizer.beta_1, self.optimizer.beta_2
        direction = tf.sign(average.read_value() * one + gradient * (1 - one))
        variable.value.assign_sub(rate * direction)
        _average(variable, average, gradient, two)

    def _lamb(self, variable: Any, gradient: Any, slots: list[Any], rate: Any, step: Any) -> None:
        one, two = self.optimizer.beta_1, self.optimizer.beta_2
        _average(variable, slots[0], gradient, one)
        _average(variable, slots[1], tf.square(gradient), two)
        first = slots[0].read_value() / (1 - tf.pow(one, step))
        second = slots[1].read_value() / (1 - tf.pow(two, step))
        update = first / (tf.sqrt(second) + self.optimizer.epsilon)
        weights, moved = tf.norm(tf.identity(variable.value)), tf.norm(update)
        ratio = tf.where((weights > 0) & (moved > 0), weights / tf.maximum(moved, 1e-30), 1.0)
        variable.value.assign_sub(ratio * rate * update)


class Copy(inner.Evaluation):
    """Evaluates on the chief alone, with a copy of the weights from the servers."""

    def __init__(self, trainer: ParameterServers, shards: tuple[Shard, ...]) -> None:
        self.source = trainer
        config, classes = trainer.config, trainer.classes
        network = networks.build(config, classes, trainer.policy, pretrain=False)
        super().__init__(tf.distribute.get_strategy(), network, config, classes, shards)

    def run(self, between: Any = lambda: None, on: Any = contextlib.nullcontext) -> dict[str, Any]:
        pairs = zip(self.model.variables, self.source.model.variables, strict=True)
        for mine, theirs in pairs:
            mine.assign(theirs.numpy())
        return super().run(between, on)


def serve(config: Config, place: distribution.Cluster, preemption: Preemption) -> int:
    """Run a worker or a parameter server until the chief is gone.

    Returns 0 if the job is done by then. After SIGTERM it stays as long as the chief needs it to
    save, at most --grace seconds. The chief can do without a worker but not without a server, so a
    server that has to go writes a marker to the job folder.
    """
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # as TensorFlow's guide has it
    cluster = distribution.resolver(place).cluster_spec()
    server = tf.distribute.Server(
        cluster, job_name=place.role, task_index=place.task, protocol="grpc", start=True
    )
    preemption.install()
    say("start", f"{place.role} {place.task} serves at {server.target}", role=place.role)
    chief = place.tasks["chief"][0]
    deadline = time.monotonic() + config.peer_timeout
    wait = waiting.Wait(f"{place.role} {place.task}")
    seen = told = False
    while time.monotonic() < deadline:
        presence = waiting.probe(chief)
        if presence == "answers":
            if not seen:
                preemption.saved(False)
            seen = True
            wait = waiting.Wait(wait.what)
            deadline = time.monotonic() + config.peer_timeout
        elif preemption.requested or (seen and presence == "gone" and wait.seconds > GONE):
            break
        elif wait.due():
            wait.tell(f"for chief 0 at {chief}: no answer")
        if preemption.requested and place.role == "ps" and not told:
            told = True
            leaving = {"role": place.role, "task": place.task}
            with contextlib.suppress(*storage.FAILURES):
                markers.write(f"{config.job_dir}/{markers.LEAVING}", leaving)
        time.sleep(0.5)
    if markers.finished(config) is not None:
        say("done", "the job is done", role=place.role)
        return 0
    if preemption.requested:
        say("preempted", "told to stop: the chief is gone", "WARNING", role=place.role)
        return RESTART
    text = "the chief is gone" if seen else f"the chief did not come in {config.peer_timeout:g} s"
    say("error", f"{text}: all processes have to be started again", "ERROR", role=place.role)
    return RESTART


def watch_servers(place: distribution.Cluster, config: Config, preemption: Preemption) -> None:
    """Watch servers and workers in a thread of the chief, once all are there.

    The chief saves and exits if a parameter server has to go. It exits if a server is gone, if all
    workers are gone for --peer-timeout, or if one is frozen for so long: TensorFlow would wait for
    them.
    """

    def leave(text: str) -> None:
        say("error", f"{text}: all have to be started again, from the last checkpoint on", "ERROR")
        os._exit(RESTART)

    names = waiting.others(place.tasks, place.role, place.task)

    waits: dict[str, waiting.Wait] = {}

    def over(address: str, seconds: float) -> bool:
        return address in waits and waits[address].seconds > seconds

    def watch() -> None:
        told = False
        while True:
            silent = set()
            for address, name in names.items():
                presence = waiting.probe(address)
                if presence == "answers":
                    waits.pop(address, None)
                    continue
                wait = waits.setdefault(address, waiting.Wait("the chief"))
                if presence == "silent":
                    silent.add(address)
                if wait.due():
                    wait.tell(f"for {name}: no answer")
            for address in place.tasks["ps"]:
                if over(address, config.peer_timeout if address in silent else GONE):
                    leave(f"the parameter server at {address} is gone")
            for address in silent:  # It holds a step, and others wait for that.
                if over(address, config.peer_timeout):
                    leave(f"no answer from {names[address]} for {config.peer_timeout:g} s")
            if all(over(address, config.peer_timeout) for address in place.tasks["worker"]):
                leave(f"no worker was there for {config.peer_timeout:g} s")
            if not told and markers.read(f"{config.job_dir}/{markers.LEAVING}"):
                told = True
                preemption.request()
            time.sleep(1.0)

    threading.Thread(target=watch, name="servers", daemon=True).start()


def _average(variable: Any, average: Any, value: Any, decay: float) -> None:
    """average = decay x average + (1 - decay) x value, in one kernel: that of momentum with a rate
    of 0, which leaves the variable as it is."""
    tf.raw_ops.ResourceApplyMomentum(
        var=_handle(variable.value),
        accum=_handle(average),
        lr=0.0,
        grad=value * (1 - decay),
        momentum=decay,
        use_locking=True,
    )


def _zeros(variable: Any) -> tf.Variable:
    shape, dtype = tuple(variable.shape), variable.dtype
    return tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False, dtype=dtype)


def _handle(variable: Any) -> Any:
    return variable.handle


def _is_keras(variable: Any) -> bool:
    return isinstance(variable, keras.Variable)
