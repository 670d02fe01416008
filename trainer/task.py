"""Train a classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

A run resumes from the newest whole checkpoint of its job folder; a finished job is left alone. It
reports what it does, one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a folder
could no longer be written; 4 the loss became NaN or infinite; 143 stopped by SIGTERM, Ctrl-C or
the loss of another process, start it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer import guard
from trainer.config import RECORD, Config, UsageError, check_length, given, parse
from trainer.job.preemption import RESTART, Preempted, Preemption, watch_metadata
from trainer.loop import distribution, waiting
from trainer.report import say, speak_as, speak_in

if TYPE_CHECKING:  # importing these at run time imports TensorFlow
    from trainer.job.checkpoints import Position
    from trainer.loop import inner, outer
    from trainer.loop.setup import Setup
    from trainer.observe.observer import Run

OK, FAULT, USAGE, OUTSIDE, NOT_FINITE = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and turn the outcome into an exit code and one line."""
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
    except (UsageError, guard.Refused) as error:
        say("error", str(error), "ERROR")
        return USAGE
    backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        say("error", f"KERAS_BACKEND={backend}: the trainer runs on TensorFlow: unset it", "ERROR")
        return USAGE
    preemption.grace = config.grace
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from trainer.job import lease
    from trainer.loop import evaluator, outer  # noqa: F401 - and all that they import

    if place.parameter_servers:
        from trainer.loop import parameter_servers  # noqa: F401

    claim = lease.Lease(config.job_dir)
    try:
        return train(config, named, place, os.environ, preemption, claim)
    except Preempted as error:
        claim.release()
        say("preempted", str(error), "WARNING", step=error.step)
        # Skip TensorFlow's own shutdown, which waits for its threads: the grace period is short.
        os._exit(RESTART)
    except Exception as error:
        code, text = _verdict(error, config, place)
        if claim.held and not isinstance(error, lease.Lost) and code != RESTART:
            _leave_word(config, code, text)
        claim.release()
        if code == FAULT:
            traceback.print_exc()
        fields = {"step": error.step} if isinstance(error, outer.NotFinite) else {}
        return _end(place, code, text, **fields)
    finally:
        claim.release()


def _verdict(error: Exception, config: Config, place: distribution.Cluster) -> tuple[int, str]:
    """Exit code and one line for an error."""
    import tensorflow as tf

    from trainer.input import splits
    from trainer.job import checkpoints, lease, storage
    from trainer.loop import evaluator, lost, outer

    if isinstance(error, UsageError | splits.CorruptRecord):
        return USAGE, str(error)
    if isinstance(error, checkpoints.Unwritable | lease.Lost | outer.Stopped):
        return OUTSIDE, str(error)
    if isinstance(error, outer.NotFinite):
        return NOT_FINITE, str(error)
    if isinstance(error, evaluator.GivenUp):
        return error.code, str(error)
    if full := storage.unwritable(error):
        return OUTSIDE, f"cannot go on: {full}"
    if isinstance(error, tf.errors.OpError) and (loss := lost.of(error)):
        return (RESTART if loss.restart else USAGE), f"{loss.text}: {_reason(error)}"
    if place.tasks and distribution.lost_peer(error):
        named = waiting.others(place.tasks, place.role, place.task)
        silent = [name for host, name in named.items() if waiting.probe(host) != "answers"]
        who = f" ({', '.join(silent)})" if silent else ""
        why = f"another process is gone{who}, all have to be started again: {_reason(error)}"
        return RESTART, why
    if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        corrupt = splits.find_corrupt(config)
        if corrupt:
            return USAGE, corrupt
    return FAULT, f"{type(error).__name__}: {_first(error)}"


def _leave_word(config: Config, code: int, text: str) -> None:
    """Leave FAILED for a dedicated evaluator, which would wait for these trainers for ever."""
    from trainer.job import markers, storage

    with contextlib.suppress(*storage.FAILURES):
        content = {"code": code, "message": text, "time": time.time()}
        markers.write(f"{config.job_dir}/{markers.FAILED}", content)


