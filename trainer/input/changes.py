"""Changes of a picture that are drawn at random: TrivialAugment and RandAugment.

TrivialAugment makes one change of random kind and strength, and has nothing to tune (Mueller and
Hutter 2021, TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation). RandAugment makes
N changes of random kinds, one after the other, all with the strength M (Cubuk et al. 2019,
RandAugment: Practical automated data augmentation with a reduced search space). Both draw from the
same fourteen kinds; the most that each does is a space of its paper.

A shift is a share of the side. What a turned or shifted picture does not cover is black. All
functions take several pictures at once: float32 [n, side, side, 3] of 0 to 255.
"""

import math
from dataclasses import dataclass

import keras
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


def trivial(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Return `images`, each changed by three uniform numbers of [0, 1), draws [n, 3]: which change,
    how strong, and in which direction.
    """
    numbers = tf.cast(draws[:, 0] * len(NAMES), tf.int32)
    strength = tf.floor(draws[:, 1] * LEVELS) / (LEVELS - 1)
    return _numbered(images, numbers, strength, _signs(draws[:, 2]), WIDE)


def several(images: tf.Tensor, draws: tf.Tensor, strength: float) -> tf.Tensor:
    """RandAugment: each of `images` changed once for each row of its `draws`, uniform numbers of
    [0, 1) [n, changes, 2]: which change, and in which direction. `strength` is from 0 to
    STRONGEST."""
    for row in tf.unstack(draws, axis=1):
        numbers, signs = tf.cast(row[:, 0] * len(NAMES), tf.int32), _signs(row[:, 1])
        same = tf.fill(tf.shape(signs), strength / STRONGEST)
        images = _numbered(images, numbers, same, signs, USUAL)
    return images


def _signs(draws: tf.Tensor) -> tf.Tensor:
    return tf.where(draws < 0.5, -1.0, 1.0)


def _numbered(
    images: tf.Tensor, numbers: tf.Tensor, strength: tf.Tensor, signs: tf.Tensor, space: Space
) -> tf.Tensor:
    """Return each picture changed by the change of its number: for a single one that change alone
    is made, for several of them each change is, as a device does it fastest.
    """
    if images.shape[0] == 1:
        ways = [lambda name=name: changed(images, name, strength, signs, space) for name in NAMES]
        return tf.ensure_shape(tf.switch_case(numbers[0], ways), images.shape)
    result = images
    for number, name in enumerate(NAMES):
        mine = (numbers == number)[:, None, None, None]
        result = tf.where(mine, changed(images, name, strength, signs, space), result)
    return result


def changed(
    images: tf.Tensor, name: str, strength: tf.Tensor, signs: tf.Tensor, space: Space
) -> tf.Tensor:
    """Return one change by name, with strengths [n] from 0 to 1 and signs [n]."""
    side = tf.cast(tf.shape(images)[1], tf.float32)
    slope, way = signs * strength * space.shear, signs * strength * side * space.shift
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        angle = signs * strength * math.radians(space.turn)
        full, none = tf.ones_like(signs), tf.zeros_like(signs)
        matrix = {
            "rotate": (tf.cos(angle), -tf.sin(angle), none, tf.sin(angle), tf.cos(angle), none),
            "shear_x": (full, slope, none, none, full, none),
            "shear_y": (full, none, none, slope, full, none),
            "translate_x": (full, none, way, none, full, none),
            "translate_y": (full, none, none, none, full, way),
        }[name]
        return _moved(images, matrix, side)
    strength = strength[:, None, None, None]
    if name == "solarize":
        bound = 255.0 * (1.0 - strength)
        return tf.where((images >= bound) & (strength > 0), 255.0 - images, images)
    if name == "posterize":
        step = tf.pow(2.0, tf.round(strength * space.bits))
        return tf.floor(images / step) * step
    if name == "autocontrast":
        low, high = (end(images, (1, 2), keepdims=True) for end in (tf.reduce_min, tf.reduce_max))
        return tf.where(high > low, (images - low) * 255.0 / tf.maximum(high - low, 1.0), images)
    if name == "equalize":
        return _equalized(images)
    grey = tf.tensordot(images, tf.constant(_LUMA), 1)[..., None]
    other = {
        "identity": lambda: images,
        "brightness": lambda: tf.zeros_like(images),
        "color": lambda: tf.broadcast_to(grey, tf.shape(images)),
        "contrast": lambda: tf.reduce_mean(grey, (1, 2), keepdims=True),
        "sharpness": lambda: _smooth(images),
    }[name]()
    factor = 1.0 + signs[:, None, None, None] * strength * space.factor
    return tf.clip_by_value(other + factor * (images - other), 0.0, 255.0)


def _moved(images: tf.Tensor, matrix: tuple[tf.Tensor, ...], side: tf.Tensor) -> tf.Tensor:
    """Return each place of the answer from the place that `matrix` (two rows of three, each number
    [n]) gives, around the middle.
    """
    a, b, x, c, d, y = matrix
    middle = (side - 1.0) / 2.0
    across, down = middle - a * middle - b * middle + x, middle - c * middle - d * middle + y
    none = tf.zeros_like(a)
    transform = tf.stack([a, b, across, c, d, down, none, none], axis=1)
    return keras.ops.image.affine_transform(images, transform, "nearest")


def _smooth(images: tf.Tensor) -> tf.Tensor:
    """Smoothed, but for the edge, which stays."""
    kernel = tf.tile(tf.constant(_SOFT)[..., None, None] / 13.0, [1, 1, 3, 1])
    inner = tf.nn.depthwise_conv2d(images, kernel, [1, 1, 1, 1], "VALID")
    inside = tf.pad(tf.ones(tf.shape(images)[1:3] - 2, tf.bool), [[1, 1], [1, 1]])[..., None]
    return tf.where(inside, tf.pad(inner, [[0, 0], [1, 1], [1, 1], [0, 0]]), images)


def _equalized(images: tf.Tensor) -> tf.Tensor:
    """With about as many pixels of each value in each channel (Pillow's ImageOps.equalize)."""
    shape = tf.shape(images)
    channels = tf.reshape(tf.transpose(images, [0, 3, 1, 2]), [-1, shape[1] * shape[2]])
    values = tf.cast(tf.clip_by_value(channels, 0.0, 255.0), tf.int32)
    counts = tf.math.bincount(values, minlength=256, maxlength=256, axis=-1)
    last = tf.gather(counts, tf.reduce_max(values, 1), batch_dims=1)[:, None]
    step = (shape[1] * shape[2] - last) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    table = tf.clip_by_value((below + step // 2) // tf.maximum(step, 1), 0, 255)
    mapped = tf.cast(tf.gather(table, values, batch_dims=1), tf.float32)
    equalized = tf.reshape(tf.where(step > 0, mapped, channels), [shape[0], 3, shape[1], shape[2]])
    return tf.ensure_shape(tf.transpose(equalized, [0, 2, 3, 1]), images.shape)
