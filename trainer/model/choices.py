"""What a run chooses itself: the options that were not given, by the data and the devices.

A job that has a checkpoint goes on with what it began with: config.json in its folder says it, so
that a restart that says less stays right, whatever this version would choose.
"""

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from trainer.config import UNKNOWN, Config, check
from trainer.event_lines import say
from trainer.job import markers
from trainer.job.checkpoints import Checkpoints
from trainer.model import backbones

OF_A_START = ("records", "job_dir", "accelerator", "output", "accept_changed_records")
"""What each start of a job says of itself. Every other option is the job's."""
_RATES = {"adam": 1.0, "adamw": 1.0, "rmsprop": 0.5, "lion": 0.2, "lamb": 2.0, "sgd": 6.0}
"""The learning rate of an optimizer, in Adam's."""
_BATCH = 32
"""The batch that the rates are for."""
_EVALUATIONS, _SHORT = 10, 200
"""Evaluations of a run; a run of fewer steps has one, at its end."""
SMALL = 16 << 20
"""Bytes of records whose pictures are kept: decoded, JPEGs take some fifteen times as much."""
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
    kept: bool = False
    """May decoded pictures be kept, and are the records small enough?"""


Choice = tuple[str, Any, str]
"""An option's name, its value, and why."""


def carried(config: Config, given: Collection[str]) -> tuple[Config, frozenset[str]]:
    """Return `config` with what the job began with, of each option that is not `given`, if it has a
    checkpoint and is not done; and the options that now have a value. Both are reported: what is
    not the default, and what is given and differs. Raises UsageError.
    """
    began = markers.recorded(config.job_dir)
    checkpoints = Checkpoints(config.checkpoint_dir, config.keep_checkpoints)
    if not began or markers.finished(config) or not checkpoints.steps():
        return config, frozenset(given)
    length = "epochs" if began.get("epochs") else "steps"
    names = [
        name
        for name in (entry.name for entry in dataclasses.fields(Config) if entry.metadata)
        if name in began and name not in OF_A_START and name not in ("epochs", "steps")
    ]
    names += [length] if length in began else []
    own = [name for name in names if name not in given]
    if "steps" in given and length in own:
        own.remove(length)  # --epochs is given, and this one was --steps
    differ = {
        name: began[name]
        for name in names
        if name in given and getattr(config, name) not in (began[name], UNKNOWN)
    }
    known = {name: began[name] for name in own}
    text = ", ".join(_shown(n, v) for n, v in known.items() if v != getattr(config, n))
    say("chosen", f"{text or 'every option'}: as this job began ({markers.RECORD})", **known)
    if differ:
        pairs = (f"{_shown(n, getattr(config, n))} (it was {_value(v)})" for n, v in differ.items())
        text = f"{', '.join(pairs)}: given, and another from here on"
        say("chosen", text, "WARNING", **{name: getattr(config, name) for name in differ})
    config = dataclasses.replace(config, **known)
    check(config)
    return config, frozenset((*given, *known, *(["steps"] if length in known else [])))


def _shown(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')} {_value(value)}"


def _value(value: Any) -> str:
    """Return a value as the command line has it."""
    if isinstance(value, tuple):
        return ",".join(map(_value, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def settled(config: Config, given: Collection[str], facts: Facts) -> Config:
    """Return `config` with a choice for each option that was not given. Each is reported."""
    for name, value, why in choices(config, given, facts):
        if value != getattr(config, name) or name == "image_size":
            say("chosen", f"{_shown(name, value)}: {why}", **{name: value})
        config = dataclasses.replace(config, **{name: value})
    return config


def choices(config: Config, given: Collection[str], facts: Facts) -> list[Choice]:
    """Return a choice for each of these options that was not given, and for the length."""
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
    if config.optimizer == "adamw":
        choose("weight_decay", 0.004, "Keras' own for adamw")
    epochs = config.epochs
    if "steps" not in given:
        epochs, why = _epochs(config, facts.records)
        made.append(("epochs", epochs, why))
    steps = max(1, round(epochs * facts.records / batch)) if epochs else config.steps
    if choose("schedule", "cosine", "the rate falls to 0 at the end of the run") == "cosine":
        choose("warmup_steps", min(500, steps // 20), "a twentieth of the run")
    if config.deterministic:
        choose("checkpoint_every", 100, "by steps, since saving averages what replicas know")
    if facts.kept:
        choose("cache", "memory", f"the records have at most {SMALL >> 20} MiB")
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
    better on all sets of `python -m tools.bench.real_data`.
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