def _end(place: distribution.Cluster, code: int, text: str, **fields: Any) -> int:
    """Report why, and exit with `code`: at once if TensorFlow's shutdown would wait for others."""
    say("error", text, "ERROR", **fields)
    if place.workers > 1 or place.parameter_servers or code == RESTART:
        sys.stderr.flush()
        os._exit(code)
    return code


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


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
    environment: Mapping[str, str],
    preemption: Preemption,
    claim: Any,
) -> int:
    """Return a whole run, from the devices to the SavedModel.

    Raises what `_verdict` turns into codes.

    `named` are the options that were given. `claim` is the job folder's lease (lease.Lease),
    which the chief takes and `_main` releases.
    """
    import keras
    import tensorflow as tf

    from trainer.job import markers
    from trainer.loop import evaluator

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
    setup = _set_up(config, named, place, environment, preemption, claim)
    if place.role == "evaluator":
        evaluator.run(setup)
    else:
        _train(setup, preemption, claim)
    return OK


def _set_up(
    config: Config,
    named: frozenset[str],
    place: distribution.Cluster,
    environment: Mapping[str, str],
    preemption: Preemption,
    claim: Any,
) -> Setup:
    """Claim the job folder, meet the other processes, find devices and records.

    Raises UsageError, on all ranks alike.
    """
    from trainer.input import device, splits, targets
    from trainer.loop.setup import Setup
    from trainer.model import choices

    problem = None
    if place.chief:
        try:
            _claim(config, claim)
        except UsageError as error:
            if place.workers == 1:
                raise
            problem = error  # the others wait for this process until `_agree` tells them
    strategy = distribution.create(place, environment, config)
    preemption.install()
    watch_metadata(preemption.request, environment)
    policy = distribution.precision(
        config.precision, distribution.has_tpu(environment), distribution.compute_capabilities()
    )
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
    return Setup(config, place, strategy, names, shards, held_out, policy, facts)


def _train(setup: Setup, preemption: Preemption, claim: Any) -> None:
    """Train, and write what was asked for."""
    from trainer.job import storage
    from trainer.loop import outer
    from trainer.model import export, predictions
    from trainer.observe import insight

    config, place = setup.config, setup.place
    trainer, evaluation = _on_the_devices(setup, preemption)
    problem = None
    if place.chief:
        try:
            _prepare(config, sum(math.prod(v.shape) * 4 for v in trainer.variables().values()))
        except (UsageError, *storage.FAILURES) as error:
            problem = error
    _agree(setup.strategy, place, problem)
    run = setup.run(trainer.model, trainer.optimizer, write=place.chief)

    def save_model(name: str, position: Position) -> None:
        folder = config.model_dir if name == "final" else f"{config.job_dir}/export/{name}"
        export.save(trainer.weights(), setup.names, config, folder, name, position.step)

    controller = outer.Controller(
        trainer,
        evaluation,
        run,
        preemption,
        insight.observers(config, place),
        claim.check,
        save_model,
        _waits(place, setup.strategy.num_replicas_in_sync, config.peer_timeout),
    )
    try:
        outcome = controller.run()
    except Preempted:
        raise
    except Exception as error:
        controller.watch.end(run, "diverged" if isinstance(error, outer.NotFinite) else "fault")
        controller.rescue(config.grace)
        raise

    def predict() -> None:
        with trainer.averaged():
            predictions.write(evaluation.model, setup.names, config, setup.validation)

    if place.chief:
        controller.attempt(lambda: _conclude(run, outcome, save_model, predict))
    controller.settle()
    controller.watch.closed(run)
    early = ", early" if outcome.early else ""
    result: dict[str, Any] = outcome.result
    say("done", f"finished at step {outcome.step}{early}", step=outcome.step, **result)


