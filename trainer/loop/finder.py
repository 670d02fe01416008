"""The learning-rate finder: a short run whose rate rises from step to step (Smith 2017, Cyclical
Learning Rates for Training Neural Networks, section 3.3).

While the rate is too small the loss stays; then it falls; when the rate is too large it rises. The
rate at which it falls fastest is a good one to train with. Nothing is kept of this run's weights.
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np

from trainer.config import Config, UsageError
from trainer.job import storage
from trainer.loop.inner import Trainer
from trainer.observe.events import Events
from trainer.report import say

STEPS = 150
LEAST, MOST = 1e-6, 10.0
"""The rates of the first and of the last step."""
KEPT = 0.9
"""What a step keeps of the running mean of the loss."""
DIVERGED = 4.0
"""The search is over where the mean is so many times the least one."""
FOUND = "learning_rate.json"
"""In the job folder: rates, losses, and the rate that is advised."""


def rising(config: Config) -> Config:
    """`config` with a learning rate that rises from LEAST to MOST in STEPS steps."""
    changes: dict[str, Any] = {"schedule": "rising", "final_learning_rate": MOST / LEAST}
    changes |= {"learning_rate": LEAST, "learning_rate_scaling": "none", "warmup_steps": 0}
    return dataclasses.replace(config, steps=STEPS, **changes)


def smoothed(losses: np.ndarray) -> np.ndarray:
    """The running mean of the losses, without the pull to its start."""
    mean, means = 0.0, []
    for number, loss in enumerate(losses.tolist(), start=1):
        mean = KEPT * mean + (1 - KEPT) * loss
        means.append(mean / (1 - KEPT**number))
    return np.array(means)


def advised(rates: np.ndarray, losses: np.ndarray) -> float:
    """The rate at which the running mean falls fastest, before it is least.

    Raises UsageError if it does not fall.
    """
    means = smoothed(losses)
    least = int(means.argmin())
    slopes = np.gradient(means[: least + 1], np.log(rates[: least + 1])) if least >= 2 else None
    if slopes is None or slopes.min() >= 0:
        raise UsageError("--find-learning-rate: the loss falls at no rate; look at the records")
    digits = 1 - math.floor(math.log10(rates[int(slopes.argmin())]))
    return round(float(rates[int(slopes.argmin())]), digits)


def find(trainer: Trainer, batches: Any, config: Config, write: bool) -> float:
    """Train with a rising rate and report the advised one. All ranks call it; `write`: the chief.

    Raises UsageError, and one of storage.FAILURES.
    """
    rates, losses = np.zeros(0), np.zeros(0)
    while len(losses) < STEPS:
        metrics = trainer.train(batches, 1)
        loss = float(metrics["loss"][0])
        if not math.isfinite(loss):
            break
        rates = np.append(rates, metrics["learning_rate"][0])
        losses = np.append(losses, loss)
        means = smoothed(losses)
        if means[-1] > DIVERGED * means.min():
            break
    rate = advised(rates, losses)
    if write:
        board = Events(f"{config.log_dir}/find")
        for step, (learning_rate, loss, mean) in enumerate(
            zip(rates, losses, smoothed(losses), strict=True), start=1
        ):
            board.scalars(step, {"learning_rate": learning_rate, "loss": loss, "loss_mean": mean})
        board.text(0, "advice", f"The loss falls fastest at a learning rate of {rate:g}.")
        board.close()
        content = {"advised": rate, "rates": rates.tolist(), "losses": losses.tolist()}
        storage.write(f"{config.job_dir}/{FOUND}", json.dumps(content).encode())
    text = f"the loss falls fastest at a learning rate of {rate:g}: give --learning-rate {rate:g}"
    say("learning_rate", text, rate=rate, steps=len(losses))
    return rate
