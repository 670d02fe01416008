"""Train a classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

A run resumes from the newest whole checkpoint of its job folder; a finished job is left alone. It
reports what it does, one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a folder
could no longer be written; 4 the loss became NaN or infinite; 143 stopped by SIGTERM, Ctrl-C or
the loss of another process, start it again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer import guard
from trainer.config import Config, UsageError, check_length, choose_backend, given, parse
from trainer.job.preemption import RESTART, Preempted, Preemption
from trainer.loop import distribution, stalls
from trainer.report import say, speak_as, speak_in

if TYPE_CHECKING:  # importing these at run time imports TensorFlow
    from trainer.job.checkpoints import Position
    from trainer.loop import inner, outer
    from trainer.observe.observer import Run

OK, FAULT, USAGE, OUTSIDE, NOT_FINITE = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and return the exit code; an error is one line."""
    preemption = Preemption()
    preemption.install()
    try:
        return _main(sys.argv[1:] if arguments is None else arguments, preemption)
    finally:
        preemption.uninstall()


def _main(arguments: Sequence[str], preemption: Preemption) -> int:
    try:
        config, named = parse(arguments, os.environ), given(arguments)
        place = distribution.cluster(os.environ)
        if place.workers > 1:
            speak_as(place.index)
        speak_in(config.output)
        guard.check(config.accelerator, os.environ)
        choose_backend(os.environ)
    except (UsageError, guard.Refused) as error:
        say("error", str(error), "ERROR")
        return USAGE
    preemption.grace = config.grace
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from trainer.job import lease
    from trainer.loop import outer

    if place.parameter_servers:
        from trainer.loop import parameter_servers  # noqa: F401

    claim = lease.Lease(config.job_dir)
    try:
        return train(config, named, place, preemption, claim)
    except Preempted as error:
        claim.release()
        say("preempted", str(error), "WARNING", step=error.step)
        # Skip TensorFlow's own shutdown, which waits for its threads: the grace period is short.
        os._exit(RESTART)
    except Exception as error:
        code, text = _verdict(error, config, place)
        claim.release()
        if code == FAULT:
            traceback.print_exc()
        fields = {"step": error.step} if isinstance(error, outer.NotFinite) else {}
        return _end(place, code, text, **fields)
    finally:
        claim.release()


def _verdict(error: Exception, config: Config, place: distribution.Cluster) -> tuple[int, str]:
    """Return exit code and one line for an error."""
    import tensorflow as tf

    from trainer.input import splits
    from trainer.job import checkpoints, lease, storage
    from trainer.loop import outer

    if isinstance(error, UsageError | splits.CorruptRecord):
        return USAGE, str(error)
    if isinstance(error, checkpoints.Unwritable | lease.Lost | outer.Stopped):
        return OUTSIDE, str(error)
    if isinstance(error, outer.NotFinite):
        return NOT_FINITE, str(error)
    if full := storage.unwritable(error):
        return OUTSIDE, f"cannot go on: {full}"
    if isinstance(error, tf.errors.ResourceExhaustedError):
        text = "the memory is used up: give a smaller --batch-size, more --accumulate, --precision"
        return USAGE, f"{text} mixed_float16, or take a machine with more: {_reason(error)}"
    if isinstance(error, outer.Interrupted) or (
        place.tasks and distribution.outside(error, stepped=False)
    ):
        named = stalls.peers(place.tasks, place.role, place.task)
        silent = [name for host, name in named.items() if stalls.probe(host) != "answers"]
        if not place.tasks:
            return RESTART, f"a device failed while this run used it, start again: {_reason(error)}"
        who = f"no answer from {', '.join(silent)}" if silent else "a process or a device failed"
        return RESTART, f"{who}, all have to be started again: {_reason(error)}"
    if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        corrupt = splits.find_corrupt(config)
        if corrupt:
            return USAGE, corrupt
    if config.xla and isinstance(error, tf.errors.OpError):
        return USAGE, f"--xla: XLA does not compile this model, leave it out: {_reason(error)}"
    return FAULT, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _end(place: distribution.Cluster, code: int, text: str, **fields: Any) -> int:
    """Report why, and exit with `code`: at once if TensorFlow's shutdown would wait for others."""
    say("error", text, "ERROR", **fields)
    if place.workers > 1 or place.parameter_servers or code == RESTART:
        sys.stderr.flush()
        os._exit(code)
    return code


