"""Augmentation where the model is: an accelerator changes the colours of squares and mixes them.

It does so by the same numbers as the host, whose processor it would take up to four times as long
as all the rest of the input.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainer.config import Config
from trainer.input import augment, mixing

IMAGES, DRAWS, CHANGES, MIXING = "images", "draws", "changes", "mixing"
"""Keys of a batch: squares; augment.DRAWS numbers of each; augment.changing; the numbers of
mixing.mixed."""


def useful(config: Config, accelerator: str) -> bool:
    """Return whether `augmented` has something to do there. accelerator: "GPU", "TPU", or ""."""
    turns = augment.drawn(config)  # pictures, which XLA cannot
    able = accelerator == "GPU" or (accelerator == "TPU" and not turns)
    wanted = augment.repaints(config) or not mixing.none(config)
    return able and wanted and not config.deterministic


def augmented(
    batch: Any, labels: tf.Tensor, config: Config, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (uint8 images, targets) that the host would have made of a batch.

    What the host has augmented is returned as it is.
    """
    if not isinstance(batch, Mapping):
        return batch, labels
    images = tf.cast(batch[IMAGES], tf.float32)
    images = augment.uint8(augment.change(images, batch[DRAWS], batch[CHANGES], config))
    if mixing.none(config):
        return images, labels
    return mixing.mixed(images, labels, batch[MIXING], config, classes)
