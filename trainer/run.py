"""A whole run, from the devices to the SavedModel; trainer.task makes exit codes of its errors."""

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainer import evaluate
from trainer.config import Config, UsageError, sized
from trainer.event_lines import say
from trainer.input import splits, targets
from trainer.job import checkpoints, markers, provenance, storage
from trainer.job.checkpoints import Position
from trainer.job.lease import Lease
from trainer.job.preemption import Preempted, Preemption
from trainer.loop import distribution, inner, outer, parameter_servers, stalls
from trainer.loop.distribution import Cluster
from trainer.model import choices, results
from trainer.observe import insight
from trainer.observe.observer import Run
from trainer.observe.stopwatch import Stopwatch, process_age


def train(
    config: Config, named: frozenset[str], place: Cluster, preemption: Preemption, claim: Lease
) -> None:
    """Train a whole run, from the devices to the SavedModel.

    `named` are the options that were given. `claim` is the job folder's lease (lease.Lease), which
    the chief takes and the caller releases.
    """
    if finished := markers.finished(config):
        early = ", stopped early" if finished.get("early") else ""
        path, what = f"{config.job_dir}/{results.PREDICTIONS}", "nothing to do"
        if config.predictions and place.chief and not storage.gfile.exists(path):
            request = evaluate.Request(job_dir=config.job_dir, split="validation", predictions=path)
            evaluate.evaluate(request, evaluate.settings(request))
            what = "the predictions were missing"
        text = f"already finished at step {finished['step']}{early}: {what}"
        say("done", text, step=finished["step"])
        return
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    if place.role in ("worker", "ps") and place.parameter_servers:
        parameter_servers.serve(config, place, preemption)
    else:
        _train(_set_up(config, named, place, preemption, claim), preemption, claim)


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
            for folder in dict.fromkeys((config.job_dir, config.checkpoint_dir, config.log_dir)):
                storage.check_writable(folder)
            storage.check_writable(config.model_dir.rpartition("/")[0] or "/")
            claim.take()
        except UsageError as error:
            if place.workers == 1:
                raise
            problem = error  # the others wait for this process until they are told
    strategy = distribution.create(place, os.environ, config.strategy, config.peer_timeout)
    preemption.install()
    tpu, capabilities = distribution.has_tpu(os.environ), distribution.compute_capabilities()
    policy = distribution.policy(config.precision, tpu, capabilities)
    facts = distribution.facts(strategy, place)
    text = f"TensorFlow {facts['tensorflow']} on {', '.join(facts['devices'])}, {policy}"
    say("start", text, precision=policy, **facts)
    total = inner.traced(functools.partial(inner.summed, strategy))
    if place.workers > 1 and float(total(tf.constant(float(problem is not None)))):
        refused = problem or UsageError("the chief refused to start; its log says why")
        raise distribution.parted(lambda: total(tf.constant(0.0)), refused)
    names = splits.class_names(config.records, targets.asked(config))
    shards, held_out = storage.patiently(lambda: splits.of(config, len(names)))
    found = storage.patiently(lambda: splits.fingerprint((*shards, *held_out), names))
    if place.workers > 1 and (
        differ := _differ(config, found, total, strategy.num_replicas_in_sync)
    ):
        raise distribution.parted(lambda: total(tf.constant(0.0)), UsageError(differ))
    config = targets.aimed(config, shards[0].layout.target)
    records, replicas = sum(s.records for s in shards), strategy.num_replicas_in_sync
    stored = splits.stored_size(config.records, shards)
    kept = not place.parameter_servers and sum(s.bytes for s in shards) <= choices.SMALL
    known = choices.Facts(records, stored, replicas, bool(_accelerator(facts)), kept)
    config = sized(choices.settled(config, named, known), records)
    stopwatch = Stopwatch(age=process_age())
    begin = (stopwatch, Position(), found, policy, facts)
    return Run(config, place, strategy, names, shards, held_out, *begin)