def _reason(error: Exception) -> str:
    """Return TensorFlow's own words, without places in the graph and in files."""
    places = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", "(1)")
    lines = [line.strip() for line in str(error).split("\n")]
    own_lines = [line for line in lines if line and not line.startswith(places)]
    return own_lines[0][:200] if own_lines else type(error).__name__


def train(
    config: Config,
    named: frozenset[str],
    place: distribution.Cluster,
    preemption: Preemption,
    claim: Any,
) -> int:
    """Train a whole run, from the devices to the SavedModel, and return the exit code.

    `named` are the options that were given. `claim` is the job folder's lease (lease.Lease), which
    the chief takes and `_main` releases. Raises what `_verdict` turns into codes.
    """
    import keras
    import tensorflow as tf

    from trainer.job import markers

    if finished := markers.finished(config):
        early = ", stopped early" if finished.get("early") else ""
        wrote = _predict_again(config, place)
        what = "the predictions were missing" if wrote else "nothing to do"
        text = f"already finished at step {finished['step']}{early}: {what}"
        say("done", text, step=finished["step"])
        return OK
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    if place.role in ("worker", "ps") and place.parameter_servers:
        from trainer.loop import parameter_servers

        return parameter_servers.serve(config, place, preemption)
    _train(_set_up(config, named, place, preemption, claim), preemption, claim)
    return OK


def _set_up(
    config: Config,
    named: frozenset[str],
    place: distribution.Cluster,
    preemption: Preemption,
    claim: Any,
) -> Run:
    """Claim the job folder, meet the other processes, and return the run with its devices and
    records.

    Raises UsageError, on all ranks alike.
    """
    from trainer.input import device, splits, targets
    from trainer.job.checkpoints import Position
    from trainer.model import choices
    from trainer.observe.observer import Run
    from trainer.observe.stopwatch import Stopwatch, process_age

    problem = None
    if place.chief:
        try:
            _claim(config, claim)
        except UsageError as error:
            if place.workers == 1:
                raise
            problem = error  # the others wait for this process until `_agree` tells them
    strategy = distribution.create(place, os.environ, config)
    preemption.install()
    policy = distribution.policy(config.precision, os.environ)
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


