"""What a model is to say of an example: its class, several labels at once, or numbers.

The records say which: an example has image/class/label (one class), image/class/labels (any number
of them, also none) or image/values (one number for each line of labels.txt). Those of other tools
may have other names for these, which --feature-label tells.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import tensorflow as tf

from trainer.config import METRICS_OF, Config, UsageError
from trainer.input.parts import Layout
from trainer.records.sources import looks_like_a_picture

Target = Literal["class", "labels", "values"]
CLASS: Final = "class"
LABELS: Final = "labels"
VALUES: Final = "values"
NAMES: Mapping[Target, str] = {
    VALUES: "image/values",
    LABELS: "image/class/labels",
    CLASS: "image/class/label",
}
"""The feature of each target, as trainer.records writes it."""


def asked(config: Config) -> Layout:
    """Return what the options say of the examples."""
    return Layout(
        config.feature_image, config.feature_label, config.first_label, config.compression
    )


def of(features: Mapping[str, Any], layout: Layout) -> Layout:
    """Return `layout` with the target, and the feature that has it, of records whose first example
    has these tf.train.Features; of {}, an unknown one, that of a class. Raises UsageError.
    """
    own: Target = next((target for target, name in NAMES.items() if name in features), CLASS)
    name = layout.label or NAMES[own]
    if features and not {layout.image, name} <= features.keys():
        missing = next(one for one in (layout.image, name) if one not in features)
        image, label = _likely(features)
        told = f"its records have {', '.join(sorted(features))}, and no {missing}; give"
        raise UsageError(f"{told} --feature-image {image} --feature-label {label}")
    if name in features and name not in NAMES.values():
        own = _kind(name, features[name])
    return replace(layout, target=own, label=name)


def _likely(features: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the features that may be the picture and the label."""
    pictures = (
        name for name, feature in features.items()
        if any(map(looks_like_a_picture, feature.bytes_list.value))
    )  # fmt: skip
    labels = (
        name for name, feature in features.items()
        if len(feature.int64_list.value) == 1 and re.search("label|class|target", name)
    )  # fmt: skip
    return next(pictures, "NAME"), next(labels, "NAME")


def _kind(name: str, feature: Any) -> Target:
    """Return what a feature of another name tells: whole numbers a class, others values."""
    if feature.bytes_list.value:
        raise UsageError(f"{name} holds text; --feature-label needs the number of a class")
    if feature.float_list.value:
        return VALUES
    count = len(feature.int64_list.value)
    if count != 1:
        text = f"has {count} numbers" if count else "is empty"
        raise UsageError(f"{name} {text}; --feature-label needs one class, or values with a point")
    return CLASS


def wanted(layout: Layout, outputs: int) -> dict[str, Any]:
    """Return what tf.io.parse_example has to read of the target."""
    if layout.target == VALUES:
        return {layout.label: tf.io.FixedLenFeature([outputs], tf.float32)}
    if layout.target == LABELS:
        return {layout.label: tf.io.VarLenFeature(tf.int64)}
    return {layout.label: tf.io.FixedLenFeature([], tf.int64)}


def read(examples: Mapping[str, Any], layout: Layout, outputs: int) -> tf.Tensor:
    """The checked targets of n parsed examples: int64 [n] classes, float32 [n, outputs] zeros and
    ones, or float32 [n, outputs] numbers."""
    written = examples[layout.label]
    if layout.target == VALUES:
        return tf.debugging.assert_all_finite(written, "not a finite value")
    several = layout.target == LABELS
    numbers = (written.values if several else written) - layout.first
    below = tf.debugging.assert_less(numbers, tf.cast(outputs, tf.int64), _BEYOND)
    least = tf.debugging.assert_non_negative(numbers, "label below --first-label")
    with tf.control_dependencies([bound for bound in (below, least) if bound is not None]):
        if not several:
            return tf.identity(numbers)
        padded = tf.sparse.to_dense(written.with_values(numbers), default_value=-1)
        return tf.minimum(tf.reduce_sum(tf.one_hot(padded, outputs), axis=1), 1.0)


_BEYOND = "label beyond labels.txt (they count from 0: for ones from 1, give --first-label 1)"
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
