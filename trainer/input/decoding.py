"""Bytes to squares in a graph: for evaluation, for a served model, and for parameter servers."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

RATIOS = (1, 2, 4, 8)
"""A JPEG can be decoded at one in so many pixels of a side."""
Window = Callable[[tf.Tensor], tf.Tensor]
"""From height and width to what is seen: int32 [4] top, left, height and width."""


def decode(encoded: tf.Tensor, image_size: int, window: Window | None = None) -> tf.Tensor:
    """Return a uint8 RGB square from JPEG, PNG, BMP, GIF or WebP bytes.

    The square is the `window` of the picture, or all of it, each side scaled on its own. A part
    that is at least twice as large is decoded at a half, a quarter or an eighth: faster, and with
    less aliasing.
    """

    def of_jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        seen = window(size) if window else tf.concat([[0, 0], size], axis=0)

        def scaled(ratio: int) -> tf.Tensor:
            if not window:
                return tf.io.decode_jpeg(encoded, channels=3, ratio=ratio)
            crop = tf.maximum(seen // ratio, [0, 0, 1, 1])
            return tf.image.decode_and_crop_jpeg(encoded, crop, channels=3, ratio=ratio)

        scale = tf.reduce_min(seen[2:]) // image_size
        enough = tf.reduce_sum(tf.cast(scale >= tf.constant(RATIOS[1:]), tf.int32))
        return tf.switch_case(enough, [lambda ratio=ratio: scaled(ratio) for ratio in RATIOS])

    def of_other() -> tf.Tensor:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        if not window:
            return image
        seen = window(tf.shape(image)[:2])
        return tf.slice(image, [seen[0], seen[1], 0], [seen[2], seen[3], 3])

    return _square(tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_other), image_size)


def centre(crop: float) -> Window | None:
    """Return the window of the central square, with the share `crop` of the shorter side; of 0,
    None: all is seen."""

    def window(size: tf.Tensor) -> tf.Tensor:
        shorter = tf.cast(tf.reduce_min(size), tf.float32)
        side = tf.maximum(tf.cast(tf.round(shorter * crop), tf.int32), 1)
        return tf.concat([(size - side) // 2, [side, side]], axis=0)

    return window if crop else None


@functools.cache
def squares(image_size: int, crop: float) -> Any:
    """Return `decode` of the central square as one function of a graph, which is traced once for
    all that evaluates, predicts and serves."""
    return tf.function(
        lambda encoded: decode(encoded, image_size, centre(crop)),
        input_signature=[tf.TensorSpec([], tf.string)],
        autograph=False,
    )


def _square(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """Return a uint8 square. A picture of that size is not changed.

    One that is at least twice as large, because it is no JPEG or a huge one, is averaged as Pillow
    does it; else neighbours are blended. Resizing floats gives the same numbers as resizing bytes,
    in half the time: TensorFlow's kernel reads floats four at a time, and bytes one by one.
    """

    def resized() -> Any:
        floats = tf.cast(tf.ensure_shape(image, [None, None, 3]), tf.float32)
        large = tf.reduce_min(tf.shape(image)[:2]) >= 2 * image_size
        ways = [
            functools.partial(tf.image.resize, floats, (image_size, image_size), antialias=averaged)
            for averaged in (True, False)
        ]
        return tf.cast(tf.cond(large, *ways) + 0.5, tf.uint8)

    same = tf.reduce_all(tf.shape(image)[:2] == image_size)
    return tf.ensure_shape(tf.cond(same, lambda: image, resized), [image_size, image_size, 3])
