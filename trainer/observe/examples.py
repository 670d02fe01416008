"""Held-out examples for the report: those that the model is surest of and wrong about."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import data, targets
from trainer.model import networks, optimization
from trainer.observe.board import Board
from trainer.observe.observer import Observer, Run

POOL = 256
"""Number of held-out examples for mistakes and activations."""
SHOWN = 8
"""Mistakes in the report."""
_BATCH = 32


class Pool:
    """POOL held-out examples, always the same ones, from the beginnings of up to FILES files."""

    FILES = 32

    def __init__(self) -> None:
        self._examples: tuple[np.ndarray, np.ndarray] | None = None

    def examples(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 [n, size, size, 3] and int64 [n]."""
        if self._examples is None:
            self._examples = self._read(run)
        return self._examples

    def _read(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        shards = [shard for shard in run.validation if shard.records]
        chosen = shards[:: -(-len(shards) // self.FILES)]
        each = -(-POOL // len(chosen))
        taken = tuple(dataclasses.replace(s, records=min(each, s.records)) for s in chosen)
        dataset = data.evaluation(
            taken,
            tf.distribute.InputContext(),
            batch_size=_BATCH,
            image_size=run.config.image_size,
            classes=len(run.names),
            crop=run.config.evaluate_crop,
        )
        images, labels, weights = zip(*dataset.as_numpy_iterator(), strict=True)
        real = np.concatenate(weights) > 0
        return np.concatenate(images)[real][:POOL], np.concatenate(labels)[real][:POOL]


class Mistakes(Observer):
    """Looks for the worst answers after each evaluation, within the budget."""

    def __init__(self, board: Board, pool: Pool) -> None:
        self.board = board
        self.pool = pool
        self._predict: Any = None
        self.pictures: list[tuple[np.ndarray, str]] = []
        """Those of the last evaluation that was looked at, with their captions."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if not self.board.writes:
            return
        if step < run.steps and not self.board.affordable(run, "mistakes"):
            return
        with self.board.spend("mistakes"):
            images, labels = self.pool.examples(run)
            if self._predict is None:
                self._predict = tf.function(
                    lambda x: optimization.predicted(run.config, run.model(x, training=False))
                )
            starts = range(0, len(images), _BATCH)
            parts = [self._predict(images[at : at + _BATCH]).numpy() for at in starts]
            captions = worst(run, labels, np.concatenate(parts))
            self.pictures = [(images[number], caption) for number, caption in captions]


def worst(run: Run, labels: np.ndarray, predicted: np.ndarray) -> list[tuple[int, str]]:
    """Return numbers and captions of the SHOWN examples whose prediction is furthest from what they
    are: of a class, the surest of the wrong ones.
    """
    names = run.names
    if run.config.target == targets.VALUES:
        deviation = networks.deviation(run.config, run.model)
        far = np.abs((predicted - labels) / deviation).max(axis=1)
    elif run.config.target == targets.LABELS:
        far = np.abs(predicted - labels).max(axis=1)
    else:
        answers, sure = predicted.argmax(axis=1), predicted.max(axis=1)
        wrong = np.flatnonzero(answers != labels)
        order = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
        return [(n, f"is {names[labels[n]]}, {sure[n]:.0%} {names[answers[n]]}") for n in order]

    def words(own: np.ndarray) -> str:
        if run.config.target == targets.VALUES:
            return ", ".join(f"{value:.4g}" for value in own)
        present = [name for name, value in zip(names, own, strict=True) if value >= 0.5]
        return ", ".join(present) or "none"

    order = np.argsort(-far, kind="stable")[:SHOWN]
    return [(n, f"is {words(labels[n])}, said {words(predicted[n])}") for n in order]
