"""The curves of a run over all its attempts, and the page that shows them."""

from typing import Any

import numpy as np

from trainer.job import storage
from trainer.observe.examples import Mistakes
from trainer.observe.observer import Observer, Run
from trainer.observe.page import HELPS, SHOWN, Curve, Curves, overfitting, page
from trainer.report import say

REPORT = "report.html"
"""In the job folder."""
POINTS = 400
"""Most points of a curve; with more, every second one is left out."""


class Report(Observer):
    """Collects the curves, and writes the page when the run is over."""

    name = "page"

    def __init__(self, mistakes: Mistakes, account: Any) -> None:
        """`account`: insight.Account."""
        self.mistakes, self.account = mistakes, account
        self.curves: Curves = {}
        self._every = 1

    def state(self) -> dict[str, Any]:
        return {"curves": self.curves, "every": self._every}

    def restore(self, state: dict[str, Any]) -> None:
        self._every = state["every"]
        self.curves = {
            name: [(step, value) for step, value in curve]
            for name, curve in state["curves"].items()
        }

    def steps(self, run: Run, first_step: int, metrics: dict[str, np.ndarray]) -> None:
        for name in (name for name in SHOWN if name in metrics):
            curve = self._curve(f"{name}, training", first_step)
            numbered = enumerate(metrics[name].tolist(), start=first_step)
            curve += [(step, round(v, 5)) for step, v in numbered if step % self._every == 0]
        if len(self.curves["loss, training"]) > POINTS:
            self._every *= 2
            for curve in (curve for name, curve in self.curves.items() if "training" in name):
                curve[:] = [point for point in curve if point[0] % self._every == 0]

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        for name in (name for name in SHOWN if name in result):
            self._curve(f"{name}, evaluation", step).append((step, round(result[name], 5)))

    def end(self, run: Run, outcome: str) -> None:
        text = overfitting(self.curves)
        if run.place.chief and outcome in ("done", "stopped") and text:
            best = f"{run.config.checkpoint_dir}/best has the best by --metric {run.config.metric}"
            helps = f"what helps: {HELPS}; {best}"
            say("overfitting", f"{text}; {helps}", "WARNING", step=run.position.step)

    def closed(self, run: Run) -> None:
        if not run.place.chief:
            return
        path = f"{run.config.job_dir}/{REPORT}"
        text = page(run, self.account.summary(run), self.curves, self.mistakes.pictures)
        if storage.attempt(path, text.encode()):
            say("report", f"the run on one page: {path}", path=path)

    def _curve(self, name: str, first: int) -> Curve:
        """Return a curve without its points from step `first` on, which are made again."""
        curve = self.curves.setdefault(name, [])
        while curve and curve[-1][0] >= first:
            curve.pop()
        return curve
