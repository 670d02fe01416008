"""Augmentation while training: another view of a picture in each epoch.

The random numbers depend on the run's seed, the epoch, the worker and the place in the epoch's
order alone, so a restarted run sees what the unbroken one would have seen. Each example has one
vector of DRAWS uniform numbers; its parts are named below.
"""

import math

import tensorflow as tf

from trainer.config import Config
from trainer.input import changes

DRAWS = 15
"""Uniform numbers in [0, 1) for an example, used or not: so an option does not change the numbers
of the others."""
_AREA, _RATIO, _TOP, _LEFT, _FLIP_X, _FLIP_Y, _TURN, _BRIGHT, _CONTRAST, _SATURATION = range(10)
_HUE, _ERASE, _ERASE_TOP, _ERASE_LEFT, _ERASE_RATIO = range(10, 15)
STRENGTH = 9.0
"""Of RandAugment's changes, from 0 to changes.STRONGEST."""
_LUMA = (0.299, 0.587, 0.114)
"""Rec. 601, as JPEG has it."""
_GREY = 127.0
RATIO = 4 / 3
"""The ratio of a crop's sides is from 1 / this to this, in pixels of the picture."""


def whole(config: Config) -> bool:
    """Return whether all of each picture is seen."""
    return config.crop >= 1 and not config.cut


def drawn(config: Config) -> bool:
    """Return whether changes are drawn at random, by TrivialAugment or RandAugment."""
    return config.trivial_augment or config.rand_augment > 0


def repaints(config: Config) -> bool:
    """Return whether pixels change their values, beyond moving."""
    return drawn(config) or any(config.color_jitter) or config.erase > 0


def none(config: Config) -> bool:
    """Return whether pictures are seen as they are."""
    return whole(config) and config.flip == "none" and not (config.turn or repaints(config))


def window(size: tf.Tensor, draws: tf.Tensor, config: Config) -> tf.Tensor:
    """Return int32 [..., (top, left, height, width)]: the part in pixels that is seen of pictures
    of size [..., (height, width)].

    Area and the logarithm of the ratio are uniform (Szegedy et al., Going Deeper with Convolutions,
    section 6); a side that would be longer than the picture is cut to it.
    """
    size = tf.cast(size, tf.int32)
    if whole(config):
        return tf.concat([tf.zeros_like(size), size], -1)
    most = tf.cast(size, tf.float32)
    if config.cut:
        return _placed(tf.minimum(most, float(config.image_size)), most, draws)
    area = most[..., 0] * most[..., 1] * (config.crop + (1 - config.crop) * draws[..., _AREA])
    ratio = tf.exp((2 * draws[..., _RATIO] - 1) * math.log(RATIO))
    sides = tf.sqrt(tf.stack([area / ratio, area * ratio], -1))
    return _placed(tf.minimum(tf.maximum(tf.round(sides), 1.0), most), most, draws)


