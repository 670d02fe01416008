"""A whole run, from the devices to the SavedModel; trainer.task makes exit codes of its errors."""

import dataclasses
import json
import math
import os
from typing import Any

import keras
import tensorflow as tf

from trainer import evaluate
from trainer.config import Config, UsageError, sized
from trainer.input import device, splits, targets
from trainer.job import checkpoints, markers, storage
from trainer.job.checkpoints import Position
from trainer.job.lease import Lease
from trainer.job.preemption import Preempted, Preemption
from trainer.loop import distribution, inner, outer, parameter_servers, stalls
from trainer.loop.distribution import Cluster
from trainer.model import choices, results
from trainer.observe import insight
from trainer.observe.observer import Run
from trainer.observe.stopwatch import Stopwatch, process_age
from trainer.report import say


def train(
    config: Config, named: frozenset[str], place: Cluster, preemption: Preemption, claim: Lease
) -> int:
    """Train a whole run, from the devices to the SavedModel, and return the exit code.

    `named` are the options that were given. `claim` is the job folder's lease (lease.Lease), which
    the chief takes and the caller releases.
    """
    if finished := markers.finished(config):
        early = ", stopped early" if finished.get("early") else ""
        wrote = _predict_again(config, place)
        what = "the predictions were missing" if wrote else "nothing to do"
        text = f"already finished at step {finished['step']}{early}: {what}"
        say("done", text, step=finished["step"])
        return 0
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    if place.role in ("worker", "ps") and place.parameter_servers:
        return parameter_servers.serve(config, place, preemption)
    _train(_set_up(config, named, place, preemption, claim), preemption, claim)
    return 0


def _set_up(
    config: Config, named: frozenset[str], place: Cluster, preemption: Preemption, claim: Lease
) -> Run:
    """Claim the job folder, meet the other processes, and return the run with its devices and
    records.

    Raises UsageError, on all ranks alike.
    """
    problem = None
    if place.chief:
        try:
            _claim(config, claim)
        except UsageError as error:
            if place.workers == 1:
                raise
            problem = error  # the others wait for this process until `_agree` tells them
    strategy = distribution.create(place, os.environ, config.strategy, config.peer_timeout)
    preemption.install()
    policy = distribution.policy(config.precision, *distribution.devices(os.environ))
    facts = distribution.facts(strategy, place)
    text = f"TensorFlow {facts['tensorflow']} on {', '.join(facts['devices'])}, {policy}"
    say("start", text, precision=policy, **facts)
    _agree(strategy, place, problem)
    names = splits.class_names(config.records)
    shards, held_out = splits.of(config, len(names))
    config = targets.aimed(config, shards[0].target)
    records, replicas = sum(s.records for s in shards), strategy.num_replicas_in_sync
    stored = splits.stored_size(config.records)
    kinds = [kind for kind in ("GPU", "TPU") if any(kind in fact for fact in facts["devices"])]
    known = choices.Facts(records, stored, replicas, accelerated=bool(kinds))
    config = sized(choices.settled(config, named, known), records)
    kind = "" if place.parameter_servers else "".join(kinds[:1])
    config = device.settled(config, shards, kind)
    stopwatch = Stopwatch(age=process_age())
    return Run(
        config, place, strategy, names, shards, held_out, stopwatch, Position(), policy, facts
    )


