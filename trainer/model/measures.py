"""What an evaluation measures: of classes (trainer.model.scores), of several labels, of values.

Sources: average precision as scikit-learn's average_precision_score, mean over the classes that
occur (the "mAP" of papers on several labels); R2 as scikit-learn's r2_score, mean over the values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.input import targets
from trainer.model import optimization, scores

Units = tuple[Any, Any]
"""Mean and deviation of the values; 0 and 1 where there are none."""


@dataclass(frozen=True)
class Measure:
    """How the examples of an evaluation are counted. The devices add up counts, whose number does
    not depend on the number of examples; the host makes metrics of them."""

    sizes: Callable[[int], dict[str, int]]
    """Names and numbers of the counts, by the number of outputs; the first four are sums, and the
    fourth is the number of examples."""
    count: Callable[[Any, Any, Any, Units], tf.Tensor]
    """The counts of a batch, from targets, outputs, weights and units: float32 [sum of sizes]."""
    tally: Callable[[dict[str, np.ndarray], int, np.ndarray], Any]
    """What follows from the counts, with the number of outputs and the deviations."""


def of(target: str) -> Measure:
    """Return what is measured of a target."""
    return _MEASURES.get(target, _MEASURES[targets.CLASS])


class OfLabels(scores.Tally):
    """The counts of an evaluation of several labels; a label is predicted from a probability of 0.5
    on."""

    @property
    def confusion(self) -> None:
        """There is none: an example has several labels."""

    @property
    def average_precision(self) -> np.ndarray:
        """Area under the curve of precision and recall of each class; NaN of one that no example
        has. Scores that differ by less than 0.05 in the logit count as equal."""
        own = self.counts["own"].reshape(self.classes, -1)[:, ::-1]
        every = self.counts["all"].reshape(self.classes, -1)[:, ::-1]
        right, taken = own.cumsum(axis=1), every.cumsum(axis=1)
        area = (own * right / np.maximum(taken, 1)).sum(axis=1)
        return np.where(own.sum(axis=1) > 0, area / np.maximum(own.sum(axis=1), 1), np.nan)

    def metrics(self) -> dict[str, float]:
        """Return trainer.config.METRICS_OF["labels"]; those of classes are means over those that
        occur.
        """
        loss, right, exact, examples = map(float, self.counts["sums"])
        return {
            "loss": loss / examples,
            "accuracy": right / examples,
            "exact_match": exact / examples,
            **self.by_class(),
            "average_precision": scores.mean(self.average_precision),
        }


@dataclass(frozen=True)
class OfValues:
    """The counts of an evaluation of values. Arrays have one for each value."""

    counts: dict[str, np.ndarray]
    values: int
    deviation: np.ndarray
    """Of the training records."""
    confusion: None = None

    @property
    def examples(self) -> float:
        return float(self.counts["sums"][scores.EXAMPLES])

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
        return {
            "loss": float(self.counts["sums"][0]) / self.examples,
            "mae": float(self.mae.mean()),
            "rmse": float(self.rmse.mean()),
            "r2": scores.mean(self.r2),
        }

    def table(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a row for each value: name, examples, mae, rmse, r2 (None: not known)."""
        columns = zip(names, self.mae, self.rmse, self.r2, strict=True)
        return [
            {
                "value": name,
                "examples": round(self.examples),
                "mae": float(f"{mae:.4g}"),
                "rmse": float(f"{rmse:.4g}"),
                "r2": None if np.isnan(r2) else round(float(r2), 4),
            }
            for name, mae, rmse, r2 in columns
        ]


def _count_labels(labels: Any, logits: Any, weights: Any, _: Units) -> tf.Tensor:
    classes = logits.shape[-1]
    each = weights[:, None]
    answers = tf.cast(logits >= 0, tf.float32)
    same = tf.cast(answers == labels, tf.float32)
    losses = optimization.label_losses(labels, logits)
    sums = (losses, tf.reduce_mean(same, -1), tf.reduce_min(same, -1), tf.ones_like(weights))
    places = tf.reshape(scores.places_of(logits), [-1])
    size = classes * scores.curve(classes)

    def curve(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), places, size)

    parts = {
        "sums": tf.stack([tf.reduce_sum(weights * total) for total in sums]),
        "right": tf.reduce_sum(each * labels * answers, 0),
        "labels": tf.reduce_sum(each * labels, 0),
        "answers": tf.reduce_sum(each * answers, 0),
        "own": curve(each * labels),
        "all": curve(tf.broadcast_to(each, tf.shape(labels))),
    }
    return tf.concat([parts[name] for name in _label_sizes(classes)], axis=0)


def _label_sizes(classes: int) -> dict[str, int]:
    bins = classes * scores.curve(classes)
    each = dict.fromkeys(("right", "labels", "answers"), classes)
    return {"sums": 4, **each, "own": bins, "all": bins}


def _count_values(values: Any, outputs: Any, weights: Any, units: Units) -> tf.Tensor:
    mean, deviation = units
    losses = weights * optimization.value_losses(values, outputs, deviation)
    zero, each = tf.zeros([]), weights[:, None]
    error, standard = (outputs - values) / deviation, (values - mean) / deviation
    parts = {
        "sums": tf.stack([tf.reduce_sum(losses), zero, zero, tf.reduce_sum(weights)]),
        "absolute": tf.reduce_sum(each * tf.abs(error), 0),
        "squared": tf.reduce_sum(each * tf.square(error), 0),
        "total": tf.reduce_sum(each * standard, 0),
        "squares": tf.reduce_sum(each * tf.square(standard), 0),
    }
    return tf.concat([parts[name] for name in _value_sizes(outputs.shape[-1])], axis=0)


def _value_sizes(values: int) -> dict[str, int]:
    return {"sums": 4, **dict.fromkeys(("absolute", "squared", "total", "squares"), values)}


_MEASURES = {
    targets.CLASS: Measure(
        scores.sizes,
        lambda labels, outputs, weights, _: scores.tally(labels, outputs, weights),
        lambda counts, classes, _: scores.Tally(counts, classes),
    ),
    targets.LABELS: Measure(
        _label_sizes, _count_labels, lambda counts, classes, _: OfLabels(counts, classes)
    ),
    targets.VALUES: Measure(_value_sizes, _count_values, OfValues),
}
