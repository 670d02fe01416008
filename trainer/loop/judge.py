"""What follows from an evaluation: a line, whether it is the best one, whether to stop early."""

import math
from dataclasses import dataclass
from typing import Any

from trainer.config import METRICS
from trainer.event_lines import say


@dataclass
class Judge:
    """Follows one metric over the evaluations of a run."""

    metric: str
    patience: int = 0
    """Stop after this many evaluations that were not better; 0: never."""
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    """Evaluations since the best one."""

    def better(self, step: int, result: dict[str, float]) -> bool:
        """Add an evaluation, and return whether it is the best so far. With NaN it never is."""
        value = result[self.metric]
        sign = 1 if METRICS[self.metric] else -1
        gain = math.inf if self.best is None else sign * (value - self.best)
        if not math.isfinite(value) or gain <= 0:
            self.waited += 1
            return False
        self.best, self.best_step, self.waited = value, step, 0
        return True

    @property
    def stop(self) -> bool:
        return 0 < self.patience <= self.waited

    def summary(self) -> dict[str, Any]:
        """Return metric, value and step of the best evaluation; {}: there is none."""
        if self.best is None:
            return {}
        return {"metric": self.metric, "value": self.best, "step": self.best_step}

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        self.best, self.best_step = state.get("best"), state.get("best_step", 0)
        self.waited = state.get("waited", 0)


def tell(step: int, result: dict[str, float]) -> None:
    """Report an evaluation."""
    if "accuracy" in result:
        measured = f"accuracy {result['accuracy']:.4f}"
    else:
        measured = f"mean absolute error {result['mae']:.4g}"
    text = f"step {step}: validation loss {result['loss']:.4f}, {measured}"
    fields: dict[str, Any] = {**result, "seconds": round(result["seconds"], 2)}
    say("evaluated", f"{text} on {result['examples']} examples", step=step, **fields)
