"""Augmentation while training: another view of a picture in each epoch.

The random numbers depend on the run's seed, the epoch, the worker and the place in the epoch's
order alone, so a restarted run sees what the unbroken one would have seen. Each example has one
vector of DRAWS uniform numbers; its parts are named below.
"""

import math
from dataclasses import dataclass

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
View = dict[str, tf.Tensor]
"""What happens to one picture, or to each of several (then with one more axis in front).
seen: int32 [4], top, left, height and width; mirrored, upended: bool; turns: int32, of 90 degrees;
draws: float32 [DRAWS], for the rest; changes: the numbers of `changing`."""


@dataclass(frozen=True)
class Augmentation:
    """What may happen to a picture; by default nothing."""

    crop: float = 1.0
    """Least share of the area that is seen; 1: always the whole picture."""
    cut: int = 0
    """Pixels of the side of a square that is seen of the stored picture; of a smaller picture, as
    much as there is. With a cut, `crop` does not count. 0: no cut."""
    flip: str = "none"
    """none, horizontal, vertical or both; each with probability 1/2."""
    turn: bool = False
    """By 0, 90, 180 or 270 degrees."""
    brightness: float = 0.0
    """Random factor in 1 +- this; the same for contrast and saturation."""
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    """Shifted by up to this share of the colour circle, at most 0.5, either way."""
    erase: float = 0.0
    """Share of the area that is made grey in half of the pictures."""
    trivial: bool = False
    """TrivialAugment: one change at random."""
    changes: int = 0
    """RandAugment: changes of a picture; 0: none."""
    strength: float = 0.0
    """RandAugment: from 0 to changes.STRONGEST."""

    @property
    def none(self) -> bool:
        return self == Augmentation()

    @property
    def whole(self) -> bool:
        """Is all of each picture seen?"""
        return self.crop >= 1 and not self.cut

    @property
    def repaints(self) -> bool:
        """Do pixels change their values, beyond moving?"""
        return self.colour or self.drawn or self.erase > 0

    @property
    def drawn(self) -> bool:
        """Are changes drawn at random, by TrivialAugment or RandAugment?"""
        return self.trivial or self.changes > 0

    @property
    def colour(self) -> bool:
        return any((self.brightness, self.contrast, self.saturation, self.hue))


NONE = Augmentation()


def of(config: Config) -> Augmentation:
    """Return the augmentation that the options ask for."""
    brightness, contrast, saturation, hue = config.color_jitter or (0.0, 0.0, 0.0, 0.0)
    return Augmentation(
        crop=config.crop,
        cut=config.image_size if config.cut else 0,
        flip=config.flip,
        turn=config.turn,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        erase=config.erase,
        trivial=config.trivial_augment,
        changes=config.rand_augment,
        strength=STRENGTH if config.rand_augment else 0.0,
    )


def window(size: tf.Tensor, draws: tf.Tensor, how: Augmentation) -> tf.Tensor:
    """Return int32 [..., (top, left, height, width)]: the part in pixels that is seen of pictures
    of size [..., (height, width)].

    Area and the logarithm of the ratio are uniform (Szegedy et al., Going Deeper with Convolutions,
    section 6); a side that would be longer than the picture is cut to it.
    """
    size = tf.cast(size, tf.int32)
    if how.whole:
        return tf.concat([tf.zeros_like(size), size], -1)
    most = tf.cast(size, tf.float32)
    if how.cut:
        return _placed(tf.minimum(most, float(how.cut)), most, draws)
    area = most[..., 0] * most[..., 1] * (how.crop + (1 - how.crop) * draws[..., _AREA])
    ratio = tf.exp((2 * draws[..., _RATIO] - 1) * math.log(RATIO))
    sides = tf.sqrt(tf.stack([area / ratio, area * ratio], -1))
    return _placed(tf.minimum(tf.maximum(tf.round(sides), 1.0), most), most, draws)