def _accelerator(facts: Mapping[str, Any]) -> str:
    """Return the kind of the run's devices: GPU, TPU, or "": a CPU."""
    kinds = [kind for kind in ("GPU", "TPU") if any(kind in fact for fact in facts["devices"])]
    return "".join(kinds[:1])


_OWN = ("records", "job_dir", "model_dir", "checkpoint_dir", "log_dir", "accelerator", "output")
"""Options that may differ among the workers."""


def _differ(config: Config, found: Mapping[str, Any], total: Any, replicas: int) -> str:
    """Return in which options and records the workers differ, on all of them alike, and "" if they
    do not: they would learn other classes, or wait for each other for ever.

    `total` adds up over the `replicas`. Numbers are equal if and only if their count times the sum
    of their squares is the square of their sum; those of 20 bits are exact in float64.
    """
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in _OWN}
    compared: dict[str, Any] = {"labels.txt": found["classes"]}
    for split in ("train", "validation"):
        files = {name: of for name, of in found["files"].items() if split in name}
        compared[f"{split} records"] = files
    digests = [
        int(hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:5], 16)
        for part in (*compared.values(), options)
    ]
    numbers = [number for digest in digests for number in (digest, digest**2)]
    sums = list(map(int, total(tf.constant(numbers, tf.float64)).numpy()))
    pairs = zip((*compared, "options"), sums[::2], sums[1::2], strict=True)
    differ = [name for name, one, two in pairs if replicas * two != one**2]
    if not differ:
        return ""
    counts = (
        f"{sum(of['records'] for of in files.values()):,} {name} in {len(files)} files"
        for name, files in list(compared.items())[1:]
    )
    return (
        f"the workers differ in their {', '.join(differ)}; here: {config.records} has "
        f"{', '.join(counts)}, labels.txt {', '.join(found['classes'])[:100]}; give all the same "
        "(the others' logs say what they have)"
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
        result, early = controller.run()
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
        done = {"step": run.position.step, **result, "early": early, **markers.requested(config)}
        with run.stopwatch.measure("checkpoint"):
            provenance.write(config, os.environ, run.records, run.facts)
            storage.write(f"{config.job_dir}/{markers.DONE}", json.dumps(done).encode())

    if place.chief:
        controller.attempt(conclude)
    controller.settle()
    controller.watch.each(run, lambda observer: observer.closed(run))
    step = run.position.step
    say("done", f"finished at step {step}{', early' if early else ''}", step=step, **result)


def _stalls(place: Cluster, replicas: int, seconds: float) -> stalls.StallMonitor:
    """Return what tells whom this process waits for.

    seconds: --peer-timeout, after which TensorFlow gives up other processes by itself where it can;
    where it does not, a step that hangs ends this process.
    """
    if place.tasks:
        return stalls.StallMonitor(place.others, patience=2 * seconds)
    return stalls.StallMonitor({}, patience=0.0 if replicas == 1 else seconds)


def _on_the_devices(run: Run) -> tuple[inner.Trainer, inner.Evaluation]:
    """Return what trains and what evaluates, with the model built."""
    place, strategy, held_out = run.place, run.strategy, run.validation
    classes, policy = len(run.names), run.policy
    config, labels = run.config, None
    balanced = "balanced" in (config.sampling, config.class_weights)
    if balanced or config.target == targets.VALUES:
        labels = storage.patiently(lambda: splits.labels(run.train, classes))
    if place.parameter_servers:
        servers = parameter_servers.ParameterServers(
            strategy, config, classes, policy, len(place.tasks["worker"]), labels
        )
        return servers, parameter_servers.Copy(servers, held_out)
    trainer = inner.Trainer(
        strategy, config, classes, policy, place.workers, labels, _accelerator(run.facts)
    )
    return trainer, inner.Evaluation(strategy, trainer.model, config, classes, held_out)


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
