"""Augmentation where the model is: a device makes views of whole pictures, a batch at once.

The host only decodes. It sends whole pictures on one canvas, and what happens to each: the same
windows and random numbers as it would use itself. Resizing is two products of matrices, which an
accelerator does at no cost; its pictures differ from the host's by rounding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.input import augment, mixing
from trainer.input.parts import Shard

WHOLE, SEEN, DRAWS, CHANGES, MIXING = "whole", "seen", "draws", "changes", "mixing"
"""Keys of a batch: the pictures; augment.window; augment.DRAWS numbers of each; augment.changing;
the numbers of mixing.mixed. Without SEEN, the pictures are squares of the model's size."""


def canvas(shards: tuple[Shard, ...], image_size: int) -> int:
    """Return pixels of a square that holds every picture of these records; 0: it is not known, or
    so large that the host had better resize.
    """
    sides = {shard.jpeg[0] and shard.jpeg[2] for shard in shards if shard.records}
    small = 0 not in sides and max(sides) < 2 * image_size
    return max(sides) if small else 0


def settled(config: Config, shards: tuple[Shard, ...], accelerator: str) -> Config:
    """Return `config` with where pictures are augmented. accelerator: "GPU", "TPU", or "": a CPU.

    Raises UsageError where --augment-on device is not possible.
    """
    possible = canvas(shards, config.image_size) > 0
    if config.augment_on == "device" and not possible:
        raise UsageError(
            "--augment-on device: takes pictures of less than twice --image-size "
            f"{config.image_size} that trainer.records made, with the dataset.json beside them"
        )
    if config.augment_on != "auto":
        return config
    turns = augment.drawn(config)  # pictures, which XLA cannot
    works = accelerator == "GPU" or (accelerator == "TPU" and not turns)
    useful = possible and works and not (config.deterministic or augment.none(config))
    return replace(config, augment_on="device" if useful else "host")


def augmented(
    batch: Any, labels: tf.Tensor, config: Config, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (uint8 images, targets) that the host would have made of a batch.

    What the host has augmented is returned as it is.
    """
    if not isinstance(batch, Mapping):
        return batch, labels
    draws = batch[DRAWS]
    images = tf.cast(batch[WHOLE], tf.float32)
    if SEEN in batch or config.flip != "none" or config.turn:
        images = views(images, batch.get(SEEN), draws, config)
    images = augment.uint8(augment.change(images, draws, batch[CHANGES], config))
    if mixing.none(config):
        return images, labels
    return mixing.mixed(images, labels, batch[MIXING], config, classes)


def views(images: tf.Tensor, seen: tf.Tensor | None, draws: tf.Tensor, config: Config) -> tf.Tensor:
    """Return the windows `seen` of float32 pictures [n, height, width, 3], or all of them, flipped,
    resized and turned as augment.placing has it.
    """
    (n, height, width), size = images.shape[:3], config.image_size
    mirrored, upended, turns = tf.unstack(augment.placing(draws, config), axis=1)
    if seen is None:
        seen = tf.tile([[0, 0, height, width]], [n, 1])
    top, left, tall, wide = tf.unstack(tf.cast(seen, tf.float32), axis=1)
    rows = _weights(top, tall, upended, size, height)
    columns = _weights(left, wide, mirrored, size, width)
    resized = tf.matmul(rows, tf.reshape(images, [n, height, width * 3]))
    resized = tf.reshape(resized, [n, size, width, 3])
    made = tf.einsum("nbw,nawc->nabc", columns, resized)
    for number in (1, 2, 3) if config.turn else ():
        turned = (turns == number)[:, None, None, None]
        made = tf.where(turned, tf.image.rot90(made, number), made)
    return made


def _weights(
    start: tf.Tensor, length: tf.Tensor, backwards: tf.Tensor, size: int, of: int
) -> tf.Tensor:
    """Return float32 [n, size, of]: what each of `of` pixels counts in each of `size`, as
    tf.image.resize has it (bilinear, half-pixel centres, no smoothing).
    """
    place = (tf.range(size, dtype=tf.float32) + 0.5) * (length / size)[:, None] - 0.5
    place = start[:, None] + tf.clip_by_value(place, 0.0, length[:, None] - 1.0)
    place = tf.where(backwards[:, None] > 0, place[:, ::-1], place)
    distance = tf.abs(place[:, :, None] - tf.range(of, dtype=tf.float32))
    return tf.maximum(0.0, 1.0 - distance)
