"""Train an image classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

Resumes by itself from the newest whole checkpoint of the job folder; a job that is finished is
left alone. Says what it does in one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a folder
could not be written any more; 4 the loss became NaN or infinite; 143 stopped by SIGTERM or by the
loss of another process, start it again.
"""

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from trainer import distribution
from trainer.config import Config, UsageError, check_length, parse
from trainer.preemption import RESTART, Preempted, Preemption, watch_metadata
from trainer.report import say, speak_as, speak_in

OK, FAULT, USAGE, OUTSIDE, NOT_FINITE = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and turn whatever happens into an exit code and one line."""
    preemption = Preemption()
    preemption.install()
    try:
        return _main(sys.argv[1:] if arguments is None else arguments, preemption)
    finally:
        preemption.uninstall()


def _main(arguments: Sequence[str], preemption: Preemption) -> int:
    try:
        config = parse(arguments, os.environ)
        place = distribution.cluster(os.environ)
    except UsageError as error:
        say("error", str(error), "ERROR")
        return USAGE
    preemption.grace = config.grace
    if place.workers > 1:
        speak_as(place.index)
    speak_in(config.output)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf

    from trainer import checkpoints, data, evaluator, lease, loop, markers, storage

    try:
        return train(config, place, os.environ, preemption)
    except (UsageError, data.CorruptRecord) as error:
        return _end(place, USAGE, str(error))
    except (checkpoints.Unwritable, lease.Lost, loop.Stopped) as error:
        return _end(place, OUTSIDE, str(error))
    except loop.NotFinite as error:
        if place.chief:
            with contextlib.suppress(tf.errors.OpError, OSError):
                content = {"code": NOT_FINITE, "message": str(error), "time": time.time()}
                path = f"{config.job_dir}/{markers.FAILED}"
                storage.write(path, json.dumps(content).encode())
        return _end(place, NOT_FINITE, str(error), step=error.step)
    except evaluator.GivenUp as error:
        return _end(place, error.code, str(error))
    except Preempted as error:
        say("preempted", str(error), "WARNING", step=error.step)
        # Past TensorFlow's own shutdown, which waits for its threads: the grace period is short.
        os._exit(RESTART)
    except Exception as error:
        if len(place.tasks) and distribution.lost_peer(error):
            text = f"another process is gone, all have to be started again: {_reason(error)}"
            say("error", text, "ERROR")
            os._exit(RESTART)
        if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
            corrupt = data.find_corrupt(config.records, config.image_size)
            if corrupt:
                return _end(place, USAGE, corrupt)
        traceback.print_exc()
        return _end(place, FAULT, f"{type(error).__name__}: {_first(error)}")


def _end(place: distribution.Cluster, code: int, text: str, **fields: Any) -> int:
    """Say why, and leave with `code`: at once where TensorFlow's shutdown would wait for others."""
    say("error", text, "ERROR", **fields)
    if place.workers > 1 or place.parameter_servers:
        sys.stderr.flush()
        os._exit(code)
    return code


