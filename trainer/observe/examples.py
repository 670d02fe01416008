"""Held-out examples for the report: those that the model is surest of and wrong about."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import data, targets
from trainer.model import optimization
from trainer.observe.observer import Observer, Run

POOL, FILES = 256, 32
"""Most held-out examples that are looked at, always the same ones, from so many files at most."""
SHOWN = 8
"""Mistakes in the report."""
_BATCH = 32


class Mistakes(Observer):
    """Looks for the worst answers after each evaluation."""

    def __init__(self) -> None:
        self._pool: tuple[np.ndarray, np.ndarray] | None = None
        self._predict: Any = None
        self.pictures: list[tuple[np.ndarray, str]] = []
        """Those of the last evaluation, with their captions."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if not run.place.chief:
            return
        if self._pool is None:
            self._pool = pool(run)
            self._predict = tf.function(
                lambda x: optimization.predicted(run.config, run.model(x, training=False))
            )
        images, labels = self._pool
        starts = range(0, len(images), _BATCH)
        parts = [self._predict(images[at : at + _BATCH]).numpy() for at in starts]
        captions = worst(run, labels, np.concatenate(parts))
        self.pictures = [(images[number], caption) for number, caption in captions]


def pool(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return held-out examples from the beginnings of the files: pictures and targets."""
    shards = [shard for shard in run.validation if shard.records]
    chosen = shards[:: -(-len(shards) // FILES)]
    each = -(-POOL // len(chosen))
    shards = [dataclasses.replace(shard, records=min(each, shard.records)) for shard in chosen]
    context = tf.distribute.InputContext()
    dataset = data.evaluation(tuple(shards), context, run.config, len(run.names), _BATCH)
    images, labels, weights = zip(*dataset.as_numpy_iterator(), strict=True)
    real = np.concatenate(weights) > 0
    return np.concatenate(images)[real][:POOL], np.concatenate(labels)[real][:POOL]


def worst(run: Run, labels: np.ndarray, predicted: np.ndarray) -> list[tuple[int, str]]:
    """Return numbers and captions of the SHOWN examples whose prediction is furthest from what they
    are: of a class, the surest of the wrong ones.
    """
    names = run.names
    if run.config.target == targets.CLASS:
        answers, sure = predicted.argmax(axis=1), predicted.max(axis=1)
        wrong = np.flatnonzero(answers != labels)
        order = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
        return [(n, f"is {names[labels[n]]}, {sure[n]:.0%} {names[answers[n]]}") for n in order]
    scale = np.asarray(optimization.units(run.config, run.model)[1])
    far = np.abs((predicted - labels) / scale).max(axis=1)

    def words(own: np.ndarray) -> str:
        if run.config.target == targets.VALUES:
            return ", ".join(f"{value:.4g}" for value in own)
        present = [name for name, value in zip(names, own, strict=True) if value >= 0.5]
        return ", ".join(present) or "none"

    order = np.argsort(-far, kind="stable")[:SHOWN]
    return [(n, f"is {words(labels[n])}, predicted {words(predicted[n])}") for n in order]
