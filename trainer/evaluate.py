"""Evaluate a job's model on a split: `python -m trainer.evaluate --job-dir DIR --split test`.

The model is that of the newest whole checkpoint, or of the best one, with the options that the job
has in its config.json. It reports the metrics and a table of the classes, as at the end of a run.

Exit codes are those of trainer.task.
"""

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.config import Config, UsageError, choose_backend
from trainer.options import Section, read
from trainer.report import say, speak_in

_option = Section("options")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Says what is evaluated. Folders and files may be local paths or gs:// URLs."""

    job_dir: str = _option(..., "folder of a job", metavar="DIR")
    records: str = _option(
        "", "folder of SPLIT-*.tfrecord and labels.txt", metavar="DIR", shown="the job's"
    )
    split: str = _option("test", "which files of the folder to read: SPLIT-*.tfrecord")
    checkpoint: Literal["last", "best"] = _option("last", "of the job")
    predictions: str = _option("", "file for a line of each record, CSV", metavar="FILE")
    output: Literal["auto", "json", "text"] = _option("auto", "auto: text on a terminal, else JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, and return the exit code; an error is one line."""
    try:
        request = Request(**read(Request, sys.argv[1:] if arguments is None else arguments))
        speak_in(request.output)
        choose_backend(os.environ)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        config = settings(request)
    except UsageError as error:
        say("error", str(error), "ERROR")
        return 2
    from trainer import verdict

    try:
        evaluate(request, config)
    except Exception as error:
        code, text = verdict.of(error, config)
        if code == verdict.FAULT:
            traceback.print_exc()
        say("error", text, "ERROR")
        return code
    return 0


def evaluate(request: Request, config: Config) -> dict[str, float]:
    """Report how good the model of a job with these options is on a split, and return the metrics.

    Raises UsageError, CorruptRecord, and one of storage.FAILURES.
    """
    from trainer.input import splits
    from trainer.job.checkpoints import Checkpoints
    from trainer.loop import distribution, inner
    from trainer.loop.judge import tell
    from trainer.model import networks, results, scores

    folder = config.checkpoint_dir + ("/best" if request.checkpoint == "best" else "")
    checkpoint = Checkpoints(folder, config.keep_checkpoints).newest()
    if checkpoint is None:
        raise UsageError(f"--job-dir {request.job_dir}: there is no whole checkpoint in {folder}")
    names = splits.class_names(config.records)
    was = tuple(checkpoint.state.get("records", {}).get("classes", names))
    if was != names:
        other = next((pair for pair in zip(was, names, strict=False) if pair[0] != pair[1]), None)
        text = f"has {other[1]!r} for {other[0]!r}" if other else f"has {len(names)} names"
        raise UsageError(
            f"{config.records}/labels.txt {text}: the job of --job-dir {request.job_dir} was "
            f"trained on {len(was)} others"
        )
    shards = splits.find(config.records, request.split)
    strategy = distribution.create(distribution.Cluster(), os.environ)
    tpu, capabilities = distribution.has_tpu(os.environ), distribution.compute_capabilities()
    policy = distribution.policy(config.precision, tpu, capabilities)
    with strategy.scope():
        network = networks.build(config, len(names), policy, pretrain=False)
    assign(network, checkpoint, config)
    evaluation = inner.Evaluation(strategy, network, config, len(names), shards)
    step, result = checkpoint.position.step, evaluation.run()
    tell(step, result)
    say("classes", scores.as_text(evaluation.scores.table(names)), step=step)
    if request.predictions:
        results.predict(network, names, config, shards, request.predictions)
    return result


def assign(network: Any, checkpoint: Any, config: Config) -> None:
    """Give the network the weights of a checkpoint, with --ema their averages. Raises UsageError if
    they are not there."""
    averaged = checkpoint.state.get("averages", {})
    if config.ema and not averaged:
        text = "does not say which variables are the averages of --ema: let the job go on first"
        raise UsageError(f"the checkpoint in {config.checkpoint_dir} {text}")
    by_path = checkpoint.by_path()
    for variable in network.variables:
        value = by_path.get(averaged.get(variable.path, variable.path))
        if value is None or tuple(value.shape) != tuple(variable.shape):
            raise UsageError(f"the checkpoints in {config.checkpoint_dir} are of another model")
        variable.assign(value)


def settings(request: Request) -> Config:
    """Return the options that the job has, by its config.json, with the records that are asked for.
    Raises UsageError."""
    from trainer.job import markers

    job_dir = request.job_dir
    recorded = markers.recorded(job_dir.rstrip("/"))
    if not recorded:
        text = f"there is no {markers.RECORD}, so no job began"
        raise UsageError(f"--job-dir {job_dir}: {text}")
    try:
        config = Config(**recorded)
        return dataclasses.replace(config, records=request.records or config.records)
    except TypeError as error:  # an option without a default is missing
        raise UsageError(f"{job_dir}/{markers.RECORD} cannot be read: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
