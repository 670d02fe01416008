"""Evaluate a job's checkpoints while it trains: the role `evaluator`, or trainer.evaluate --follow.

    JOB_DIR/evaluator/evaluations.json    each evaluation, and the best one by --metric
    JOB_DIR/evaluator/best                SavedModel of the best one
    LOG_DIR/evaluator                     its metrics for TensorBoard

It measures the newest checkpoint, at least --evaluate-every steps after the one before, and the
last one of all, and ends when the job is done. Started again, it goes on after the last one that it
measured.
"""

import json
import time
from typing import Any

from trainer import evaluate
from trainer.config import METRICS, Config, UsageError
from trainer.event_lines import say
from trainer.job import markers, storage
from trainer.job.checkpoints import Checkpoint, Checkpoints
from trainer.loop.judge import Judge
from trainer.model import results
from trainer.observe.events import Events


def follow(request: evaluate.Request, own: Config | None = None) -> None:
    """Measure the checkpoints of a job until it is done. `own`: what this process was started with;
    a job that is to be longer than it was is not done. Raises what evaluate.evaluate does.
    """
    if request.checkpoint == "best":
        raise UsageError("--follow: follows the last checkpoint; leave --checkpoint best out")
    log = _Log(evaluate.settings(request))
    model: evaluate.Model | None = None
    while True:
        config = evaluate.settings(request)
        done = markers.finished(own or config)
        checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
        newest = max(checkpoints.steps(), default=-1)
        least = 1 if done or log.last < 0 else max(1, request.evaluate_every)
        checkpoint = checkpoints.newest() if newest >= max(log.last, 0) + least else None
        if checkpoint and checkpoint.position.step > log.last:  # and the newest is whole
            model = model or evaluate.Model(request, config)
            log.add(model, checkpoint)
            continue  # a newer one may be there by now
        if done:
            say("done", f"the job is done at step {done['step']}", step=done["step"])
            return
        time.sleep(evaluate.POLL)


class _Log:
    """What was measured so far, in the job folder."""

    def __init__(self, config: Config) -> None:
        self.folder = f"{config.job_dir}/evaluator"
        self._path = f"{self.folder}/evaluations.json"
        self._judge = Judge(config.metric)
        self._made: list[dict[str, Any]] = []
        if storage.gfile.exists(self._path):
            found = json.loads(storage.read(self._path))
            self._made = found["evaluations"]
            self._judge.restore(found["judge"])
        self._events = Events(f"{config.log_dir}/evaluator")

    @property
    def last(self) -> int:
        """Step of the last one; -1: there is none."""
        return int(self._made[-1]["step"]) if self._made else -1

    def add(self, model: evaluate.Model, checkpoint: Checkpoint) -> None:
        """Measure a checkpoint, and note it; the SavedModel of the best one is there before."""
        step = checkpoint.position.step
        result = model.measure(checkpoint)
        if self._judge.better(step, result):
            weights = {v.path: v.numpy() for v in model.network.variables}
            results.export(weights, model.names, model.config, f"{self.folder}/best")
            say("exported", f"SavedModel (best) in {self.folder}/best", step=step, name="best")
        self._events.scalars(step, {name: result[name] for name in METRICS if name in result})
        self._events.flush()
        self._made.append({"step": step, **result})
        best, judge = self._judge.summary(), self._judge.state()
        content = {"evaluations": self._made, "best": best, "judge": judge}
        storage.write(self._path, json.dumps(content, indent=1).encode())
