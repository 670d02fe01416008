"""Evaluate a job's model on a split: `python -m trainer.evaluate --job-dir DIR --split test`.

The model is that of the newest whole checkpoint, or of the best one, with the options that the job
has in its config.json. It reports the metrics and a table of the classes, as at the end of a run.

Exit codes: 0 done; 1 a fault of the program; 2 what the user gave cannot be right; 3 a file could
not be written.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from trainer.config import RECORD, Config, UsageError
from trainer.options import Section, read
from trainer.report import say, speak_in

_option = Section("options")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is evaluated. Folders and files may be local paths or gs:// URLs."""

    job_dir: str = _option(..., "folder of a job", metavar="DIR", required=True)
    records: str = _option(
        "", "folder of SPLIT-*.tfrecord and labels.txt", metavar="DIR", shown="the job's"
    )
    split: str = _option("test", "which files of the folder to read: SPLIT-*.tfrecord")
    checkpoint: Literal["last", "best"] = _option("last", "of the job")
    predictions: str = _option("", "file for a line of each record, CSV", metavar="FILE")
    output: Literal["auto", "json", "text"] = _option("auto", "auto: text on a terminal, else JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, and turn the outcome into an exit code and one line."""
    try:
        given = read(Asked, sys.argv[1:] if arguments is None else arguments)
        request = Asked(**given)
        speak_in(request.output)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        from trainer.input.splits import CorruptRecord
        from trainer.job import storage

        try:
            evaluate(request)
        except CorruptRecord as error:
            raise UsageError(str(error)) from error
        except storage.FAILURES as error:
            say("error", f"cannot go on: {storage.unwritable(error) or error}", "ERROR")
            return 3
    except UsageError as error:
        say("error", str(error), "ERROR")
        return 2
    return 0


def evaluate(request: Asked) -> dict[str, float]:
    """Report how good the job's model is on a split, and return the metrics.

    Raises UsageError, CorruptRecord, and one of storage.FAILURES.
    """
    from trainer.input import splits
    from trainer.job.checkpoints import Checkpoints
    from trainer.loop import distribution, evaluator, inner
    from trainer.loop.judge import tell
    from trainer.model import networks, predictions
    from trainer.observe import classes

    config = settings(request.job_dir)
    folder = config.checkpoint_dir + ("/best" if request.checkpoint == "best" else "")
    checkpoint = Checkpoints(folder, config.keep_checkpoints).newest()
    if checkpoint is None:
        raise UsageError(f"--job-dir {request.job_dir}: there is no whole checkpoint in {folder}")
    config = dataclasses.replace(config, records=request.records or config.records)
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
    strategy = distribution.create(distribution.Cluster(role="evaluator"), os.environ)
    policy = distribution.precision(
        config.precision, distribution.has_tpu(os.environ), distribution.compute_capabilities()
    )
    with strategy.scope():
        network = networks.build(config, len(names), policy, pretrain=False)
    averaged = evaluator.averaged(network, config, strategy, policy)
    evaluator.assign(network, checkpoint, config, averaged)
    evaluation = inner.Evaluation(strategy, network, config, len(names), shards)
    step, result = checkpoint.position.step, evaluation.run()
    tell(step, result)
    say("classes", classes.table(evaluation.tally.table(names)), step=step)
    if request.predictions:
        predictions.write(network, names, config, shards, request.predictions)
    return result


def settings(job_dir: str) -> Config:
    """Return the options that a job has, by its config.json. Raises UsageError."""
    from trainer.job import storage

    path = f"{job_dir.rstrip('/')}/{RECORD}"
    try:
        recorded = dict(json.loads(storage.read(path)))
        return of_json(recorded)
    except storage.NOT_FOUND:
        raise UsageError(f"--job-dir {job_dir}: there is no {RECORD}, so no job began") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def of_json(recorded: Mapping[str, Any]) -> Config:
    """Return the options of a config.json, without those that this version does not have."""
    known = get_type_hints(Config)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in recorded.items()
        if name in known
    }
    return Config(**values)


if __name__ == "__main__":
    sys.exit(main())
