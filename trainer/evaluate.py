"""Evaluate a job's model on a split: `python -m trainer.evaluate --job-dir DIR --split test`.

The model is that of the newest whole checkpoint, or of the best one, with the options that the job
has in its config.json. It reports the metrics and a table of the classes, as at the end of a run.

Exit codes are those of trainer.task.
"""

import dataclasses
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainer.config import Config, UsageError, choose_backend
from trainer.event_lines import FAULT, OK, USAGE, say, speak_in
from trainer.job.preemption import Preemption
from trainer.options import Section, read

_option = Section("options")
POLL = 2.0
"""Seconds between two looks for what a job has written."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Says what is evaluated. Folders and files may be local paths or gs:// URLs."""

    job_dir: str = _option(..., "folder of a job", metavar="DIR")
    records: str = _option(
        "", "folder of SPLIT-*.tfrecord and labels.txt", metavar="DIR", shown="the job's"
    )
    split: str = _option(
        "",
        "which files of the folder to read: SPLIT-*.tfrecord",
        shown="test, with --follow validation",
    )
    checkpoint: Literal["last", "best"] = _option("last", "of the job")
    batches: int = _option(
        0, "most batches of each evaluation; 0: all records once; with --follow the job's"
    )
    follow: bool = _option(
        False,
        "evaluate each new checkpoint while the job trains, until it is done; writes to "
        "JOB_DIR/evaluator",
        bare=True,
    )
    evaluate_every: int = _option(0, "with --follow: least steps from one evaluation to the next")
    predictions: str = _option("", "file for a line of each record, CSV", metavar="FILE")
    output: Literal["auto", "json", "text"] = _option("auto", "auto: text on a terminal, else JSON")


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, and return the exit code; an error is one line."""
    preemption = Preemption()
    try:
        request = Request(**read(Request, sys.argv[1:] if arguments is None else arguments))
        speak_in(request.output)
        choose_backend(os.environ)
    except UsageError as error:
        say("error", str(error), "ERROR")
        return USAGE
    if request.follow:
        preemption.install()  # All that was measured is saved.
    try:
        return answer(request)
    finally:
        preemption.uninstall()


def answer(request: Request, own: Config | None = None) -> int:
    """Do what is asked, and return the exit code. `own`: see follow.follow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from trainer import verdict
    from trainer.follow import follow

    config = own
    try:
        config = settings(request)
        if request.follow:
            follow(request, own)
        else:
            evaluate(request, config)
    except Exception as error:
        code, text = verdict.of(error, config)
        if code == FAULT:
            traceback.print_exc()
        say("error", text, "ERROR")
        return code
    return OK


def evaluate(request: Request, config: Config) -> dict[str, float]:
    """Report how good the model of a job with these options is on a split, and return the metrics.

    Raises UsageError, CorruptRecord, and one of storage.FAILURES.
    """
    from trainer.job.checkpoints import Checkpoints
    from trainer.model import results, scores

    folder = config.checkpoint_dir + ("/best" if request.checkpoint == "best" else "")
    checkpoint = Checkpoints(folder, config.keep_checkpoints).newest()
    if checkpoint is None:
        raise UsageError(f"--job-dir {request.job_dir}: there is no whole checkpoint in {folder}")
    model = Model(request, config)
    result = model.measure(checkpoint)
    table = scores.as_text(model.evaluation.scores.table(model.names))
    say("classes", table, step=checkpoint.position.step)
    if request.predictions:
        results.predict(model.network, model.names, config, model.shards, request.predictions)
    return result


class Model:
    """A job's model and the records that are asked for, made once for any of its checkpoints."""

    def __init__(self, request: Request, config: Config) -> None:
        """Raises UsageError, CorruptRecord, and one of storage.FAILURES."""
        from trainer.input import splits, targets
        from trainer.loop import distribution, inner
        from trainer.model import networks

        self.config = config
        layout = targets.asked(config)
        self.names = splits.class_names(config.records, layout)
        split = request.split or ("validation" if request.follow else "test")
        self.shards = splits.find(config.records, split, layout)
        strategy = distribution.create(distribution.Cluster(), os.environ)
        tpu, capabilities = distribution.has_tpu(os.environ), distribution.compute_capabilities()
        policy = distribution.policy(config.precision, tpu, capabilities)
        with strategy.scope():
            self.network = networks.build(config, len(self.names), policy, pretrain=False)
        self.evaluation = inner.Evaluation(
            strategy, self.network, config, len(self.names), self.shards
        )

    def measure(self, checkpoint: Any) -> dict[str, float]:
        """Report the metrics of a checkpoint, and return them. Raises UsageError for one of other
        classes."""
        from trainer.loop.judge import tell

        was = tuple(checkpoint.state.get("records", {}).get("classes", self.names))
        if was != self.names:
            pairs = zip(was, self.names, strict=False)
            other = next((pair for pair in pairs if pair[0] != pair[1]), None)
            count = f"has {len(self.names)} names"
            text = f"has {other[1]!r} for {other[0]!r}" if other else count
            raise UsageError(
                f"{self.config.records}/labels.txt {text}: the job of --job-dir "
                f"{self.config.job_dir} was trained on {len(was)} others"
            )
        assign(self.network, checkpoint, self.config)
        result = self.evaluation.run()
        tell(checkpoint.position.step, result)
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
    """Return the options that the job has, by its config.json, with the records that are asked for;
    with --follow, as soon as it is there. Raises UsageError."""
    from trainer.job import markers

    job_dir = request.job_dir.rstrip("/")
    text = f"--job-dir {job_dir}: there is no {markers.RECORD}, so no job began"
    told = False
    while not (recorded := markers.recorded(job_dir)):
        if not request.follow:
            raise UsageError(text)
        if not told:
            say("waiting", f"{text} yet")
        told = True
        time.sleep(POLL)
    try:
        config = Config(**recorded)
        batches = request.batches or (config.evaluate_batches if request.follow else 0)
        records = request.records or config.records
        return dataclasses.replace(config, records=records, evaluate_batches=batches)
    except TypeError as error:  # an option without a default is missing
        raise UsageError(f"{job_dir}/{markers.RECORD} cannot be read: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
