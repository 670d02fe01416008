"""Train a classifier on TFRecords: `python -m trainer.task --records DIR --job-dir DIR`.

A run resumes from the newest whole checkpoint of its job folder; a finished job is left alone. It
reports what it does, one JSON object a line.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a folder
could no longer be written; 4 the loss became NaN or infinite; 143 stopped by SIGTERM, Ctrl-C or
the loss of another process, start it again.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from trainer import guard
from trainer.config import Config, UsageError, choose_backend, given, parse
from trainer.job.preemption import RESTART, Preempted, Preemption
from trainer.loop import distribution, stalls
from trainer.report import leave, say, speak_as, speak_in

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
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from trainer.job.lease import Lease
    from trainer.loop.outer import NotFinite
    from trainer.model import choices
    from trainer.run import train

    claim = Lease(config.job_dir)
    try:
        config, named = choices.carried(config, named)
        preemption.grace = config.grace
        train(config, named, place, preemption, claim)
        return OK
    except Preempted as error:
        claim.release()
        leave(RESTART, "preempted", str(error), "WARNING", step=error.step)
    except Exception as error:
        code, text = _verdict(error, config, place)
        claim.release()
        if code == FAULT:
            traceback.print_exc()
        fields = {"step": error.step} if isinstance(error, NotFinite) else {}
        return _end(place, code, text, **fields)
    finally:
        claim.release()


def _verdict(error: Exception, config: Config, place: distribution.Cluster) -> tuple[int, str]:
    """Return exit code and one line for an error."""
    import tensorflow as tf

    from trainer.input import splits
    from trainer.job import checkpoints, lease, storage
    from trainer.loop import outer

    if isinstance(error, UsageError):
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
        silent = ", ".join(stalls.silent(place.others).values())
        if not place.tasks:
            return RESTART, f"a device failed while this run used it, start again: {_reason(error)}"
        who = f"no answer from {silent}" if silent else "a process or a device failed"
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
    if place.workers > 1 or place.parameter_servers or code == RESTART:
        leave(code, "error", text, **fields)
    say("error", text, "ERROR", **fields)
    return code


def _reason(error: Exception) -> str:
    """Return TensorFlow's own words, without places in the graph and in files."""
    places = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", "(1)")
    lines = [line.strip() for line in str(error).split("\n")]
    own_lines = [line for line in lines if line and not line.startswith(places)]
    return own_lines[0][:200] if own_lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
