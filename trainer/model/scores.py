"""What an evaluation measures: of classes, of several labels, of values.

The devices add up counts, whose number does not depend on the number of examples; the host makes
metrics of them. So an evaluation by several workers has the same metrics as one by a single
process.

Sources: precision, recall and F1 as scikit-learn has them, macro average over the classes that
occur; the area under the ROC curve of each class against all others (Hanley and McNeil 1982);
expected calibration error with 15 bins of equal width (Guo et al. 2017, On Calibration of Modern
Neural Networks); average precision as scikit-learn's average_precision_score, mean over the classes
that occur (the "mAP" of papers on several labels); R2 as scikit-learn's r2_score, mean over the
values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import targets
from trainer.model import optimization

TOP = 5
CALIBRATION = 15
"""Bins of confidence."""
LARGE = 1000
"""With more classes than this there is no confusion matrix."""
MOST = 40
"""Classes in a table of words; of more, those with the least F1."""
_EDGE = 14.0
"""Logits of a class against all others are binned from -_EDGE to _EDGE: to a probability of
1e-6."""

Counts = dict[str, tf.Tensor]
"""Sums over the examples of a batch, float32; `examples` is their number. An example of weight 0
does not count."""
Units = tuple[Any, Any]
"""Mean and deviation of the values; 0 and 1 where there are none."""


@dataclass(frozen=True)
class Scores:
    """Holds the counts of an evaluation, and the metrics that follow. Arrays have an entry for each
    class, label or value."""

    counts: dict[str, np.ndarray]
    deviation: np.ndarray
    """Of the values of the training records."""

    @property
    def examples(self) -> float:
        return float(self.counts["examples"])

    def means(self, *names: str) -> dict[str, float]:
        """Return these counts as means over the examples."""
        return {name: float(self.counts[name]) / self.examples for name in names}


class _Several(Scores):
    """Classes or labels: what is right of each."""

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
        own, rest = self.counts["own"], self.counts["all"] - self.counts["own"]
        below = np.cumsum(rest, axis=1) - rest
        wins = (own * (below + rest / 2)).sum(axis=1)
        pairs = own.sum(axis=1) * rest.sum(axis=1)
        return np.where(pairs > 0, wins / np.maximum(pairs, 1), np.nan)

    def by_class(self) -> dict[str, float]:
        """Return the metrics of single classes, as means over the classes that occur."""
        occurs = (self.counts["labels"] + self.counts["answers"]) > 0
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        means = {n: float(of[occurs].mean()) if occurs.any() else 0.0 for n, of in scores.items()}
        return {**means, "auc": _mean(self.auc)}

    def table(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a row for each class: name, examples, precision, recall, f1, auc (None: not
        known).
        """
        figures = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        columns = {**figures, "auc": self.auc}
        return [
            {
                "class": name,
                "examples": int(self.counts["labels"][number]),
                **{column: _known(values[number]) for column, values in columns.items()},
            }
            for number, name in enumerate(names)
        ]


class OfClasses(_Several):
    """One class of each example."""

    @staticmethod
    def count(labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor, _: Units) -> Counts:
        classes = logits.shape[-1]
        labels = tf.cast(labels, tf.int32)
        answers = tf.argmax(logits, axis=-1, output_type=tf.int32)
        right = weights * optimization.right(labels, logits)
        own = tf.gather(logits, labels, batch_dims=1)[:, None]
        among = tf.reduce_sum(tf.cast(logits > own, tf.float32), axis=1) < TOP
        shares = tf.nn.softmax(logits)
        odds = tf.math.log(tf.maximum(shares, 1e-9)) - tf.math.log(tf.maximum(1.0 - shares, 1e-9))
        confidence = tf.reduce_max(shares, axis=-1)
        sure = tf.minimum(tf.cast(confidence * CALIBRATION, tf.int32), CALIBRATION - 1)
        columns = (weights, weights * confidence, right)
        counts = {
            "loss": tf.reduce_sum(weights * optimization.plain_losses(labels, logits)),
            "accuracy": tf.reduce_sum(right),
            "top5": tf.reduce_sum(weights * tf.cast(among, tf.float32)),
            "examples": tf.reduce_sum(weights),
            "right": _sums(right, labels, classes),
            "labels": _sums(weights, labels, classes),
            "answers": _sums(weights, answers, classes),
            "calibration": tf.stack([_sums(column, sure, CALIBRATION) for column in columns]),
            **_curves(odds, tf.one_hot(labels, classes), weights),
        }
        if classes <= LARGE:
            matrix = _sums(weights, labels * classes + answers, classes * classes)
            counts["confusion"] = tf.reshape(matrix, [classes, classes])
        return counts

    @property
    def confusion(self) -> np.ndarray | None:
        """Counts [true, predicted]; None: too many classes."""
        matrix = self.counts.get("confusion")
        return None if matrix is None else matrix.astype(np.int64)

    @property
    def calibration_error(self) -> float:
        """Mean distance of confidence and share of right answers, over bins of confidence."""
        count, confidence, right = self.counts["calibration"]
        return float(np.abs(confidence - right).sum() / max(count.sum(), 1))

    def metrics(self) -> dict[str, float]:
        """Return trainer.config.METRICS_OF["class"]."""
        means = self.means("loss", "accuracy", "top5")
        return {**means, **self.by_class(), "calibration_error": self.calibration_error}