def _placed(sides: tf.Tensor, most: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Return a window of these sides at a random place in a picture with the sides `most`."""
    start = tf.floor(draws[..., _TOP : _LEFT + 1] * (most - sides + 1))
    return tf.cast(tf.concat([tf.minimum(start, most - sides), sides], -1), tf.int32)


def placing(draws: tf.Tensor, config: Config) -> tf.Tensor:
    """Return how n pictures lie, from draws [n, DRAWS]: int32 [n, (mirrored, upended, turns)], the
    first two 0 or 1, then so many turns by 90 degrees."""
    across, down = (config.flip in (way, "both") for way in ("horizontal", "vertical"))
    most = tf.constant([2 * across, 2 * down, 4 * config.turn], tf.float32)
    return tf.cast(draws[:, _FLIP_X : _TURN + 1] * most, tf.int32)


def changing(draws: tf.Tensor, config: Config) -> tf.Tensor:
    """Return the numbers that TrivialAugment or RandAugment takes of n pictures with these draws;
    without either, none: float32 [n, 0]."""
    if not drawn(config):
        return draws[:, :0]
    shape = [3] if config.trivial_augment else [config.rand_augment, 2]

    def of_one(own: tf.Tensor) -> tf.Tensor:
        seed = tf.bitcast(own[:2], tf.int32)  # so that no other option's numbers change
        return tf.random.stateless_uniform(shape, seed, alg="philox")

    return tf.map_fn(of_one, draws)


def changed(images: tf.Tensor, draws: tf.Tensor, numbers: tf.Tensor, config: Config) -> tf.Tensor:
    """Return uint8 pictures [n, side, side, 3], changed one by one, as a processor does it fastest.

    `numbers`: see `changing`.
    """

    def of_one(one: tuple[tf.Tensor, ...]) -> tf.Tensor:
        image, own, numbers = (tensor[None] for tensor in one)
        return uint8(change(tf.cast(image, tf.float32), own, numbers, config))[0]

    if not repaints(config):
        return images
    made = tf.map_fn(of_one, (images, draws, numbers), fn_output_signature=tf.uint8)
    return tf.ensure_shape(made, images.shape)


def change(images: tf.Tensor, draws: tf.Tensor, numbers: tf.Tensor, config: Config) -> tf.Tensor:
    """Change the colours of float32 squares [n, side, side, 3], 0 to 255, and erase parts.

    `numbers`: see `changing`.
    """
    if config.trivial_augment:
        images = changes.trivial(images, numbers)
    elif config.rand_augment:
        images = changes.several(images, numbers, STRENGTH)
    if any(config.color_jitter):
        images = _colours(images, draws, *config.color_jitter)
    if config.erase:
        images = _erase(images, draws, config.erase)
    return images


def uint8(images: tf.Tensor) -> tf.Tensor:
    return tf.cast(images + 0.5, tf.uint8)


def _colours(
    images: tf.Tensor,
    draws: tf.Tensor,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> tf.Tensor:
    """Return brightness, saturation, hue and contrast as one linear map of each pixel.

    Saturation moves towards the pixel's grey, hue turns the plane of the two chrominances, contrast
    moves towards the picture's mean grey. The result is clipped to 0 to 255.
    """

    def factor(which: int, amount: float) -> tf.Tensor:
        return (1.0 + amount * (2.0 * draws[:, which] - 1.0))[:, None, None]

    luma = tf.constant([_LUMA] * 3)  # Rows: each output is the grey value.
    grey = tf.transpose(luma)
    colours = factor(_SATURATION, saturation) * (tf.eye(3) - grey)
    if hue:
        colours = tf.matmul(colours, _turned(hue * (2.0 * draws[:, _HUE] - 1.0)))
    steep = factor(_CONTRAST, contrast)
    matrix = factor(_BRIGHT, brightness) * (grey + colours)
    pixels = tf.reshape(images, [tf.shape(images)[0], -1, 3])
    mean = tf.reduce_mean(tf.matmul(pixels, tf.matmul(matrix, grey)[..., :1]), (1, 2))
    changed = tf.matmul(pixels, steep * matrix) + (1.0 - steep) * mean[:, None, None]
    return tf.clip_by_value(tf.reshape(changed, tf.shape(images)), 0.0, 255.0)


def _turned(share: tf.Tensor) -> tf.Tensor:
    """Return matrices that turn the colours by shares [n] of the circle and keep the grey value:
    rotations in YIQ.
    """
    to_yiq = tf.constant(
        [[0.299, 0.596, 0.211], [0.587, -0.274, -0.523], [0.114, -0.322, 0.312]], tf.float32
    )
    angle = 2.0 * math.pi * share
    cosine, sine = tf.cos(angle), tf.sin(angle)
    full, none = tf.ones_like(share), tf.zeros_like(share)
    numbers = (full, none, none, none, cosine, sine, none, -sine, cosine)
    turn = tf.reshape(tf.stack(numbers, axis=1), (-1, 3, 3))
    return tf.matmul(tf.matmul(to_yiq, turn), tf.linalg.inv(to_yiq))


def _erase(images: tf.Tensor, draws: tf.Tensor, share: float) -> tf.Tensor:
    """Return a grey rectangle somewhere, in half of the pictures (Zhong et al., Random Erasing)."""
    side = tf.cast(tf.shape(images)[1], tf.float32)
    ratio = tf.exp((2.0 * draws[:, _ERASE_RATIO, None] - 1.0) * math.log(2.0))
    tall = tf.minimum(side * tf.sqrt(share * ratio), side)
    wide = tf.minimum(side * tf.sqrt(share / ratio), side)
    top = draws[:, _ERASE_TOP, None] * (side - tall)
    left = draws[:, _ERASE_LEFT, None] * (side - wide)
    place = tf.range(side)
    rows = (place >= tf.round(top)) & (place < tf.round(top + tall))
    columns = (place >= tf.round(left)) & (place < tf.round(left + wide))
    inside = rows[:, :, None] & columns[:, None, :] & (draws[:, _ERASE] < 0.5)[:, None, None]
    return tf.where(inside[..., None], _GREY, images)
