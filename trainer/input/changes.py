"""Changes of a picture that are drawn at random: TrivialAugment and RandAugment.

TrivialAugment makes one change of random kind and strength, and has nothing to tune (Mueller and
Hutter 2021, TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation). RandAugment makes
N changes of random kinds, one after the other, all with the strength M (Cubuk et al. 2019,
RandAugment: Practical automated data augmentation with a reduced search space). Both draw from the
same fourteen kinds; the most that each does is a space of its paper.

A shift is a share of the side. What a turned or shifted picture does not cover is black.
"""

import math
from dataclasses import dataclass

import tensorflow as tf

LEVELS = 31
"""Strengths from nothing to the most."""
STRONGEST = 10
"""RandAugment's M for the most of its space (section 3.1)."""
_LUMA = (0.299, 0.587, 0.114)
_SOFT = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))
"""The smoothed picture of a change of sharpness, divided by 13 (Pillow's ImageFilter.SMOOTH)."""
NAMES = (
    *("identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)


@dataclass(frozen=True)
class Space:
    """The most that each change does, at strength 1."""

    turn: float
    """Degrees."""
    shear: float
    """Pixels that a row or column moves, as a share of its distance from the middle."""
    shift: float
    """Share of the side."""
    factor: float
    """Colour, contrast, brightness and sharpness are multiplied by 1 +- this."""
    bits: int
    """Taken off a channel's eight by posterize."""


WIDE = Space(turn=135, shear=0.99, shift=32 / 224, factor=0.99, bits=6)
"""TrivialAugment's wide space; of 224 pixels, 32 are shifted."""
USUAL = Space(turn=30, shear=0.3, shift=150 / 331, factor=0.9, bits=4)
"""RandAugment's, which is AutoAugment's (Cubuk et al. 2018, table 6): of 331 pixels, 150 are
shifted."""


def trivial(image: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """`image`, a float32 square of 0 to 255, changed by three uniform numbers of [0, 1): which
    change, how strong, and in which direction."""
    number = tf.cast(draws[0] * len(NAMES), tf.int32)
    strength = tf.floor(draws[1] * LEVELS) / (LEVELS - 1)
    sign = tf.where(draws[2] < 0.5, -1.0, 1.0)
    return _numbered(image, number, strength, sign, WIDE)


def several(image: tf.Tensor, draws: tf.Tensor, strength: float) -> tf.Tensor:
    """RandAugment: `image` changed once for each row of `draws`, uniform numbers of [0, 1) [n, 2]:
    which change, and in which direction. `strength` is from 0 to STRONGEST."""
    for row in tf.unstack(draws):
        number = tf.cast(row[0] * len(NAMES), tf.int32)
        sign = tf.where(row[1] < 0.5, -1.0, 1.0)
        image = _numbered(image, number, tf.constant(strength / STRONGEST), sign, USUAL)
    return image


def _numbered(
    image: tf.Tensor, number: tf.Tensor, strength: tf.Tensor, sign: tf.Tensor, space: Space
) -> tf.Tensor:
    ways = [lambda name=name: changed(image, name, strength, sign, space) for name in NAMES]
    return tf.ensure_shape(tf.switch_case(number, ways), image.shape)


def changed(
    image: tf.Tensor, name: str, strength: tf.Tensor, sign: tf.Tensor, space: Space
) -> tf.Tensor:
    """One change by name, with a strength from 0 to 1 and a sign."""
    side = tf.cast(tf.shape(image)[0], tf.float32)
    factor = 1.0 + sign * strength * space.factor
    slope, way = sign * strength * space.shear, sign * strength * side * space.shift
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        angle = sign * strength * math.radians(space.turn)
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
        step = tf.pow(2.0, tf.round(strength * space.bits))
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
