"""Held-out examples in TensorBoard: the surest mistakes, the confusion matrix, sounds."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import data, spectrograms, targets
from trainer.input.parts import Shard
from trainer.model import networks, optimization
from trainer.observe import drawing
from trainer.observe.board import Board
from trainer.observe.observer import Observer, Run
from trainer.records import tfrecord

POOL = 256
"""Number of held-out examples for pictures and activations."""
_BATCH = 32


class Pool:
    """POOL held-out examples, always the same ones, from the beginnings of up to FILES files."""

    FILES = 32

    def __init__(self) -> None:
        self._examples: tuple[np.ndarray, np.ndarray] | None = None
        self._taken: tuple[Shard, ...] = ()

    def examples(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 [n, size, size, 3] and int64 [n]."""
        if self._examples is None:
            self._examples = self._read(run)
        return self._examples

    def heard(self, numbers: np.ndarray) -> dict[int, bytes]:
        """Return WAV files of what evaluation hears of these examples, by number.

        They are read again each time, because all of them would take tens of megabytes for
        as long as the run lasts.
        """
        sound, clips = self._taken[0].sound, dict[int, bytes]()
        assert sound is not None
        paths, counts = zip(*((s.path, s.records) for s in self._taken), strict=True)
        records = tf.data.Dataset.from_tensor_slices((list(paths), list(counts))).flat_map(
            lambda path, count: tf.data.TFRecordDataset(path).take(tf.cast(count, tf.int64))
        )
        for number, record in enumerate(records.take(POOL).as_numpy_iterator()):
            if number in numbers:
                content = tfrecord.features(record)["audio/encoded"]
                assert isinstance(content, bytes)
                clips[number] = spectrograms.clip(content, sound)
        return clips

    def _read(self, run: Run) -> tuple[np.ndarray, np.ndarray]:
        shards = [shard for shard in run.validation if shard.records]
        chosen = shards[:: -(-len(shards) // self.FILES)]
        each = -(-POOL // len(chosen))
        taken = tuple(dataclasses.replace(s, records=min(each, s.records)) for s in chosen)
        self._taken = taken
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
        if not (self.board.writes and run.config.examples):
            return
        if step < run.steps and not self.board.affordable(run, "pictures"):
            return
        with self.board.spend("pictures"):
            images, labels = self.pool.examples(run)
            if self._predict is None:
                config, network, answer = run.config, run.model, optimization.answer
                self._predict = tf.function(
                    lambda x: optimization.predicted(config, answer(config, network, x))
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
            shown = {"misclassified": surest(sure, answers != labels, labels * 0)}
            if run.config.rate:
                shown["recognised"] = surest(sure, answers == labels, labels)
            for tag, order in shown.items():
                shown[tag] = order = order[: run.config.examples]
                captions = [
                    [
                        f"is {run.names[labels[index]]}",
                        f"{sure[index]:.0%} {run.names[answers[index]]}",
                    ]
                    for index in order
                ]
                if tag == "misclassified":
                    self.mistakes = list(zip(images[order], captions, strict=True))
                drawn = map(drawing.captioned, images[order], captions)
                validation.images(step, tag, list(drawn))
            if run.config.rate:
                self._sounds(run, step, shown, sure, labels, answers)

    def _worst(
        self, run: Run, step: int, images: np.ndarray, labels: np.ndarray, predicted: np.ndarray
    ) -> None:
        """The examples of several labels, or of values, that the model is furthest from."""
        deviation = networks.deviation(run.config, run.model)
        far = np.abs(predicted - labels).max(axis=1) if run.config.target == targets.LABELS else (
            np.abs((predicted - labels) / deviation).max(axis=1)
        )  # fmt: skip
        order = np.argsort(-far, kind="stable")[: run.config.examples]
        words = captions(run.config.target, run.names)
        shown = [
            [f"is {words(labels[index])}", f"said {words(predicted[index])}"] for index in order
        ]
        self.mistakes = list(zip(images[order], shown, strict=True))
        drawn = list(map(drawing.captioned, images[order], shown))
        self.board.of("validation").images(step, "worst", drawn)

    def _sounds(
        self,
        run: Run,
        step: int,
        shown: Mapping[str, np.ndarray],
        sure: np.ndarray,
        labels: np.ndarray,
        answers: np.ndarray,
    ) -> None:
        """What was heard of the shown examples, in the same order, and a table of them."""
        validation = self.board.of("validation")
        clips = self.pool.heard(np.concatenate(list(shown.values())))
        rows = ["| | is | taken for | sure |", "|---|---|---|---|"]
        for tag, order in shown.items():
            for number, index in enumerate(order.tolist(), start=1):
                validation.sound(step, f"{tag}/{number}", clips[index])
                true, taken = (run.names[of[index]].replace("|", "\\|") for of in (labels, answers))
                rows.append(f"| {tag}/{number} | {true} | {taken} | {sure[index]:.0%} |")
        validation.text(step, "sounds", "\n".join(rows))


def captions(target: str, names: tuple[str, ...]) -> Callable[[np.ndarray], str]:
    """Return what one example's labels or values are in words."""
    if target == targets.VALUES:
        return lambda values: ", ".join(f"{value:.4g}" for value in values)
    return lambda own: (
        ", ".join(name for name, value in zip(names, own, strict=True) if value >= 0.5) or "none"
    )


def surest(sure: np.ndarray, chosen: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return numbers of the `chosen` examples, the surest first: the surest of each group, then the
    second of each, and so on.
    """
    order = np.flatnonzero(chosen)
    order = order[np.argsort(-sure[order], kind="stable")]
    before: Counter[int] = Counter()
    turns = []
    for group in groups[order].tolist():
        turns.append(before[group])
        before[group] += 1
    return order[np.argsort(turns, kind="stable")]
