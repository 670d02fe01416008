"""Bytes to pictures: JPEGs in the crop and at the scale that is needed, and every other format."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

MOST = 65535
"""Most pixels of a JPEG's side."""


def decode(encoded: tf.Tensor, image_size: int, crop: float = 0.0) -> tf.Tensor:
    """Return a uint8 RGB square from JPEG, PNG, BMP, GIF or WebP bytes, for evaluation and serving.

    The square is the whole picture, each side scaled on its own, or with `crop` the central square
    of this share of its shorter side. A picture that is at least twice as large is decoded at a
    half, a quarter or an eighth: faster, and with less aliasing.
    """
    window = (lambda size: centre(size, crop)) if crop else None
    return square(view(encoded, window, image_size), image_size)


def centre(size: tf.Tensor, crop: float) -> tf.Tensor:
    """Return the central square, with the share `crop` of the shorter side: int32 [4] top, left,
    height and width."""
    shorter = tf.cast(tf.reduce_min(size), tf.float32)
    side = tf.maximum(tf.cast(tf.round(shorter * crop), tf.int32), 1)
    return tf.concat([(size - side) // 2, [side, side]], axis=0)


def view(
    encoded: tf.Tensor, window: Callable[[tf.Tensor], tf.Tensor] | None, image_size: int
) -> tf.Tensor:
    """Return the part of an encoded picture that `window` makes of its height and width, or all of
    it; a JPEG at full size or a half, quarter or eighth.
    """

    def of_jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        seen = window(size) if window else tf.concat([[0, 0], size], axis=0)
        return jpeg(encoded, seen, image_size, MOST, whole=window is None)

    def of_other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return part(image, window(tf.shape(image)[:2])) if window else image

    return tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_other)


def jpeg(encoded: tf.Tensor, seen: Any, image_size: int, most: int, whole: bool) -> tf.Tensor:
    """Return the part `seen` of a JPEG, whose shorter side has at most `most` pixels.

    Only the rows and columns in the part are decoded, at the smallest scale that is large enough.
    whole: `seen` is all of the picture, and None where no scale is to be chosen.
    """
    ratios = [ratio for ratio in (1, 2, 4, 8) if ratio == 1 or ratio * image_size <= most]

    def scaled(ratio: int) -> tf.Tensor:
        if whole:
            return tf.io.decode_jpeg(encoded, channels=3, ratio=ratio)
        crop = tf.maximum(seen // ratio, [0, 0, 1, 1]) if ratio > 1 else seen
        return tf.image.decode_and_crop_jpeg(encoded, crop, channels=3, ratio=ratio)

    if len(ratios) == 1:
        return scaled(1)
    scale = tf.reduce_min(seen[2:]) // image_size
    enough = tf.reduce_sum(tf.cast(scale >= tf.constant(ratios[1:]), tf.int32))
    return tf.switch_case(enough, [lambda ratio=ratio: scaled(ratio) for ratio in ratios])


def part(image: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
    return tf.slice(image, [seen[0], seen[1], 0], [seen[2], seen[3], 3])


def square(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return a uint8 square. A picture of that size is not changed."""
    made = tf.cond(
        tf.reduce_all(tf.shape(image)[:2] == image_size),
        lambda: image,
        lambda: uint8(resized(image, image_size)),
    )
    return tf.ensure_shape(made, [image_size, image_size, 3])


def resized(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return a float32 square.

    Resizing floats gives the same numbers as resizing bytes, in half the time: TensorFlow's kernel
    reads floats four at a time, and bytes one by one.
    """
    image = tf.cast(tf.ensure_shape(image, [None, None, 3]), tf.float32)
    return tf.image.resize(image, (image_size, image_size))


def uint8(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image + 0.5, tf.uint8)
