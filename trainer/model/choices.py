"""What a run chooses itself: the options that were not given, by the data and the devices.

A job that has a checkpoint goes on with what it began with: config.json in its folder says it, so
that a restart stays right whatever this version would choose.
"""

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from trainer.config import Config
from trainer.job import markers
from trainer.job.checkpoints import Checkpoints
from trainer.model import backbones
from trainer.report import say

CHOSEN = (
    *("image_size", "batch_size", "learning_rate", "schedule", "warmup_steps"),
    "evaluate_every",
)
_RATES = {"adam": 1.0, "adamw": 1.0, "rmsprop": 0.5, "lion": 0.2, "lamb": 2.0, "sgd": 6.0}
"""The learning rate of an optimizer, in Adam's."""
_BATCH = 32
"""The batch that the rates are for."""
_EVALUATIONS, _SHORT = 10, 200
"""Evaluations of a run; a run of fewer steps has one, at its end."""
_LEAST_STEPS = 4
"""Of an epoch, for which a batch is made smaller."""


@dataclass(frozen=True)
class Facts:
    """What a choice depends on."""

    records: int
    """Of training."""
    stored: int
    """The most pixels that the shorter sides of the pictures have; 0: not known."""
    replicas: int
    accelerated: bool
    """Is a replica a GPU or a TPU?"""


Choice = tuple[str, Any, str]
"""An option's name, its value, and why."""


def settled(config: Config, given: Collection[str], facts: Facts) -> Config:
    """Return `config` with a value for each option that was not given: what the job began with, if
    it has a checkpoint, or else a choice. Each choice is reported. Raises UsageError.
    """
    known = recorded(config, given)
    if known:
        config = dataclasses.replace(config, **known)
        given = {*given, *known, *(["steps"] if "epochs" in known else [])}
        text = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in known.items())
        say("chosen", f"{text}: as this job began ({markers.RECORD})", **known)
    for name, value, why in choices(config, given, facts):
        if value != getattr(config, name) or name == "image_size":
            shown = f"{value:g}" if isinstance(value, float) else value
            option = f"--{name.replace('_', '-')}"
            say("chosen", f"{option} {shown}: {why}", **{name: value})
        config = dataclasses.replace(config, **{name: value})
    return config


def recorded(config: Config, given: Collection[str]) -> dict[str, Any]:
    """Return what a job that has a checkpoint began with, of the options that are not given; {}: it
    has none. Raises UsageError if its record cannot be read.
    """
    if not Checkpoints(config.checkpoint_dir, config.keep_checkpoints).steps():
        return {}
    values = markers.recorded(config.job_dir)
    names = [name for name in CHOSEN if name not in given]
    if "steps" not in given:
        names.append("epochs" if values.get("epochs") else "steps")
    return {name: values[name] for name in names if name in values}


def choices(config: Config, given: Collection[str], facts: Facts) -> list[Choice]:
    """Return a choice for each option of CHOSEN that was not given, and for the length."""
    made: list[Choice] = []

    def choose(name: str, value: Any, why: str) -> Any:
        if name in given:
            return getattr(config, name)
        made.append((name, value, why))
        return value

    size = config.image_size
    if "image_size" not in given:
        size = choose("image_size", *backbones.image_size(config.model, facts.stored))
    batch = choose("batch_size", *_batch(config, facts, size))
    falls = "schedule" not in given or config.schedule != "constant"
    choose("learning_rate", *_rate(config, batch, falls))
    epochs = config.epochs
    if "steps" not in given:
        epochs, why = _epochs(config, facts.records)
        made.append(("epochs", epochs, why))
    steps = max(1, round(epochs * facts.records / batch)) if epochs else config.steps
    if choose("schedule", "cosine", "the rate falls to 0 at the end of the run") == "cosine":
        choose("warmup_steps", min(500, steps // 20), "a twentieth of the run")
    every = steps // _EVALUATIONS if steps >= _SHORT else 0
    choose("evaluate_every", every, f"{_EVALUATIONS} evaluations, of which the best is kept")
    return made


def _batch(config: Config, facts: Facts, size: int) -> tuple[int, str]:
    """Return examples a step: what a device has room for, and no more than leaves an epoch some
    steps.
    """
    each, why = _BATCH, "for a CPU"
    if facts.accelerated:
        each = 256 if size <= 64 else 128 if size <= 128 else 64 if size <= 260 else 16
        why = f"for pictures of {size} pixels on an accelerator"
    unit = config.accumulate
    while each > 8 and facts.records < _LEAST_STEPS * each * facts.replicas:
        each, why = each // 2, f"few records ({facts.records:,})"
    each = max(unit, each // unit * unit)
    several = f", {each} on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
    return each * facts.replicas, why + several


def _rate(config: Config, batch: int, falls: bool) -> tuple[float, str]:
    """Return the learning rate: by where the weights come from, the optimizer and the batch.

    falls: whether it does, by the schedule; then small_cnn begins with twice as much, which was
    better on all sets of `python -m bench.real_data`.
    """
    if config.weights == "none":
        rate, why = 0.001, "from scratch"
        if config.model.lower() == "small_cnn":
            rate = 0.004 if falls else 0.002
    elif config.fine_tune_layers == 0:
        rate, why = 0.002, "the head on given weights"
    else:
        rate, why = 0.0003, "fine-tuning given weights"
    rate *= _RATES[config.optimizer]
    if batch > _BATCH:
        # Krizhevsky 2014, One weird trick: by the root for rules whose step has a fixed size.
        rate *= math.sqrt(batch / _BATCH)
    digits = 1 - math.floor(math.log10(rate))
    return round(rate, digits), f"{config.optimizer} {why}, batches of {batch}"


def _epochs(config: Config, records: int) -> tuple[float, str]:
    """Return how often the records are seen: often enough for a small set to be learnt."""
    least, examples = (20, 24_000) if config.weights == "none" else (8, 8_000)
    epochs = max(least, math.ceil(examples / max(records, 1)))
    of = "from scratch" if config.weights == "none" else "with given weights"
    return float(epochs), f"{records:,} records, {of}"
