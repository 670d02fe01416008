"""Asynchronous training with parameter servers, without losing an update.

The chief hands out steps, and the workers make them at their own pace with variables that lie on
the servers. Keras 3's own optimizer loses updates there: it reads, computes and assigns, and drops
what another worker did in between. So this module updates with fused kernels that run where the
variable lies, under its lock, and with additions. Loss and gradients are those of every strategy.

What holds: each step's gradient is applied once, and whole, to each variable; no update is lost;
the chief takes a checkpoint while no step is under way, so the checkpoint is consistent.

What does not hold: a gradient may come from weights some updates old, and a worker may read some
variables before and some after another's update, so two runs never give the same bits. If a worker
dies in a step, the step is made again, and what it had applied counts twice. Each worker goes
through its own part of the records, so a faster worker sees its part more often.
"""

import contextlib
import dataclasses
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
from trainer.model import networks
from trainer.report import say

OPTIMIZERS = ("adam", "sgd")
"""Those whose update is one kernel that holds the variable's lock."""
_WORKS: dict[str, tuple[Any, ...]] = {
    "optimizer": OPTIMIZERS,
    "accumulate": (1,),
    "cache": (cache.NONE,),
    "ema": (0.0,),
    "weight_decay": (0.0,),
    "xla": (False,),
    "augment_on": ("auto", "host"),
}
"""The values that an option may have here."""
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
        workers: int = 1,
        labels: Mapping[str, np.ndarray] | None = None,
    ):
        """`workers`: number of processes that make steps."""
        for name, works in _WORKS.items():
            if (value := getattr(config, name)) not in works:
                option = f"--{name.replace('_', '-')} {value}"
                text = f"give {' or '.join(map(str, works))}"
                raise UsageError(f"{option} does not work with parameter servers: {text}")
        if policy == "mixed_float16":  # its scale of the loss follows the last gradients
            text = "give --precision mixed_bfloat16 or float32"
            raise UsageError(f"{policy} does not work with parameter servers: {text}")
        self.pipelines = workers
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(strategy, config, classes, policy, 1, labels)

    @property
    def readers(self) -> int:
        return self.pipelines

    def use_learning_rate(self, factor: float) -> None:
        """Make new slots, and `factor` times the learning rate; the old state is lost."""
        rate = self.config.learning_rate * factor
        config = dataclasses.replace(self.config, learning_rate=rate)
        self.optimizer = networks.optimizer(config, self.policy)
        self.slots: list[list[tf.Variable]] = []
        with self.strategy.scope():
            for variable in self.model.trainable_variables:
                with self.strategy.extended.colocate_vars_with(variable.value):
                    self.slots.append([_zeros(variable) for _ in range(slots(self.optimizer))])
            self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        self._step_function = tf.function(self._step)
        self._snapshot = tf.function(self._read)

    def batches(self, shards: tuple[Shard, ...], consumed: int) -> Any:
        """Return one iterator for each worker, over its own part of the records."""

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
        for variable, kept in zip(self.model.trainable_variables, self.slots, strict=True):
            named += [(f"slot{n}/{variable.path}", slot) for n, slot in enumerate(kept)]
        named.append(("updates", self.updates))
        return {f"{number:04d} {name}": v for number, (name, v) in enumerate(named)}

    def _read(self) -> list[tf.Tensor]:
        everything = self.variables().values()
        return [
            tf.identity(v.value if isinstance(v, keras.Variable) else v.read_value())
            for v in everything
        ]

    def _drifting(self) -> list[Any]:
        return []

    def gradients(self, images: Any, labels: Any) -> tuple[tf.Tensor, list[Any], list[Any]]:
        """Return [loss, accuracy], gradients of the trained variables, changes of the others."""
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
        """Return one step on a worker."""
        began = self._clock()
        with tf.control_dependencies([began]):
            images, labels = next(iterator)
        with tf.control_dependencies([images, labels]):
            waited = tf.cast(self._clock() - began, tf.float32)
        metrics, gradients, changes = self.gradients(images, labels)
        norm = tf.linalg.global_norm(gradients)
        if self.config.clip_norm:
            factor = tf.minimum(1.0, self.config.clip_norm / tf.maximum(norm, 1e-12))
            gradients = [None if slope is None else slope * factor for slope in gradients]
        made = tf.cast(self.updates.read_value(), tf.float32)
        rate = tf.cast(self.optimizer._learning_rate(made), tf.float32)
        trained = self.model.trainable_variables
        for variable, gradient, kept in zip(trained, gradients, self.slots, strict=True):
            if gradient is not None:
                update(self.optimizer, variable, gradient, kept, rate, made + 1.0)
        for variable, change in zip(self.model.non_trainable_variables, changes, strict=True):
            variable.value.assign_add(change)
        self.updates.assign_add(1)
        return tf.concat([metrics, [norm, rate, waited]], axis=0)


