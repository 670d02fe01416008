"""TrivialAugment: one change for each picture, of random kind and strength, and nothing to tune
(Mueller and Hutter 2021, TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation).

The changes and their strengths are those of the paper's wide space. A shift is a share of the
side, as 32 pixels are of 224. What a turned or shifted picture does not cover is black.
"""

import math

import tensorflow as tf

LEVELS = 31
"""Strengths from nothing to the most."""
_MOST = 0.99
_TURN = math.radians(135)
_SHIFT = 32 / 224
_LUMA = (0.299, 0.587, 0.114)
_SOFT = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))
"""The smoothed picture of a change of sharpness, divided by 13 (Pillow's ImageFilter.SMOOTH)."""
NAMES = (
    *("identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)


def trivial(image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """`image`, a float32 square of 0 to 255, changed by three uniform numbers of [0, 1): which
    change, how strong, and in which direction."""
    number = tf.cast(draws[0] * len(NAMES), tf.int32)
    strength = tf.floor(draws[1] * LEVELS) / (LEVELS - 1)
    sign = tf.where(draws[2] < 0.5, -1.0, 1.0)
    ways = [lambda name=name: changed(image, name, strength, sign) for name in NAMES]
    return tf.ensure_shape(tf.switch_case(number, ways), image.shape)


def changed(image: tf.Tensor, name: str, strength: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """One change by name, with a strength from 0 to 1 and a sign."""
    side = tf.cast(tf.shape(image)[0], tf.float32)
    factor = 1.0 + sign * strength * _MOST
    slope, way = sign * strength * _MOST, sign * strength * side * _SHIFT
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        angle = sign * strength * _TURN
        one, none = tf.ones([]), tf.zeros([])
        matrix = {
            "rotate": (tf.cos(angle), -tf.sin(angle), none, tf.sin(angle), tf.cos(angle), none),
            "shear_x": (one, slope, none, none, one, none),
            "shear_y": (one, none, none, slope, one, none),
            "translate_x": (one, none, way, none, one, none),
            "translate_y": (one, none, none, none, one, way),
        }[name]
        return _moved(image, matrix, side)
    if name == "solarize":
        bound = 255.0 * (1.0 - strength)
        return tf.where((image >= bound) & (strength > 0), 255.0 - image, image)
    if name == "posterize":
        step = tf.pow(2.0, tf.round(strength * 6.0))  # from 8 to 2 bits
        return tf.floor(image / step) * step
    if name == "autocontrast":
        low, high = tf.reduce_min(image, (0, 1)), tf.reduce_max(image, (0, 1))
        return tf.where(high > low, (image - low) * 255.0 / tf.maximum(high - low, 1.0), image)
    if name == "equalize":
        return tf.stack([_equalized(one) for one in tf.unstack(image, 3, axis=-1)], axis=-1)
    grey = tf.tensordot(image, tf.constant(_LUMA), 1)[..., None]
    other = {
        "identity": lambda: image,
        "brightness": lambda: tf.zeros_like(image),
        "color": lambda: tf.broadcast_to(grey, tf.shape(image)),
        "contrast": lambda: tf.fill(tf.shape(image), tf.reduce_mean(grey)),
        "sharpness": lambda: _smooth(image),
    }[name]()
    return tf.clip_by_value(other + factor * (image - other), 0.0, 255.0)


def _moved(image: tf.Tensor, matrix: tuple[tf.Tensor, ...], side: tf.Tensor) -> tf.Tensor:
    """Each place of the answer from the place that `matrix` (two rows of three) gives, around the
    middle."""
    a, b, x, c, d, y = matrix
    middle = (side - 1.0) / 2.0
    across, down = middle - a * middle - b * middle + x, middle - c * middle - d * middle + y
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([a, b, across, c, d, down, 0.0, 0.0])[None],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def _smooth(image: tf.Tensor) -> tf.Tensor:
    """Smoothed, but for the edge, which stays."""
    kernel = tf.tile(tf.constant(_SOFT)[..., None, None] / 13.0, [1, 1, 3, 1])
    inner = tf.nn.depthwise_conv2d(image[None], kernel, [1, 1, 1, 1], "VALID")[0]
    shape = tf.shape(image)
    inside = tf.pad(tf.ones(shape[:2] - 2, tf.bool), [[1, 1], [1, 1]])[..., None]
    return tf.where(inside, tf.pad(inner, [[1, 1], [1, 1], [0, 0]]), image)


def _equalized(channel: tf.Tensor) -> tf.Tensor:
    """With about as many pixels of each value (Pillow's ImageOps.equalize)."""
    values = tf.cast(tf.clip_by_value(channel, 0.0, 255.0), tf.int32)
    counts = tf.math.bincount(tf.reshape(values, [-1]), minlength=256, maxlength=256)
    last = counts[tf.reduce_max(values)]
    step = (tf.reduce_sum(counts) - last) // 255
    table = (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1)
    mapped = tf.cast(tf.gather(tf.clip_by_value(table, 0, 255), values), tf.float32)
    return tf.where(step > 0, mapped, channel)