def _first(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _reason(error: Exception) -> str:
    """TensorFlow's own words, without the places in graph and files."""
    places = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", "(1)")
    lines = [line.strip() for line in str(error).split("\n")]
    said = [line for line in lines if line and not line.startswith(places)]
    return said[0][:200] if said else type(error).__name__


def train(
    config: Config,
    place: distribution.Cluster,
    environment: Mapping[str, str],
    preemption: Preemption,
) -> int:
    """A whole run, from the devices to the SavedModel. Raises what `main` turns into codes."""
    import keras
    import tensorflow as tf

    from trainer import data, evaluator, markers

    if finished := markers.finished(config):
        early = ", stopped early" if finished.get("early") else ""
        text = f"already finished at step {finished['step']}{early}: nothing to do"
        say("done", text, step=finished["step"])
        return OK
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    if place.role in ("worker", "ps") and place.parameter_servers:
        from trainer import parameter_servers

        return parameter_servers.serve(config, place)
    held, problem = None, None
    if place.chief:
        try:
            held = _claim(config)
        except UsageError as error:
            if place.workers == 1:
                raise
            problem = error  # the others are to hear of it, and wait for us until then
    try:
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
        names = data.class_names(config.records)
        shards, held_out = data.splits(config, len(names))
        config = sized(config, strategy.num_replicas_in_sync, sum(s.records for s in shards))
        if place.role == "evaluator":
            evaluator.run(config, place, strategy, names, shards, held_out, policy, facts)
            return OK
        return _train(
            config, place, strategy, names, shards, held_out, policy, facts, preemption, held
        )
    finally:
        if held is not None:
            held.release()


def _train(
    config: Config,
    place: distribution.Cluster,
    strategy: Any,
    names: tuple[str, ...],
    shards: tuple[Any, ...],
    held_out: tuple[Any, ...],
    policy: str,
    facts: dict[str, Any],
    preemption: Preemption,
    held: Any,
) -> int:
    from trainer import export, inner, insight, loop, markers, storage
    from trainer import observer as seam
    from trainer.checkpoints import Position
    from trainer.ledger import Ledger, process_age

    if place.chief:
        content = json.dumps(dataclasses.asdict(config), indent=1).encode()
        storage.write(f"{config.job_dir}/config.json", content)
    trainer: inner.Trainer
    if place.parameter_servers:
        from trainer import parameter_servers as servers

        makers = len(place.tasks["worker"])
        trainer = servers.ParameterServers(
            strategy, config, len(names), policy, config.steps, makers
        )
        servers.watch_servers(place)
        evaluation: inner.Evaluation = servers.Copy(trainer, held_out)
    else:
        trainer = inner.Trainer(strategy, config, len(names), policy, config.steps, place.workers)
        evaluation = inner.Evaluation(strategy, trainer.model, config, len(names), held_out)
    if place.chief:
        size = sum(math.prod(v.shape) * 4 for v in trainer.variables().values())
        count = config.keep_checkpoints + 2
        what = f"{count} checkpoints of {size / 1e6:,.0f} MB"
        storage.check_space(config.checkpoint_dir, size * count, what)
    run = seam.Run(
        config=config,
        place=place,
        strategy=strategy,
        model=trainer.model,
        optimizer=trainer.optimizer,
        names=names,
        train=shards,
        validation=held_out,
        ledger=Ledger(age=process_age()),
        writer=seam.Writer(config.log_dir, write=place.chief),
        position=Position(),
        steps=config.steps,
        policy=policy,
        facts=facts,
    )

    def save_model(name: str, position: Position) -> None:
        folder = config.model_dir if name == "final" else f"{config.job_dir}/export/{name}"
        export.save(trainer.model, names, config, folder, name, position.step)

    controller = loop.Controller(
        trainer,
        evaluation,
        run,
        preemption,
        insight.observers(config, place),
        held.check if held is not None else lambda: None,
        save_model,
    )
    try:
        outcome = controller.run()
    except Preempted:
        raise
    except Exception as error:
        controller.watch.end(run, "diverged" if isinstance(error, loop.NotFinite) else "fault")
        raise
    if place.chief:
        if "final" in config.export:
            with run.ledger.spend("evaluation"):
                save_model("final", run.position)
        result = {**outcome.result, "early": outcome.early, **markers.asked(config)}
        with run.ledger.spend("checkpoint"):
            content = json.dumps({"step": outcome.step, **result}).encode()
            storage.write(f"{config.job_dir}/{markers.DONE}", content)
    trainer.wait()
    controller.watch.closed(run)
    early = ", early" if outcome.early else ""
    say("done", f"finished at step {outcome.step}{early}", step=outcome.step, **outcome.result)
    return OK


def sized(config: Config, replicas: int, records: int) -> Config:
    """With --epochs as steps, and --replica-batch-size as the batch of all replicas.

    Raises UsageError where that is too short a run for what was asked for.
    """
    if config.replica_batch_size:
        config = dataclasses.replace(config, batch_size=config.replica_batch_size * replicas)
    if config.epochs:
        steps = max(1, round(config.epochs * records / config.batch_size))
        config = dataclasses.replace(config, steps=steps)
    check_length(config)
    return config


def _claim(config: Config) -> Any:
    """Make sure that this run, and it alone, can write its folders. Raises UsageError."""
    from trainer import lease, markers, storage

    for folder in dict.fromkeys((config.job_dir, config.checkpoint_dir, config.log_dir)):
        storage.check_writable(folder)
    storage.check_writable(config.model_dir.rpartition("/")[0] or "/")
    held = lease.Lease(config.job_dir)
    held.take()
    if storage.gfile.exists(f"{config.job_dir}/{markers.FAILED}"):
        storage.gfile.remove(f"{config.job_dir}/{markers.FAILED}")
    return held


def _agree(strategy: Any, place: distribution.Cluster, problem: UsageError | None) -> None:
    """Where the chief may not run, none may. Raises UsageError on all ranks."""
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