def slots(optimizer: Any) -> int:
    """Return how many variables `update` keeps for each trained one: Adam's moments, or sgd's
    momentum.
    """
    return 2 if isinstance(optimizer, keras.optimizers.Adam) else int(optimizer.momentum > 0)


def update(
    optimizer: Any, variable: Any, gradient: Any, kept: list[Any], rate: Any, step: Any
) -> None:
    """Apply step `step` (from 1 on) where the variable lies, with a kernel that holds its lock: the
    rule of Keras' `optimizer`, with `kept` in place of its own variables.
    """
    target = {"var": variable.value.handle, "use_locking": True}
    if not kept:
        tf.raw_ops.ResourceApplyGradientDescent(alpha=rate, delta=gradient, **target)
    elif len(kept) == 1:
        tf.raw_ops.ResourceApplyKerasMomentum(
            accum=kept[0].handle,
            lr=rate,
            grad=gradient,
            momentum=optimizer.momentum,
            use_nesterov=True,
            **target,
        )
    else:
        tf.raw_ops.ResourceApplyAdam(
            m=kept[0].handle,
            v=kept[1].handle,
            beta1_power=tf.pow(optimizer.beta_1, step),
            beta2_power=tf.pow(optimizer.beta_2, step),
            lr=rate,
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            grad=gradient,
            **target,
        )


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
    seen = reported = False
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
        if preemption.requested and place.role == "ps" and not reported:
            reported = True
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
    names = waiting.others(place.tasks, place.role, place.task)
    absent: dict[str, tuple[waiting.Presence, waiting.Wait]] = {}

    def look() -> None:
        for address, name in names.items():
            presence = waiting.probe(address)
            if presence == "answers":
                absent.pop(address, None)
                continue
            _, wait = absent.get(address, ("", waiting.Wait("the chief")))
            absent[address] = presence, wait
            if wait.due():
                wait.tell(f"for {name}: no answer")

    def lost() -> str:
        """Return who is away for too long; "": nobody."""
        patience = config.peer_timeout
        for address, (presence, wait) in absent.items():
            if presence == "silent" and wait.seconds > patience:  # It holds a step.
                return f"no answer from {names[address]} for {patience:g} s"
            if presence == "gone" and address in place.tasks["ps"] and wait.seconds > GONE:
                return f"the parameter server at {address} is gone"
        away = [absent[task][1].seconds for task in place.tasks["worker"] if task in absent]
        if len(away) == len(place.tasks["worker"]) and min(away) > patience:
            return f"no worker was there for {patience:g} s"
        return ""

    def watch() -> None:
        leaving = False
        while True:
            look()
            if text := lost():
                again = "all have to be started again, from the last checkpoint on"
                say("error", f"{text}: {again}", "ERROR")
                os._exit(RESTART)
            if not leaving and markers.read(f"{config.job_dir}/{markers.LEAVING}"):
                leaving = True
                preemption.request()
            time.sleep(1.0)

    threading.Thread(target=watch, name="servers", daemon=True).start()


def _zeros(variable: Any) -> tf.Variable:
    shape, dtype = tuple(variable.shape), variable.dtype
    return tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False, dtype=dtype)
