"""What an evaluation measures of a classifier: metrics of the run and of each class.

The devices add up counts (`tally`), whose size does not depend on the number of examples; the host
makes metrics of them (`Tally`). So an evaluation by several workers has the same metrics as one by
a single process.

Sources: precision, recall and F1 as scikit-learn has them, macro average over the classes that
occur; the area under the ROC curve of each class against all others (Hanley and McNeil 1982);
expected calibration error with 15 bins of equal width (Guo et al. 2017, On Calibration of Modern
Neural Networks).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.model import optimization

TOP = 5
EXAMPLES = 3
"""Place of the number of examples among the counts."""
CALIBRATION = 15
"""Bins of confidence."""
LARGE = 1000
"""With more classes than this there is no confusion matrix."""
_EDGE = 14.0
"""Logits of a class against all others are binned from -_EDGE to _EDGE: to a probability of
1e-6."""


def curve(classes: int) -> int:
    """Return bins of a class's ROC curve."""
    return 560 if classes <= LARGE else 56


def places_of(odds: tf.Tensor) -> tf.Tensor:
    """Return the bin of the ROC curves that each logit of a class against all others falls into:
    int32 [n, classes], counted on from class to class.
    """
    classes = odds.shape[-1]
    bins = curve(classes)
    places = tf.cast((odds + _EDGE) * (bins / (2 * _EDGE)), tf.int32)
    return tf.clip_by_value(places, 0, bins - 1) + tf.range(classes) * bins


def sizes(classes: int) -> dict[str, int]:
    """Return the counts of `tally`, in this order, and how many there are of each."""
    square = classes * classes if classes <= LARGE else 0
    bins = classes * curve(classes)
    return {
        "sums": 4,  # of loss, right ones, those right among TOP, examples
        "right": classes,
        "labels": classes,
        "answers": classes,
        "confusion": square,  # [true, predicted]
        "own": bins,  # [class, bin] of the examples of a class
        "all": bins,
        "calibration": 3 * CALIBRATION,  # examples, sum of confidence, right ones
    }