def _placed(sides: tf.Tensor, most: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Return a window of these sides at a random place in a picture with the sides `most`."""
    start = tf.floor(draws[..., _TOP : _LEFT + 1] * (most - sides + 1))
    return tf.cast(tf.concat([tf.minimum(start, most - sides), sides], -1), tf.int32)


def views(draws: tf.Tensor, sizes: tf.Tensor | None, how: Augmentation) -> View:
    """Return what differs among n pictures, from draws float32 [n, DRAWS], and from sizes [n, 2] if
    known.

    It has only the keys that are used, because each costs time for each picture.
    """
    views = {}
    if sizes is not None:
        views["seen"] = window(sizes, draws, how)
    if how.flip in ("horizontal", "both"):
        views["mirrored"] = draws[:, _FLIP_X] >= 0.5
    if how.flip in ("vertical", "both"):
        views["upended"] = draws[:, _FLIP_Y] >= 0.5
    if how.turn:
        views["turns"] = tf.cast(draws[:, _TURN] * 4, tf.int32)
    if how.repaints or (sizes is None and not how.whole):
        views["draws"] = draws
    return views


def placed(image: tf.Tensor, view: View) -> tf.Tensor:
    """Flip and turn the decoded picture, which has fewer bytes than the resized floats."""
    for name, axis in (("mirrored", 1), ("upended", 0)):
        if name in view:
            image = _reversed(image, axis, view[name])
    return tf.image.rot90(image, view["turns"]) if "turns" in view else image


def _reversed(image: tf.Tensor, axis: int, really: tf.Tensor) -> tf.Tensor:
    return tf.cond(really, lambda: tf.reverse(image, [axis]), lambda: image)


def changing(draws: tf.Tensor, how: Augmentation) -> tf.Tensor:
    """Return the numbers that TrivialAugment or RandAugment takes of a picture with these draws."""
    seed = tf.bitcast(draws[:2], tf.int32)  # so that no other option's numbers change
    shape = [3] if how.trivial else [how.changes, 2]
    return tf.random.stateless_uniform(shape, seed, alg="philox")


def change(images: tf.Tensor, view: View, how: Augmentation) -> tf.Tensor:
    """Change the colours of float32 squares [n, side, side, 3], 0 to 255, and erase parts."""
    if how.trivial:
        images = changes.trivial(images, view["changes"])
    elif how.changes:
        images = changes.several(images, view["changes"], how.strength)
    if how.colour:
        images = _colours(images, view["draws"], how)
    if how.erase:
        images = _erase(images, view["draws"], how.erase)
    return images


def _colours(images: tf.Tensor, draws: tf.Tensor, how: Augmentation) -> tf.Tensor:
    """Return brightness, saturation, hue and contrast as one linear map of each pixel.

    Saturation moves towards the pixel's grey, hue turns the plane of the two chrominances, contrast
    moves towards the picture's mean grey. The result is clipped to 0 to 255.
    """

    def factor(which: int, amount: float) -> tf.Tensor:
        return (1.0 + amount * (2.0 * draws[:, which] - 1.0))[:, None, None]

    luma = tf.constant([_LUMA] * 3)  # Rows: each output is the grey value.
    grey = tf.transpose(luma)
    colours = factor(_SATURATION, how.saturation) * (tf.eye(3) - grey)
    if how.hue:
        colours = tf.matmul(colours, _turned(how.hue * (2.0 * draws[:, _HUE] - 1.0)))
    contrast = factor(_CONTRAST, how.contrast)
    matrix = factor(_BRIGHT, how.brightness) * (grey + colours)
    pixels = tf.reshape(images, [tf.shape(images)[0], -1, 3])
    mean = tf.reduce_mean(tf.matmul(pixels, tf.matmul(matrix, grey)[..., :1]), (1, 2))
    changed = tf.matmul(pixels, contrast * matrix) + (1.0 - contrast) * mean[:, None, None]
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