def _train(run: Run, preemption: Preemption, claim: Any) -> None:
    """Train, and write what was asked for."""
    from trainer.loop import outer
    from trainer.model import export, predictions
    from trainer.observe import insight

    config, place = run.config, run.place
    watch = _stalls(place, run.strategy.num_replicas_in_sync, config.peer_timeout)
    with watch.during("the start"):
        trainer, evaluation = _on_the_devices(run)
    run.model = trainer.model
    size = sum(math.prod(v.shape) * 4 for v in trainer.variables().values())

    def save_model(name: str, position: Position) -> None:
        folder = config.model_dir if name == "final" else f"{config.job_dir}/export/{name}"
        export.export(trainer.weights(), run.names, config, folder)
        say("exported", f"SavedModel ({name}) in {folder}", step=position.step, name=name)

    controller = outer.Controller(
        trainer,
        evaluation,
        run,
        preemption,
        insight.observers(config),
        claim.check,
        save_model,
        watch,
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

    def predict() -> None:
        with trainer.averaged():
            predictions.write(evaluation.model, run.names, config, run.validation)

    if place.chief:
        controller.attempt(lambda: _conclude(run, outcome, save_model, predict))
    controller.settle()
    controller.watch.each(run, lambda observer: observer.closed(run))
    early = ", early" if outcome.early else ""
    result: dict[str, Any] = outcome.result
    say("done", f"finished at step {outcome.step}{early}", step=outcome.step, **result)


def _stalls(place: distribution.Cluster, replicas: int, seconds: float) -> stalls.StallMonitor:
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
    from trainer.input import splits, targets
    from trainer.loop import inner

    config, place, strategy = run.config, run.place, run.strategy
    classes, policy, held_out = len(run.names), run.policy, run.validation
    labels = None
    balanced = "balanced" in (config.sampling, config.class_weights)
    if balanced or config.target == targets.VALUES:
        labels = splits.labels(run.train, classes)
    if place.parameter_servers:
        from trainer.loop import parameter_servers

        makers = len(place.tasks["worker"])
        servers = parameter_servers.ParameterServers(
            strategy, config, classes, policy, makers, labels
        )
        return servers, parameter_servers.Copy(servers, held_out)
    trainer = inner.Trainer(strategy, config, classes, policy, place.workers, labels)
    return trainer, inner.Evaluation(strategy, trainer.model, config, classes, held_out)


def _predict_again(config: Config, place: distribution.Cluster) -> bool:
    """Write the predictions of a job that was finished without --predictions; return whether."""
    from trainer import evaluate
    from trainer.job import storage
    from trainer.model import predictions

    path = f"{config.job_dir}/{predictions.PREDICTIONS}"
    if not (config.predictions and place.chief) or storage.gfile.exists(path):
        return False
    request = evaluate.Request(job_dir=config.job_dir, split="validation", predictions=path)
    evaluate.evaluate(request)
    return True


def _conclude(
    run: Run,
    outcome: outer.Outcome,
    save_model: Callable[[str, Position], None],
    predict: Callable[[], None],
) -> None:
    """Write the final SavedModel, the predictions, and the marker that the job is done."""
    from trainer.job import markers, storage

    if run.config.predictions:
        with run.stopwatch.measure("evaluation"):
            predict()
    if "final" in run.config.export:
        with run.stopwatch.measure("evaluation"):
            save_model("final", run.position)
    result = {**outcome.result, "early": outcome.early, **markers.requested(run.config)}
    with run.stopwatch.measure("checkpoint"):
        content = json.dumps({"step": outcome.step, **result}).encode()
        storage.write(f"{run.config.job_dir}/{markers.DONE}", content)


def sized(config: Config, records: int) -> Config:
    """Return `config` with --epochs as steps.

    Raises UsageError if the run is too short for another option.
    """
    if config.epochs:
        steps = max(1, round(config.epochs * records / config.batch_size))
        config = dataclasses.replace(config, steps=steps)
    check_length(config)
    return config


def _claim(config: Config, claim: Any) -> None:
    """Make sure that this run, and it alone, can write its folders. Raises UsageError."""
    from trainer.job import storage

    for folder in dict.fromkeys((config.job_dir, config.checkpoint_dir, config.log_dir)):
        storage.check_writable(folder)
    storage.check_writable(config.model_dir.rpartition("/")[0] or "/")
    claim.take()


def _prepare(config: Config, size: int) -> None:
    """Check that there is room for checkpoints of `size` bytes, and write config.json.

    Raises UsageError, and storage.FAILURES.
    """
    from trainer.job import checkpoints, markers, storage

    there = checkpoints.Checkpoints(config.checkpoint_dir, config.keep_checkpoints).size()
    count = config.keep_checkpoints + 2  # the best, and the one that is being written
    what = f"{count} checkpoints of {storage.size(size)}"
    storage.check_space(config.checkpoint_dir, max(size, size * count - there), what)
    content = json.dumps(dataclasses.asdict(config), indent=1).encode()
    storage.write(f"{config.job_dir}/{markers.RECORD}", content)


def _agree(strategy: Any, place: distribution.Cluster, problem: Exception | None) -> None:
    """End all ranks if the chief may not run. Raises `problem` there, UsageError elsewhere."""
    import tensorflow as tf

    if place.workers > 1:

        @tf.function
        def total(value: tf.Tensor) -> tf.Tensor:
            each = strategy.run(tf.identity, args=(value,))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        if float(total(tf.constant(float(problem is not None)))):
            raise problem or UsageError("the chief refused to start; its log says why")
    elif problem is not None:
        raise problem


if __name__ == "__main__":
    sys.exit(main())