def tally(labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the counts of a batch: float32 [sum of sizes].

    An example of weight 0 does not count.
    """
    classes = logits.shape[-1]
    labels = tf.cast(labels, tf.int32)
    answers = tf.argmax(logits, axis=-1, output_type=tf.int32)
    right = weights * optimization.right(labels, logits)
    losses = weights * optimization.plain_losses(labels, logits)
    own = tf.gather(logits, labels, batch_dims=1)[:, None]
    above = tf.reduce_sum(tf.cast(logits > own, tf.float32), axis=1)
    among = weights * tf.cast(above < TOP, tf.float32)

    def count(numbers: tf.Tensor, values: tf.Tensor, size: int) -> tf.Tensor:
        flat = tf.reshape(numbers, [-1]), tf.reshape(values, [-1])
        return tf.math.unsorted_segment_sum(flat[1], flat[0], size)

    shares = tf.nn.softmax(logits)
    bins = curve(classes)
    odds = tf.math.log(tf.maximum(shares, 1e-9)) - tf.math.log(tf.maximum(1.0 - shares, 1e-9))
    places = places_of(odds)
    confidence = tf.reduce_max(shares, axis=-1)
    sure = tf.minimum(tf.cast(confidence * CALIBRATION, tf.int32), CALIBRATION - 1)
    parts = {
        "sums": tf.stack([tf.reduce_sum(column) for column in (losses, right, among, weights)]),
        "right": count(labels, right, classes),
        "labels": count(labels, weights, classes),
        "answers": count(answers, weights, classes),
        "confusion": tf.zeros([0]),
        "own": count(tf.gather(places, labels, batch_dims=1), weights, classes * bins),
        "all": count(places, tf.broadcast_to(weights[:, None], tf.shape(places)), classes * bins),
        "calibration": tf.concat(
            [count(sure, column, CALIBRATION) for column in (weights, weights * confidence, right)],
            0,
        ),
    }
    if classes <= LARGE:
        parts["confusion"] = count(labels * classes + answers, weights, classes * classes)
    return tf.concat([parts[name] for name in sizes(classes)], axis=0)


def split(flat: np.ndarray, parts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return counts by name, from one array of them."""
    ends = np.cumsum(list(parts.values()))[:-1]
    return dict(zip(parts, np.split(flat, ends), strict=True))


def mean(values: np.ndarray) -> float:
    """Mean of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


@dataclass(frozen=True)
class Tally:
    """The counts of an evaluation, and what follows from them. Arrays have a value for each
    class."""

    counts: dict[str, np.ndarray]
    """By the names of `sizes`."""
    classes: int

    @classmethod
    def of(cls, flat: np.ndarray, classes: int) -> "Tally":
        """From the sum of what `tally` returned."""
        return cls(split(flat, sizes(classes)), classes)

    @property
    def confusion(self) -> np.ndarray | None:
        """Counts [true, predicted]; None: too many classes."""
        matrix = self.counts["confusion"].astype(np.int64)
        return matrix.reshape(self.classes, self.classes) if matrix.size else None

    @property
    def examples(self) -> np.ndarray:
        return self.counts["labels"]

    @property
    def precision(self) -> np.ndarray:
        """Of what is taken for this class, the share that is; 0 where nothing is taken for it."""
        return _ratio(self.counts["right"], self.counts["answers"])

    @property
    def recall(self) -> np.ndarray:
        """Of what is of this class, the share that is taken for it; 0 where there is nothing."""
        return _ratio(self.counts["right"], self.counts["labels"])

    @property
    def f1(self) -> np.ndarray:
        return _ratio(2 * self.counts["right"], self.counts["labels"] + self.counts["answers"])

    @property
    def auc(self) -> np.ndarray:
        """Area under the ROC curve of this class against all others; NaN where there are none of
        one kind. Scores that differ by less than 0.05 in the logit count as equal."""
        own = self.counts["own"].reshape(self.classes, -1)
        rest = self.counts["all"].reshape(self.classes, -1) - own
        below = np.cumsum(rest, axis=1) - rest
        wins = (own * (below + rest / 2)).sum(axis=1)
        pairs = own.sum(axis=1) * rest.sum(axis=1)
        return np.where(pairs > 0, wins / np.maximum(pairs, 1), np.nan)

    @property
    def calibration_error(self) -> float:
        """Mean distance of confidence and share of right answers, over bins of confidence."""
        count, confidence, right = self.counts["calibration"].reshape(3, CALIBRATION)
        return float(np.abs(confidence - right).sum() / max(count.sum(), 1))

    def metrics(self) -> dict[str, float]:
        """Return trainer.config.METRICS. Those of classes are means over the classes that occur."""
        loss, right, among, examples = map(float, self.counts["sums"])
        return {
            "loss": loss / examples,
            "accuracy": right / examples,
            "top5": among / examples,
            **self.by_class(),
            "calibration_error": self.calibration_error,
        }

    def by_class(self) -> dict[str, float]:
        """Return the metrics of single classes, as means over the classes that occur."""
        occurs = (self.counts["labels"] + self.counts["answers"]) > 0
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        means = {n: float(of[occurs].mean()) if occurs.any() else 0.0 for n, of in scores.items()}
        return {**means, "auc": mean(self.auc)}

    def table(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a row for each class: name, examples, precision, recall, f1, auc (None: not
        known).
        """
        columns = (self.examples, self.precision, self.recall, self.f1, self.auc)
        return [
            {
                "class": name,
                "examples": int(count),
                "precision": round(float(precision), 4),
                "recall": round(float(recall), 4),
                "f1": round(float(f1), 4),
                "auc": None if np.isnan(auc) else round(float(auc), 4),
            }
            for name, count, precision, recall, f1, auc in zip(names, *columns, strict=True)
        ]


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), 0.0)