def _train(run: Run, preemption: Preemption, claim: Lease) -> None:
    """Train, and write what was asked for, last of all the marker that the job is done."""
    config, place = run.config, run.place
    watch = _stalls(place, run.strategy.num_replicas_in_sync, config.peer_timeout)
    with watch.during("the start"):
        trainer, evaluation = _on_the_devices(run)
    run.model = trainer.model
    size = sum(math.prod(v.shape) * 4 for v in trainer.variables().values())

    def save_model(name: str, position: Position) -> None:
        folder = config.model_dir if name == "final" else f"{config.job_dir}/export/{name}"
        results.export(trainer.weights(), run.names, config, folder)
        say("exported", f"SavedModel ({name}) in {folder}", step=position.step, name=name)

    observers = insight.observers(config)
    controller = outer.Controller(
        trainer, evaluation, run, preemption, observers, claim.check, save_model, watch
    )
    if place.chief:
        controller.attempt(lambda: _prepare(config, size))
    controller.settle()
    try:
        outcome = controller.run()
    except Preempted:
        raise
    except Exception as error:
        controller.end("diverged" if isinstance(error, outer.NotFinite) else "fault")
        controller.rescue(config.grace)
        raise

    def conclude() -> None:
        with run.stopwatch.measure("evaluation"):
            if config.predictions:
                with trainer.averaged():
                    results.predict(evaluation.model, run.names, config, run.validation)
            if "final" in config.export:
                save_model("final", run.position)
        done = {**outcome.result, "early": outcome.early, **markers.requested(config)}
        with run.stopwatch.measure("checkpoint"):
            content = json.dumps({"step": outcome.step, **done}).encode()
            storage.write(f"{config.job_dir}/{markers.DONE}", content)

    if place.chief:
        controller.attempt(conclude)
    controller.settle()
    controller.watch.each(run, lambda observer: observer.closed(run))
    text = f"finished at step {outcome.step}{', early' if outcome.early else ''}"
    say("done", text, step=outcome.step, **outcome.result)


def _stalls(place: Cluster, replicas: int, seconds: float) -> stalls.StallMonitor:
    """Return what tells whom this process waits for.

    seconds: --peer-timeout, after which TensorFlow gives up other processes by itself where it can;
    where it does not, a step that hangs ends this process.
    """
    if place.tasks:
        named = stalls.peers(place.tasks, place.role, place.task)
        return stalls.StallMonitor(named, patience=2 * seconds)
    return stalls.StallMonitor({}, patience=0.0 if replicas == 1 else seconds)


def _on_the_devices(run: Run) -> tuple[inner.Trainer, inner.Evaluation]:
    """Return what trains and what evaluates, with the model built."""
    config, place, strategy = run.config, run.place, run.strategy
    classes, policy, held_out = len(run.names), run.policy, run.validation
    labels = None
    balanced = "balanced" in (config.sampling, config.class_weights)
    if balanced or config.target == targets.VALUES:
        labels = splits.labels(run.train, classes)
    if place.parameter_servers:
        servers = parameter_servers.ParameterServers(
            strategy, config, classes, policy, len(place.tasks["worker"]), labels
        )
        return servers, parameter_servers.Copy(servers, held_out)
    trainer = inner.Trainer(strategy, config, classes, policy, place.workers, labels)
    return trainer, inner.Evaluation(strategy, trainer.model, config, classes, held_out)


def _predict_again(config: Config, place: Cluster) -> bool:
    """Write the predictions of a job that was finished without --predictions; return whether."""
    path = f"{config.job_dir}/{results.PREDICTIONS}"
    if not (config.predictions and place.chief) or storage.gfile.exists(path):
        return False
    request = evaluate.Request(job_dir=config.job_dir, split="validation", predictions=path)
    evaluate.evaluate(request)
    return True


def _claim(config: Config, claim: Lease) -> None:
    """Make sure that this run, and it alone, can write its folders. Raises UsageError."""
    for folder in dict.fromkeys((config.job_dir, config.checkpoint_dir, config.log_dir)):
        storage.check_writable(folder)
    storage.check_writable(config.model_dir.rpartition("/")[0] or "/")
    claim.take()


def _prepare(config: Config, size: int) -> None:
    """Check that there is room for checkpoints of `size` bytes, and write config.json.

    Raises UsageError, and storage.FAILURES.
    """
    there = checkpoints.Checkpoints(config.checkpoint_dir, config.keep_checkpoints).size()
    count = config.keep_checkpoints + 2  # the best, and the one that is being written
    what = f"{count} checkpoints of {storage.size(size)}"
    storage.check_space(config.checkpoint_dir, max(size, size * count - there), what)
    content = json.dumps(dataclasses.asdict(config), indent=1).encode()
    storage.write(f"{config.job_dir}/{markers.RECORD}", content)


def _agree(strategy: Any, place: Cluster, problem: Exception | None) -> None:
    """End all ranks if the chief may not run. Raises `problem` there, UsageError elsewhere."""
    if place.workers > 1:

        @tf.function
        def total(value: tf.Tensor) -> tf.Tensor:
            each = strategy.run(tf.identity, args=(value,))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        if float(total(tf.constant(float(problem is not None)))):
            raise problem or UsageError("the chief refused to start; its log says why")
    elif problem is not None:
        raise problem