def _waits(place: distribution.Cluster, replicas: int, seconds: float) -> waiting.Waits:
    """Return what tells whom this process waits for. seconds: --peer-timeout, after which
    TensorFlow itself gives up other processes; only where it does not, this ends the
    process.
    """
    if place.workers > 1:
        named = waiting.others(place.tasks, place.role, place.task)
        return waiting.Waits(named, patience=2 * seconds)
    # With parameter servers, `watch_servers` looks on.
    alone = replicas == 1 or place.parameter_servers
    return waiting.Waits({}, patience=0.0 if alone else seconds)


def _on_the_devices(setup: Setup, preemption: Preemption) -> tuple[inner.Trainer, inner.Evaluation]:
    """Return what trains and what evaluates, with the model built."""
    from trainer.input import splits, targets
    from trainer.loop import inner

    config, place, strategy = setup.config, setup.place, setup.strategy
    classes, policy, held_out = len(setup.names), setup.policy, setup.validation
    labels = None
    balanced = "balanced" in (config.sampling, config.class_weights)
    if balanced or config.target == targets.VALUES:
        labels = splits.labels(setup.train, classes)
    if place.parameter_servers:
        from trainer.loop import parameter_servers

        parameter_servers.watch_servers(place, config, preemption)
        makers = len(place.tasks["worker"])
        servers = parameter_servers.ParameterServers(
            strategy, config, classes, policy, makers, labels
        )
        return servers, parameter_servers.Copy(servers, held_out)
    trainer = inner.Trainer(strategy, config, classes, policy, place.workers, labels)
    return trainer, inner.Evaluation(strategy, trainer.model, config, classes, held_out)


def _predict_again(config: Config, place: distribution.Cluster) -> bool:
    """Write the predictions of a job that was finished without --predictions."""
    from trainer import evaluate
    from trainer.job import storage
    from trainer.model import predictions

    path = f"{config.job_dir}/{predictions.PREDICTIONS}"
    if not (config.predictions and place.chief) or storage.gfile.exists(path):
        return False
    request = evaluate.Asked(job_dir=config.job_dir, split="validation", predictions=path)
    evaluate.evaluate(request)
    return True


def _conclude(
    run: Run,
    outcome: outer.Outcome,
    save_model: Callable[[str, Position], None],
    predict: Callable[[], None],
) -> None:
    """The final SavedModel, the predictions, and the marker that the job is done."""
    from trainer.job import markers

    if run.config.predictions:
        with run.ledger.spend("evaluation"):
            predict()
    if "final" in run.config.export:
        with run.ledger.spend("evaluation"):
            save_model("final", run.position)
    result = {**outcome.result, "early": outcome.early, **markers.requested(run.config)}
    with run.ledger.spend("checkpoint"):
        markers.write(f"{run.config.job_dir}/{markers.DONE}", {"step": outcome.step, **result})


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
    from trainer.job import markers, storage

    for folder in dict.fromkeys((config.job_dir, config.checkpoint_dir, config.log_dir)):
        storage.check_writable(folder)
    storage.check_writable(config.model_dir.rpartition("/")[0] or "/")
    claim.take()
    for name in (markers.FAILED, markers.LEAVING):
        if storage.gfile.exists(f"{config.job_dir}/{name}"):
            storage.gfile.remove(f"{config.job_dir}/{name}")


def _prepare(config: Config, size: int) -> None:
    """Check that there is room for checkpoints of `size` bytes, and write config.json.

    Raises UsageError, and storage.FAILURES.
    """
    from trainer.job import checkpoints, storage

    there = checkpoints.Checkpoints(config.checkpoint_dir, config.keep_checkpoints).size()
    count = config.keep_checkpoints + 2  # the best, and the one that is being written
    what = f"{count} checkpoints of {storage.size(size)}"
    storage.check_space(config.checkpoint_dir, max(size, size * count - there), what)
    content = json.dumps(dataclasses.asdict(config), indent=1).encode()
    storage.write(f"{config.job_dir}/{RECORD}", content)


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
