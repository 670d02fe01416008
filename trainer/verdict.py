"""From an error to an exit code and one line, for trainer.task and trainer.evaluate."""

import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.event_lines import FAULT, NOT_FINITE, OUTSIDE, USAGE
from trainer.input import splits
from trainer.job import checkpoints, lease, storage
from trainer.job.preemption import RESTART
from trainer.loop import distribution, outer, stalls


def of(
    error: Exception, config: Config | None, place: distribution.Cluster | None = None
) -> tuple[int, str]:
    """Return exit code and one line for what ended a run, or an evaluation; of a job that
    has not begun, without its options."""
    place = place or distribution.Cluster()
    if isinstance(error, UsageError):
        return USAGE, str(error)
    if isinstance(error, checkpoints.Unwritable | lease.Lost | outer.Stopped):
        return OUTSIDE, str(error)
    if isinstance(error, outer.NotFinite):
        return NOT_FINITE, str(error)
    if config and (lost := splits.unread(config.records, error)):
        return RESTART, f"{lost}; start again"
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
    if config and isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        try:
            corrupt = splits.find_corrupt(config)
        except storage.FAILURES as other:
            return of(other, config, place)
        if corrupt:
            return USAGE, corrupt
        if isinstance(error, tf.errors.DataLossError):
            text = "a record could not be read, and all can now: start again"
            return RESTART, f"{text}: {_reason(error)}"
    if config and config.xla and isinstance(error, tf.errors.OpError):
        return USAGE, f"--xla: XLA does not compile this model, leave it out: {_reason(error)}"
    return FAULT, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _reason(error: Exception) -> str:
    """Return TensorFlow's own words, without places in the graph and in files."""
    places = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", "(1)")
    lines = [line.strip() for line in str(error).split("\n")]
    own_lines = [line for line in lines if line and not line.startswith(places)]
    return own_lines[0][:200] if own_lines else type(error).__name__
