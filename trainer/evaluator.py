"""The dedicated evaluator: a process of its own that takes the latest checkpoint, again and again.

Training does not wait for it. It is throttled (--evaluate-delay, --evaluate-interval,
--evaluate-batches), keeps the best checkpoint and the SavedModels that go with an evaluation, and
tells the trainer when nothing gets better. It ends with the job.
"""

import json
import time
from typing import Any

from trainer import export, inner, insight, model, storage
from trainer import observer as seam
from trainer.checkpoints import Checkpoint, Checkpoints, Position, Torn
from trainer.config import Config, UsageError
from trainer.judge import Judge
from trainer.lease import Lease
from trainer.ledger import Ledger, process_age
from trainer.loop import EVALUATIONS, tell
from trainer.report import say

FAILED = "FAILED"
"""Below the job folder: the trainers have given up; there until they are started again."""
LOOK = 0.5
"""Seconds between two looks for a checkpoint."""


def run(
    config: Config,
    place: Any,
    strategy: Any,
    names: tuple[str, ...],
    shards: tuple[Any, ...],
    held_out: tuple[Any, ...],
    policy: str,
    facts: dict[str, Any],
) -> None:
    """Evaluate until the job is done. SIGTERM ends it at any time: a restart goes on."""
    storage.check_writable(config.job_dir)
    lease = Lease(config.job_dir, "evaluator")
    lease.take()
    try:
        with strategy.scope():
            network = model.build(config, len(names), policy, pretrain=False)
        evaluation = inner.Evaluation(strategy, network, config, len(names), held_out)
        look = seam.Run(
            config=config,
            place=place,
            strategy=strategy,
            model=network,
            optimizer=None,
            names=names,
            train=shards,
            validation=held_out,
            ledger=Ledger(age=process_age()),
            writer=seam.Writer(config.log_dir, write=True),
            position=Position(),
            steps=config.steps,
            policy=policy,
            facts=facts,
        )
        _loop(look, evaluation, insight.observers(config, place))
    finally:
        lease.release()


def _loop(look: seam.Run, evaluation: inner.Evaluation, watching: list[Any]) -> None:
    config = look.config
    path = f"{config.job_dir}/{EVALUATIONS}"
    judge = Judge(config.metric, config.early_stopping, config.early_stopping_delta)
    found = _read(path)
    judge.restore(found.get("judge", {}))
    last = int(found.get("step", -1))
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
    for observer in watching:
        observer.begin(look)
    time.sleep(config.evaluate_delay)
    while True:
        done = storage.gfile.exists(f"{config.job_dir}/DONE")
        checkpoint = _newest(checkpoints, last)
        if checkpoint is None:
            if done:
                break
            if failed := _read(f"{config.job_dir}/{FAILED}"):
                raise UsageError(f"the trainers have given up: {failed.get('message')}")
            time.sleep(LOOK)
            continue
        began = time.monotonic()
        last = checkpoint.position.step
        look.position = checkpoint.position
        _assign(look.model, checkpoint, config)
        with look.ledger.spend("evaluation"):
            result = evaluation.run()
        tell(last, result)
        better = judge.better(last, result)
        content = {"step": last, **result, "stop": judge.stop, "judge": judge.state()}
        for observer in watching:
            observer.evaluated(look, last, result)
        look.writer.flush()
        if better and config.keep_best:
            best = Checkpoints(f"{config.checkpoint_dir}/best", keep=1)
            best.save(checkpoint.position, checkpoint.variables, checkpoint.state)
        for name in config.export:
            if name == "latest" or (name == "best" and better):
                folder = f"{config.job_dir}/export/{name}"
                export.save(look.model, look.names, config, folder, name, last)
        storage.write(path, json.dumps(content).encode())
        while time.monotonic() - began < config.evaluate_interval:
            # Not past the end of the job: its last checkpoint is evaluated at once.
            if storage.gfile.exists(f"{config.job_dir}/DONE"):
                break
            time.sleep(LOOK)
    for observer in watching:
        observer.end(look, "done")
    look.writer.flush()
    say("done", f"the job is done; last evaluated step {last}", step=max(last, 0))


def _newest(checkpoints: Checkpoints, after: int) -> Checkpoint | None:
    """The newest whole checkpoint after a step; one that is removed meanwhile is passed."""
    for step in reversed(checkpoints.steps()):
        if step <= after:
            return None
        try:
            return checkpoints.load(step)
        except Torn:
            continue
    return None


def _assign(network: Any, checkpoint: Checkpoint, config: Config) -> None:
    for number, variable in enumerate(network.variables):
        value = checkpoint.variables.get(f"{number:04d} {variable.path}")
        if value is None or tuple(value.shape) != tuple(variable.shape):
            raise UsageError(
                f"the checkpoints in {config.checkpoint_dir} are of another model: give the "
                "evaluator the same options as the trainers"
            )
        variable.assign(value)


def _read(path: str) -> dict[str, Any]:
    try:
        return dict(json.loads(storage.read(path)))
    except (*storage.NOT_FOUND, ValueError):
        return {}
