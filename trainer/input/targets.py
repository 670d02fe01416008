"""What a model is to say of an example: its class, several labels at once, or numbers.

The records say which: an example has image/class/label (one class), image/class/labels (any number
of them, also none) or image/values (one number for each line of labels.txt).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import tensorflow as tf

from trainer.config import METRICS_OF, Config, UsageError

Target = Literal["class", "labels", "values"]
CLASS: Final = "class"
LABELS: Final = "labels"
VALUES: Final = "values"


def of(features: Mapping[str, Any]) -> Target:
    """Return the target of records whose examples have these features."""
    if "image/values" in features:
        return VALUES
    return LABELS if "image/class/labels" in features else CLASS


def wanted(target: str, outputs: int) -> dict[str, Any]:
    """Return what tf.io.parse_example has to read of the target."""
    if target == VALUES:
        return {"image/values": tf.io.FixedLenFeature([outputs], tf.float32)}
    if target == LABELS:
        return {"image/class/labels": tf.io.VarLenFeature(tf.int64)}
    return {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}


def read(examples: Mapping[str, Any], target: str, outputs: int) -> tf.Tensor:
    """The checked targets of n parsed examples: int64 [n] classes, float32 [n, outputs] zeros and
    ones, or float32 [n, outputs] numbers."""
    if target == VALUES:
        return tf.debugging.assert_all_finite(examples["image/values"], "not a finite value")
    several = target == LABELS
    written = examples["image/class/labels" if several else "image/class/label"]
    numbers = written.values if several else written
    below = tf.debugging.assert_less(numbers, tf.cast(outputs, tf.int64), _BEYOND)
    least = tf.debugging.assert_non_negative(numbers, "negative label")
    with tf.control_dependencies([bound for bound in (below, least) if bound is not None]):
        if not several:
            return tf.identity(written)
        padded = tf.sparse.to_dense(written, default_value=-1)
        return tf.minimum(tf.reduce_sum(tf.one_hot(padded, outputs), axis=1), 1.0)


_BEYOND = (
    "label beyond labels.txt (they count from 0: for ones from 1, put a line before the first)"
)
_NEED_A_CLASS = {
    VALUES: ("label_smoothing", "mixup", "cutmix", "class_weights", "sampling"),
    LABELS: ("class_weights", "sampling"),
}
_NOTHING = {"class_weights": "none", "sampling": "natural"}


def aimed(config: Config, target: Target) -> Config:
    """`config` for records of this target. Raises UsageError for what means nothing with it."""
    for name in _NEED_A_CLASS.get(target, ()):
        if (value := getattr(config, name)) != _NOTHING.get(name, 0):
            option = f"--{name.replace('_', '-')} {value}"
            raise UsageError(f"{option} needs one class of each example: {config.records} has "
                             f"{_TOLD[target]}")  # fmt: skip
    metric = config.metric
    if metric not in METRICS_OF[target]:
        if metric != Config.metric:
            known = ", ".join(METRICS_OF[target])
            raise UsageError(f"--metric {metric}: of {_TOLD[target]} there are {known}")
        metric = "loss"
    return replace(config, target=target, metric=metric)


_TOLD = {CLASS: "one class of each", LABELS: "labels", VALUES: "values"}
