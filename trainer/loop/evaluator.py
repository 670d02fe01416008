"""The dedicated evaluator: a process that evaluates the latest checkpoint again and again.

Training does not wait for it. It keeps the best checkpoint, writes the SavedModels that follow an
evaluation, and tells the trainers when the metric no longer improves. It ends with the job.
"""

import time
from collections.abc import Mapping
from typing import Any

from trainer.config import Config, UsageError
from trainer.job import markers, storage
from trainer.job.checkpoints import Checkpoint, Checkpoints
from trainer.job.lease import Lease
from trainer.loop import inner
from trainer.loop.judge import Judge, tell
from trainer.loop.setup import Setup
from trainer.model import export, networks, optimization
from trainer.observe import insight
from trainer.observe.observer import Run, Watch
from trainer.report import say

LOOK = 0.5
"""Seconds between two looks for a checkpoint."""


class GivenUp(Exception):  # noqa: N818 - the trainers have, not this
    """The trainers have ended for good with the exit code `code`."""

    def __init__(self, failed: Mapping[str, Any]) -> None:
        super().__init__(f"the trainers have given up: {failed.get('message')}")
        self.code = int(failed.get("code", 1))


def run(setup: Setup) -> None:
    """Evaluate until the job is done. SIGTERM ends it at any time, and a restart goes on.

    Raises GivenUp, UsageError.
    """
    config = setup.config
    storage.check_writable(config.job_dir)
    lease = Lease(config.job_dir, "evaluator")
    lease.take()
    try:
        with setup.strategy.scope():
            network = networks.build(config, len(setup.names), setup.policy, pretrain=False)
        evaluation = inner.Evaluation(
            setup.strategy, network, config, len(setup.names), setup.validation
        )
        look = setup.run(network, optimizer=None, write=True)
        _loop(look, evaluation, Watch(insight.observers(config, setup.place)))
    finally:
        lease.release()


def _loop(look: Run, evaluation: inner.Evaluation, watch: Watch) -> None:
    config = look.config
    path = f"{config.job_dir}/{markers.EVALUATIONS}"
    judge = Judge(config.metric, config.early_stopping)
    marker = markers.read(path)
    judge.restore(marker.get("judge", {}))
    if markers.more(config, marker):  # The run is now longer: the patience starts anew.
        judge.waited = 0
    last = int(marker.get("step", -1))
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
    average = averaged(look.model, config, look.strategy, look.policy)
    watch.begin(look)
    # A marker that is there already may come from the attempt before. The trainers remove it when
    # they start; this waits for them as long as they wait for each other.
    earlier = markers.read(f"{config.job_dir}/{markers.FAILED}")
    patience = time.monotonic() + config.peer_timeout
    while True:
        done = markers.finished(config) is not None
        checkpoint = checkpoints.newest(last)
        if checkpoint is None:
            if done:
                break
            failed = markers.read(f"{config.job_dir}/{markers.FAILED}")
            if failed and (failed != earlier or time.monotonic() > patience):
                raise GivenUp(failed)
            time.sleep(LOOK)
            continue
        last = checkpoint.position.step
        look.position = checkpoint.position
        assign(look.model, checkpoint, config, average)
        with look.ledger.spend("evaluation"):
            result = evaluation.run()
        tell(last, result)
        look.tally = evaluation.tally
        better = judge.better(last, result)
        content = {"step": last, **result, "stop": judge.stop, "judge": judge.state()}
        content |= markers.requested(config)
        watch.evaluated(look, last, result)
        if better:
            best = Checkpoints(f"{config.checkpoint_dir}/best", keep=1)
            best.save(checkpoint.position, checkpoint.variables, checkpoint.state)
        for name in config.export:
            if name == "latest" or (name == "best" and better):
                folder = f"{config.job_dir}/export/{name}"
                export.save(_weights(look.model), look.names, config, folder, name, last)
        markers.write(path, content)
    watch.end(look, "done")
    say("done", f"the job is done; last evaluated step {last}", step=max(last, 0))


def averaged(network: Any, config: Config, strategy: Any, policy: str) -> dict[str, str]:
    """With --ema, the path of the average of each trained variable, in the trainers' optimizer."""
    if not config.ema:
        return {}
    optimizer = networks.optimizer(config, policy)
    with strategy.scope():
        optimizer.build(network.trainable_variables)
    pairs = optimization.averages(optimizer, network)
    return {variable.path: average.path for variable, average in pairs}


def assign(
    network: Any, checkpoint: Checkpoint, config: Config, averaged: Mapping[str, str]
) -> None:
    """Give the network the weights of a checkpoint, or where `averaged` names it, their average."""
    by_path = {name.partition(" ")[2]: value for name, value in checkpoint.variables.items()}
    for number, variable in enumerate(network.variables):
        value = checkpoint.variables.get(f"{number:04d} {variable.path}")
        if variable.path in averaged:
            value = by_path.get(averaged[variable.path])
        if value is None or tuple(value.shape) != tuple(variable.shape):
            raise UsageError(
                f"the checkpoints in {config.checkpoint_dir} are of another model: give the "
                "evaluator the same options as the trainers"
            )
        variable.assign(value)


def _weights(network: Any) -> dict[str, Any]:
    return {variable.path: variable.numpy() for variable in network.variables}
