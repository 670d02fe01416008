"""The list of a run's observers, and those that report progress, utilisation and the account."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.config import METRICS, Config
from trainer.job import storage
from trainer.model import networks
from trainer.observe import summaries, utilization
from trainer.observe.activations import Activations
from trainer.observe.board import Board
from trainer.observe.classes import Classes
from trainer.observe.examples import Mistakes, Pool
from trainer.observe.hypertune import Trial
from trainer.observe.input_report import InputReport
from trainer.observe.observer import Observer, Run
from trainer.observe.page import Page
from trainer.report import say

JOURNAL, SUMMARY = "journal.json", "summary.json"
"""In the job folder: the account when the attempt last wrote it down; the final account."""


def observers(config: Config, place: Any) -> list[Observer]:
    """The observers in the order of their calls. Every rank has all of them, because they determine
    where an inner call ends."""
    board, pool = Board(), Pool()
    activations = Activations(board, config, pool)
    machine = Utilization(board, utilization.SECONDS if place.chief else 0.0)
    mistakes, account = Mistakes(board, pool), Account(board, machine, activations)
    return [
        Progress(),
        summaries.Scalars(board),
        summaries.Options(board),
        summaries.Graph(board),
        summaries.Weights(board, config),
        activations,
        mistakes,
        Classes(),
        summaries.Profile(board, config),
        machine,
        InputReport(config),
        Trial(os.environ),
        Files(board),
        account,
        Page(mistakes, account),
    ]


class Progress(Observer):
    """Reports steps: each of the first calls, then a line every SECONDS."""

    FIRST = 100
    """Inner calls of an attempt that are reported one by one."""
    SECONDS = 10.0
    """Between two lines after that, so that a day has some 9,000 lines, not a million."""

    def __init__(self) -> None:
        self._calls = 0
        self._losses: list[float] = []
        self._accuracies: list[float] = []
        self._seconds = 0.0
        self._told = 0.0

    def begin(self, run: Run) -> None:
        if run.place.chief:
            depth = networks.depth(run.model)
            layers = {key: getattr(depth, key) for key in depth.__dataclass_fields__}
            say("model", f"{run.model.name}: {depth}", **layers)

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if not run.place.chief:
            return
        self._losses += metrics["loss"].tolist()
        self._accuracies += metrics["accuracy"].tolist() if "accuracy" in metrics else []
        self._seconds += float(np.sum(metrics["seconds"]))
        self._calls += 1
        now, step = time.monotonic(), run.position.step
        last = step >= run.steps
        if self._calls > self.FIRST and now - self._told < self.SECONDS and not last:
            return
        count = len(self._losses)
        pace = self._seconds / count
        loss = float(np.mean(self._losses))
        fields: dict[str, Any] = {
            "loss": loss,
            "epoch": run.position.epoch,
            "examples_per_second": round(run.config.batch_size / pace, 1),
            "steps": run.steps,
            "eta_seconds": round((run.steps - step) * pace, 1),
        }
        if self._accuracies:
            fields["accuracy"] = float(np.mean(self._accuracies))
        say("step", f"step {step} of {run.steps}: loss {loss:.4f}", step=step, **fields)
        self._losses, self._accuracies, self._seconds, self._told = [], [], 0.0, now


class Utilization(Observer):
    """Reports speed, processor, memory and GPUs."""

    def __init__(self, board: Board, seconds: float) -> None:
        self.board = board
        self._gpus = utilization.Gpus(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
        looks = (utilization.Machine().look, self._gpus.look)
        self.sampler = utilization.Sampler(seconds, looks)
        self._examples = 0
        self._seconds = 0.0
        self._calls = 0

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        self._calls += 1
        if self._calls > 1:  # the first one traces and compiles
            self._examples += len(metrics["loss"]) * run.config.batch_size
            self._seconds += float(np.sum(metrics["seconds"]))
        fresh = self.sampler.fresh()
        if fresh and self.board.writes:
            with self.board.spend("scalars"):
                tags = {f"utilisation/{name}": value for name, value in fresh.items()}
                self.board.of("train").scalars(run.position.step, tags)

    def end(self, run: Run, outcome: str) -> None:
        if outcome != "preempted":  # In a preemption every moment counts.
            self.sampler.fresh(now=True)  # so that a short run has one

    def report(self) -> dict[str, Any]:
        """Speed and utilisation of this attempt."""
        speed = self._examples / self._seconds if self._seconds else 0.0
        return {"examples_per_second": speed, "machine": self.sampler.report()}


class Files(Observer):
    """Closes the event files, after all observers but the account have ended."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def end(self, run: Run, outcome: str) -> None:
        self.board.close()


