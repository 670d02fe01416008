"""Bytes to pictures: JPEGs in the crop and at the scale that is needed, and every other format."""

from typing import Any

import tensorflow as tf

from trainer.input import augment
from trainer.input.augment import NONE, Augmentation

MOST = 65535
"""Most pixels of a JPEG's side."""


def decode(encoded: tf.Tensor, image_size: int, crop: float = 0.0) -> tf.Tensor:
    """Return a uint8 RGB square from JPEG, PNG, BMP, GIF or WebP bytes, for evaluation and serving.

    The square is the whole picture, each side scaled on its own, or with `crop` the central square
    of this share of its shorter side. A picture that is at least twice as large is decoded at a
    half, a quarter or an eighth: faster, and with less aliasing.
    """
    if not crop:
        return uint8(resized(view(encoded, None, image_size, NONE), image_size))
    cropped = Augmentation(crop=0.0)  # no picture is seen whole

    def jpeg() -> tf.Tensor:
        seen = centre(tf.io.extract_jpeg_shape(encoded)[:2], crop)
        return jpeg_view(encoded, seen, image_size, cropped, MOST)

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return part(image, centre(tf.shape(image)[:2], crop))

    return uint8(resized(tf.cond(tf.io.is_jpeg(encoded), jpeg, other), image_size))


def centre(size: tf.Tensor, crop: float) -> tf.Tensor:
    """The central square, with the share `crop` of the shorter side: int32 [4] top, left, height
    and width."""
    shorter = tf.cast(tf.reduce_min(size), tf.float32)
    side = tf.maximum(tf.cast(tf.round(shorter * crop), tf.int32), 1)
    return tf.concat([(size - side) // 2, [side, side]], axis=0)


def pixels(contents: tf.Tensor, side: int) -> tf.Tensor:
    """Return uint8 [n, side, side, 3] of n contents."""
    return tf.reshape(tf.io.decode_raw(contents, tf.uint8, fixed_length=None), [-1, side, side, 3])


def view(encoded: tf.Tensor, draws: Any, image_size: int, how: Augmentation) -> tf.Tensor:
    """Return the part that is seen of an encoded picture, at full size or a half, quarter or
    eighth.
    """

    def jpeg() -> tf.Tensor:
        seen = augment.window(tf.io.extract_jpeg_shape(encoded)[:2], draws, how)
        return jpeg_view(encoded, seen, image_size, how, MOST)

    def other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        if how.whole:
            return image
        return part(image, augment.window(tf.shape(image)[:2], draws, how))

    return tf.cond(tf.io.is_jpeg(encoded), jpeg, other)


def jpeg_view(
    encoded: tf.Tensor,
    seen: Any,
    image_size: int,
    how: Augmentation,
    most: int,
) -> tf.Tensor:
    """Return the part `seen` of a JPEG whose shorter side has at most `most` pixels.

    Only the rows and columns in the crop are decoded, at the smallest scale that is large enough.
    """
    most = min(most, how.cut or most)
    ratios = [ratio for ratio in (1, 2, 4, 8) if ratio == 1 or ratio * image_size <= most]

    def scaled(ratio: int) -> tf.Tensor:
        if how.whole:
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


def resized(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return a float32 square. A picture of that size is not changed.

    Resizing floats gives the same numbers as resizing bytes, in half the time: TensorFlow's kernel
    reads floats four at a time, and bytes one by one.
    """
    image = tf.cast(tf.ensure_shape(image, [None, None, 3]), tf.float32)
    return tf.image.resize(image, (image_size, image_size))


def uint8(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(image + 0.5, tf.uint8)
