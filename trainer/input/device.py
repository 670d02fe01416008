"""Augmentation where the model is: a device makes views of whole pictures, a batch at once.

The host only decodes. It sends whole pictures on one canvas, and what happens to each: the same
windows and random numbers as it would use itself (augment.View). Resizing is two products of
matrices, which an accelerator does at no cost; its pictures differ from the host's by rounding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.input import augment, mixing
from trainer.input.parts import Shard

WHOLE, MIXING = "whole", "mixing"
"""Keys of a batch beside those of augment.View: the pictures, and the numbers of mixing.mixed."""


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
    drawn = config.trivial_augment or config.rand_augment > 0
    works = accelerator == "GPU" or (accelerator == "TPU" and not drawn)  # XLA cannot turn pictures
    useful = possible and works and not (config.deterministic or augment.of(config).none)
    return replace(config, augment_on="device" if useful else "host")


def augmented(
    batch: Any, labels: tf.Tensor, config: Config, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (uint8 images, targets) that the host would have made of a batch.

    What the host has augmented is returned as it is.
    """
    if not isinstance(batch, Mapping):
        return batch, labels
    how, mix = augment.of(config), mixing.of(config)
    images = tf.cast(batch[WHOLE], tf.float32)
    images = augment.change(views(images, batch, config.image_size), dict(batch), how)
    images = tf.cast(images + 0.5, tf.uint8)
    if mix.none:
        return images, labels
    return mixing.mixed(images, labels, batch[MIXING], mix, classes)


def views(images: tf.Tensor, view: Mapping[str, tf.Tensor], size: int) -> tf.Tensor:
    """Return the windows `seen` of float32 pictures [n, height, width, 3], flipped, resized and
    turned as `view` says: [n, size, size, 3].
    """
    n, height, width = images.shape[:3]
    top, left, tall, wide = tf.unstack(tf.cast(view["seen"], tf.float32), axis=1)
    rows = _weights(top, tall, view.get("upended"), size, height)
    columns = _weights(left, wide, view.get("mirrored"), size, width)
    resized = tf.matmul(rows, tf.reshape(images, [n, height, width * 3]))
    resized = tf.reshape(resized, [n, size, width, 3])
    seen = tf.einsum("nbw,nawc->nabc", columns, resized)
    for number in (1, 2, 3) if "turns" in view else ():
        turned = (view["turns"] == number)[:, None, None, None]
        seen = tf.where(turned, tf.image.rot90(seen, number), seen)
    return seen


def _weights(
    start: tf.Tensor, length: tf.Tensor, backwards: tf.Tensor | None, size: int, of: int
) -> tf.Tensor:
    """Return float32 [n, size, of]: what each of `of` pixels counts in each of `size`, as
    tf.image.resize has it (bilinear, half-pixel centres, no smoothing).
    """
    place = (tf.range(size, dtype=tf.float32) + 0.5) * (length / size)[:, None] - 0.5
    place = start[:, None] + tf.clip_by_value(place, 0.0, length[:, None] - 1.0)
    if backwards is not None:
        place = tf.where(backwards[:, None], place[:, ::-1], place)
    distance = tf.abs(place[:, :, None] - tf.range(of, dtype=tf.float32))
    return tf.maximum(0.0, 1.0 - distance)