class OfLabels(_Several):
    """Several labels of an example; one is predicted from a probability of 0.5 on."""

    confusion = None

    @staticmethod
    def count(labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor, _: Units) -> Counts:
        each, answers = weights[:, None], tf.cast(logits >= 0, tf.float32)
        same = tf.cast(answers == labels, tf.float32)
        return {
            "loss": tf.reduce_sum(weights * optimization.label_losses(labels, logits)),
            "accuracy": tf.reduce_sum(weights * tf.reduce_mean(same, -1)),
            "exact_match": tf.reduce_sum(weights * tf.reduce_min(same, -1)),
            "examples": tf.reduce_sum(weights),
            "right": tf.reduce_sum(each * labels * answers, 0),
            "labels": tf.reduce_sum(each * labels, 0),
            "answers": tf.reduce_sum(each * answers, 0),
            **_curves(logits, labels, weights),
        }

    @property
    def average_precision(self) -> np.ndarray:
        """Area under the curve of precision and recall of each class; NaN of one that no example
        has. Scores that differ by less than 0.05 in the logit count as equal."""
        own, every = self.counts["own"][:, ::-1], self.counts["all"][:, ::-1]
        area = (own * own.cumsum(axis=1) / np.maximum(every.cumsum(axis=1), 1)).sum(axis=1)
        there = own.sum(axis=1)
        return np.where(there > 0, area / np.maximum(there, 1), np.nan)

    def metrics(self) -> dict[str, float]:
        """Return trainer.config.METRICS_OF["labels"]."""
        means = self.means("loss", "accuracy", "exact_match")
        return {**means, **self.by_class(), "average_precision": _mean(self.average_precision)}


class OfValues(Scores):
    """Values; errors are counted in deviations."""

    confusion = None

    @staticmethod
    def count(values: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor, units: Units) -> Counts:
        mean, deviation = units
        losses = optimization.value_losses(values, outputs, deviation)
        each = weights[:, None]
        error, standard = (outputs - values) / deviation, (values - mean) / deviation
        return {
            "loss": tf.reduce_sum(weights * losses),
            "examples": tf.reduce_sum(weights),
            "absolute": tf.reduce_sum(each * tf.abs(error), 0),
            "squared": tf.reduce_sum(each * tf.square(error), 0),
            "total": tf.reduce_sum(each * standard, 0),
            "squares": tf.reduce_sum(each * tf.square(standard), 0),
        }

    @property
    def mae(self) -> np.ndarray:
        """Mean absolute error."""
        return np.asarray(self.counts["absolute"] / self.examples * self.deviation)

    @property
    def rmse(self) -> np.ndarray:
        """Root of the mean squared error."""
        return np.asarray(np.sqrt(self.counts["squared"] / self.examples) * self.deviation)

    @property
    def r2(self) -> np.ndarray:
        """Share of the variance that is predicted; NaN of a value that is always the same."""
        spread = self.counts["squares"] - self.counts["total"] ** 2 / self.examples
        some = spread > 1e-6 * self.examples
        return np.where(some, 1 - self.counts["squared"] / np.where(some, spread, 1), np.nan)

    def metrics(self) -> dict[str, float]:
        """Return trainer.config.METRICS_OF["values"], means over the values."""
        means = {"mae": float(self.mae.mean()), "rmse": float(self.rmse.mean())}
        return {**self.means("loss"), **means, "r2": _mean(self.r2)}

    def table(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a row for each value: name, examples, mae, rmse, r2 (None: not known)."""
        columns = zip(names, self.mae, self.rmse, self.r2, strict=True)
        return [
            {
                "value": name,
                "examples": round(self.examples),
                "mae": float(f"{mae:.4g}"),
                "rmse": float(f"{rmse:.4g}"),
                "r2": _known(r2),
            }
            for name, mae, rmse, r2 in columns
        ]


OF = {targets.CLASS: OfClasses, targets.LABELS: OfLabels, targets.VALUES: OfValues}
"""By the target of the records."""


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows of a table of scores in aligned columns."""
    first, *others = rows[0]
    few = len(rows) <= MOST
    listed = rows if few else sorted(rows, key=lambda row: row.get("f1") or row.get("r2") or 0.0)
    left = "" if few else f" ({MOST} of {len(rows)}, the least f1 or r2 first)"
    width = max(5, *(len(row[first]) for row in listed[:MOST]))
    wide = {name: max(len(name), 6) for name in others}
    lines = [f"{first:{width}}" + "".join(f"  {name:>{wide[name]}}" for name in others) + left]
    for row in listed[:MOST]:
        cells = (f"  {_cell(row[name]):>{wide[name]}}" for name in others)
        lines.append(f"{row[first]:{width}}" + "".join(cells))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _sums(values: tf.Tensor, numbers: tf.Tensor, size: int) -> tf.Tensor:
    """Return the sums of `values` by their numbers, of which there are `size`."""
    flat = tf.reshape(values, [-1]), tf.reshape(numbers, [-1])
    return tf.math.unsorted_segment_sum(*flat, size)


def _curves(odds: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> Counts:
    """Return how many examples of a class, and of all, are in each bin [classes, bins] of `odds`,
    the logits of each class against all others. `labels`: 1 where an example is of a class."""
    classes, each = odds.shape[-1], weights[:, None]
    bins = 560 if classes <= LARGE else 56
    places = tf.cast((odds + _EDGE) * (bins / (2 * _EDGE)), tf.int32)
    places = tf.clip_by_value(places, 0, bins - 1) + tf.range(classes) * bins
    examples = {"own": each * labels, "all": each * tf.ones_like(labels)}
    return {
        name: tf.reshape(_sums(values, places, classes * bins), [classes, bins])
        for name, values in examples.items()
    }


def _known(value: np.floating[Any]) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def _mean(values: np.ndarray) -> float:
    """Return the mean of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), 0.0)
