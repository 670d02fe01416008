"""Train an image classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

Resumes by itself from the newest whole checkpoint of the job folder; a job that is finished is
left alone. Says what it does in one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 4 the loss
became NaN or infinite; 143 stopped by SIGTERM or by the loss of another worker, start it again.
"""

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

from trainer import distribution
from trainer.config import Config, UsageError, parse
from trainer.preemption import RESTART, Preempted, Preemption
from trainer.report import say, speak_as

OK, FAULT, USAGE, NOT_FINITE = 0, 1, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, and turn whatever happens into an exit code and one line."""
    preemption = Preemption()
    preemption.install()
    try:
        config = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
        place = distribution.cluster(os.environ)
    except UsageError as error:
        say("error", str(error), "ERROR")
        return USAGE
    if place.workers > 1:
        speak_as(place.index)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf

    from trainer import data, loop

    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    try:
        return train(config, place, os.environ, preemption)
    except (UsageError, data.CorruptRecord) as error:
        say("error", str(error), "ERROR")
        return USAGE
    except loop.NotFinite as error:
        say("error", str(error), "ERROR", step=error.step)
        return NOT_FINITE
    except Preempted as error:
        say("preempted", str(error), "WARNING", step=error.step)
        # Past TensorFlow's own shutdown, which waits for its threads: the grace period is short.
        os._exit(RESTART)
    except Exception as error:
        if place.workers > 1 and isinstance(error, lost):
            say("error", "another worker is gone: all have to be started again", "ERROR")
            os._exit(RESTART)
        if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
            corrupt = data.find_corrupt(config.records, config.image_size)
            if corrupt:
                say("error", corrupt, "ERROR")
                return USAGE
        traceback.print_exc()
        say("error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "ERROR")
        return FAULT


def train(
    config: Config,
    place: distribution.Cluster,
    environment: Mapping[str, str],
    preemption: Preemption,
) -> int:
    """A whole run, from the devices to the SavedModel. Raises what `main` turns into codes."""
    import keras
    import tensorflow as tf

    from trainer import data, export, loop, storage

    done = f"{config.job_dir}/DONE"
    if storage.gfile.exists(done):
        finished = json.loads(storage.read(done))["step"]
        if finished >= config.steps:
            say("done", f"already finished at step {finished}: nothing to do", step=finished)
            return OK

    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(config.seed)
    strategy = distribution.create(place, environment)
    preemption.install()
    policy = distribution.precision(
        config.precision, distribution.has_tpu(environment), distribution.compute_capabilities()
    )
    facts = distribution.facts(strategy, place)
    text = f"TensorFlow {facts['tensorflow']} on {', '.join(facts['devices'])}, {policy}"
    say("start", text, precision=policy, **facts)

    names = data.class_names(config.records)
    shards, held_out = (data.find(config.records, split) for split in ("train", "validation"))
    if place.chief:
        try:
            content = json.dumps(dataclasses.asdict(config), indent=1).encode()
            storage.write(f"{config.job_dir}/config.json", content)
        except tf.errors.OpError as error:
            text = f"cannot write to {config.job_dir}: {data.first_line(error)}"
            raise UsageError(text) from error
    trainer = loop.Trainer(strategy, config, len(names), policy)
    result = loop.Controller(trainer, place, shards, held_out, preemption).run()
    if place.chief:
        weights = {variable.path: variable.numpy() for variable in trainer.model.variables}
        export.export(weights, names, config.image_size, config.model_dir)
        say("exported", f"SavedModel in {config.model_dir}", step=config.steps)
        storage.write(done, json.dumps({"step": config.steps, **result}).encode())
    trainer.wait()
    say("done", f"finished at step {config.steps}", step=config.steps, **result)
    return OK


if __name__ == "__main__":
    sys.exit(main())