class Account(Observer):
    """Writes the account of all attempts: journal.json while it runs, summary.json at the end."""

    name = "account"
    SECONDS = 15.0
    """Between two entries of the journal; up to this much is missing after a kill."""

    def __init__(self, board: Board, machine: Utilization, activations: Activations) -> None:
        self.board = board
        self.machine = machine
        self.activations = activations
        self._written = 0.0
        self._reached = 0
        self._useful: dict[int, float] = {}
        self._lost_steps = 0
        self._evaluation: dict[str, Any] = {}
        self._best: dict[str, Any] = {}
        self._outcome = ""

    def state(self) -> dict[str, Any]:
        return {"lost_steps": self._lost_steps, "best": self._best}

    def restore(self, state: dict[str, Any]) -> None:
        self._lost_steps = state["lost_steps"]
        self._best = state["best"]

    def begin(self, run: Run) -> None:
        if not run.place.chief:
            return
        step = run.position.step
        journal = self._journal(run)
        if journal:
            clean = journal["clean"] and journal["step"] == step
            run.ledger.reconcile(journal["ledger"], clean)
            self._lost_steps = max(self._lost_steps, journal["lost_steps"])
            if not clean:
                self._lost_steps += max(0, journal["step"] - step)
        self._reached = step
        self._note(run, clean=False)

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        if not run.place.chief:
            return
        if first_step <= self._reached:  # back to a checkpoint: what came after it is lost
            again = self._reached - first_step + 1
            self._lost_steps += again
            before = self._useful.get(first_step - 1, 0.0)
            seconds = run.ledger.seconds()["compute"] - before
            made_anew = float(np.sum(metrics["seconds"]))
            run.ledger.move(max(0.0, seconds - made_anew), "compute", "lost")
            self._useful = {k: v for k, v in self._useful.items() if k < first_step}
        self._reached = run.position.step
        if time.monotonic() - self._written > self.SECONDS:
            self._note(run, clean=False)

    def saved(self, run: Run, step: int, seconds: float) -> None:
        self._useful[step] = run.ledger.seconds()["compute"]

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        self._evaluation = {"step": step, **result}
        metric = run.config.metric
        better = 1 if METRICS[metric] else -1
        if not self._best or better * (result[metric] - self._best["value"]) > 0:
            self._best = {"metric": metric, "value": result[metric], "step": step}

    def end(self, run: Run, outcome: str) -> None:
        self._outcome = outcome
        if run.place.chief:
            self._conclude(run)

    def closed(self, run: Run) -> None:
        if run.place.chief:  # again, with the time of the last SavedModel
            self._conclude(run)

    def _conclude(self, run: Run) -> None:
        self._note(run, clean=self._outcome in ("done", "stopped", "preempted"))
        content = json.dumps(_finite(self.summary(run)), indent=1).encode()
        try:
            storage.write(f"{run.config.job_dir}/{SUMMARY}", content)
        except storage.FAILURES as error:  # A full disk is not a fault of this program.
            say("summary", f"{SUMMARY} cannot be written: {error}", "WARNING")

    def summary(self, run: Run) -> dict[str, Any]:
        """The content of summary.json: times of all attempts, speeds of this one."""
        depth = networks.depth(run.model)
        return {
            "outcome": self._outcome,
            "step": run.position.step,
            "steps": run.steps,
            "epoch": run.position.epoch,
            "examples": run.position.examples,
            "evaluation": self._evaluation,
            "best": self._best,
            "model": {
                "name": run.model.name,
                "precision": run.policy,
                **{key: getattr(depth, key) for key in depth.__dataclass_fields__},
            },
            "time": {
                **run.ledger.report(),
                "lost_steps": self._lost_steps,
            },
            "speed": self.machine.report(),
            "summaries": self.board.costs,
            "activations": self.activations.latest,
            "software": run.facts,
            "left_out": run.left_out,
        }

    def _note(self, run: Run, clean: bool) -> None:
        self._written = time.monotonic()
        content = {
            "step": run.position.step,
            "clean": clean,
            "lost_steps": self._lost_steps,
            "ledger": run.ledger.state(),
        }
        try:
            storage.write(f"{run.config.job_dir}/{JOURNAL}", json.dumps(content).encode())
        except storage.FAILURES as error:  # This must not stop the training.
            say("journal", f"the journal cannot be written: {error}", "WARNING")

    def _journal(self, run: Run) -> dict[str, Any]:
        try:
            return dict(json.loads(storage.read(f"{run.config.job_dir}/{JOURNAL}")))
        except (*storage.FAILURES, ValueError):
            return {}


def _finite(value: Any) -> Any:
    """`value`, with numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else str(value)
    return value
