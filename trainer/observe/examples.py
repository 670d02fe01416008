"""Held-out examples in TensorBoard: the surest mistakes, the confusion matrix."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import data, targets
from trainer.model import networks, optimization
from trainer.observe import drawing
from trainer.observe.board import Board
from trainer.observe.observer import Observer, Run

POOL = 256
"""Number of held-out examples for pictures and activations."""
SHOWN = 8
"""Mistakes that are shown after an evaluation."""
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


class Pictures(Observer):
    """After an evaluation: the most confident mistakes, and the confusion matrix."""

    def __init__(self, board: Board, pool: Pool) -> None:
        self.board = board
        self.pool = pool
        self._predict: Any = None
        self.mistakes: list[tuple[np.ndarray, list[str]]] = []
        """The surest ones of the last evaluation that was looked at, with their captions."""

    def evaluated(self, run: Run, step: int, result: dict[str, float]) -> None:
        if not self.board.writes:
            return
        if step < run.steps and not self.board.affordable(run, "pictures"):
            return
        with self.board.spend("pictures"):
            images, labels = self.pool.examples(run)
            if self._predict is None:
                self._predict = tf.function(
                    lambda x: optimization.predicted(run.config, run.model(x, training=False))
                )
            parts = [
                self._predict(images[at : at + _BATCH]).numpy()
                for at in range(0, len(images), _BATCH)
            ]
            probabilities = np.concatenate(parts)
            if run.config.target in (targets.LABELS, targets.VALUES):
                self._worst(run, step, images, labels, probabilities)
                return
            answers = probabilities.argmax(axis=1)
            validation = self.board.of("validation")
            if (matrix := run.tally.confusion) is not None:
                validation.images(step, "confusion", [drawing.confusion(matrix, run.names)])
            sure = probabilities.max(axis=1)
            order = surest(sure, answers != labels)[:SHOWN]
            captions = [
                [
                    f"is {run.names[labels[index]]}",
                    f"{sure[index]:.0%} {run.names[answers[index]]}",
                ]
                for index in order
            ]
            self.mistakes = list(zip(images[order], captions, strict=True))
            drawn = map(drawing.captioned, images[order], captions)
            validation.images(step, "misclassified", list(drawn))

    def _worst(
        self, run: Run, step: int, images: np.ndarray, labels: np.ndarray, predicted: np.ndarray
    ) -> None:
        """The examples of several labels, or of values, that the model is furthest from."""
        deviation = networks.deviation(run.config, run.model)
        far = np.abs(predicted - labels).max(axis=1) if run.config.target == targets.LABELS else (
            np.abs((predicted - labels) / deviation).max(axis=1)
        )  # fmt: skip
        order = np.argsort(-far, kind="stable")[:SHOWN]
        words = captions(run.config.target, run.names)
        shown = [
            [f"is {words(labels[index])}", f"said {words(predicted[index])}"] for index in order
        ]
        self.mistakes = list(zip(images[order], shown, strict=True))
        drawn = list(map(drawing.captioned, images[order], shown))
        self.board.of("validation").images(step, "worst", drawn)


def captions(target: str, names: tuple[str, ...]) -> Callable[[np.ndarray], str]:
    """Return what one example's labels or values are in words."""
    if target == targets.VALUES:
        return lambda values: ", ".join(f"{value:.4g}" for value in values)
    return lambda own: (
        ", ".join(name for name, value in zip(names, own, strict=True) if value >= 0.5) or "none"
    )


def surest(sure: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the numbers of the `chosen` examples, the surest first."""
    order = np.flatnonzero(chosen)
    return order[np.argsort(-sure[order], kind="stable")]
