"""Mixed pictures: mixup and cutmix, for a batch at once.

As elsewhere in the input, the random numbers depend on the run's seed, the worker and the place in
the order alone, so a restarted run sees the same mixtures.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from trainer.config import Config

_OFFSET = 2**32
"""Added to a worker's number, so that the key is none that draws the examples of a worker."""


@dataclass(frozen=True)
class Mixing:
    """How the pictures of a batch are mixed; by default not at all."""

    mixup: float = 0.0
    """The share of a picture is drawn from Beta(this, this); 0: no mixup."""
    cutmix: float = 0.0
    """The share of a picture's area is drawn from Beta(this, this); 0: no cutmix."""

    @property
    def none(self) -> bool:
        return not (self.mixup or self.cutmix)


NONE = Mixing()


def of(config: Config) -> Mixing:
    """The mixing that the options ask for."""
    return Mixing(mixup=config.mixup, cutmix=config.cutmix)


def mixed(
    batches: tf.data.Dataset,
    how: Mixing,
    classes: int,
    seed: int,
    worker: int,
    first: int,
    apart: int = 1,
) -> tf.data.Dataset:
    """Batches (uint8 images, float32 [n, classes] shares of the classes) from (images, labels).

    Each picture is mixed with the one `apart` places before it, in the random order of the epoch,
    so that copies of a picture are not mixed with each other; all pairs of a batch have the same
    share. Batch number `first` is the first one.
    """
    ways: list[Callable[..., tuple[tf.Tensor, tf.Tensor]]] = []
    if how.mixup:
        ways.append(lambda images, seeds: mixup(images, _beta(how.mixup, seeds), apart))
    if how.cutmix:
        ways.append(lambda images, seeds: cutmix(images, _beta(how.cutmix, seeds), seeds[2], apart))

    def mix(number: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        images, labels = batch
        key = tf.constant([seed, _OFFSET + worker], tf.int64)
        seeds = tf.random.split(tf.random.fold_in(key, number, alg="philox"), 4, alg="philox")
        way = tf.random.stateless_uniform([], seeds[3], 0, len(ways), tf.int32, alg="philox")
        seen, share = tf.switch_case(way, [lambda one=one: one(images, seeds) for one in ways])
        own = labels if labels.shape.rank == 2 else tf.one_hot(labels, classes)
        shares = share * own + (1.0 - share) * tf.roll(own, apart, axis=0)
        return tf.ensure_shape(seen, images.shape), shares

    return batches.enumerate(first).map(
        mix,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def mixup(images: tf.Tensor, share: tf.Tensor, apart: int = 1) -> tuple[tf.Tensor, tf.Tensor]:
    """`share` of each picture and the rest of the one `apart` before it; returns `share`, too
    (Zhang et al., mixup: Beyond Empirical Risk Minimization)."""
    own = tf.cast(images, tf.float32)
    both = share * own + (1.0 - share) * tf.roll(own, apart, axis=0)
    return tf.cast(both + 0.5, tf.uint8), share


def cutmix(
    images: tf.Tensor, share: tf.Tensor, seed: tf.Tensor, apart: int = 1
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each picture with a rectangle of the one `apart` before it, whose centre is anywhere; returns
    the share of a picture that is its own (Yun et al., CutMix).

    The rectangle has 1 - `share` of the area, and less where it is cut off at the edge.
    """
    size = tf.cast(tf.shape(images)[1:3], tf.float32)
    sides = tf.floor(size * tf.sqrt(1.0 - share))
    centre = tf.floor(size * tf.random.stateless_uniform([2], seed, alg="philox"))
    start = tf.maximum(centre - tf.floor(sides / 2), 0.0)
    end = tf.minimum(centre - tf.floor(sides / 2) + sides, size)
    rows, columns = tf.range(size[0]), tf.range(size[1])
    tall = (rows >= start[0]) & (rows < end[0])
    wide = (columns >= start[1]) & (columns < end[1])
    inside = tall[:, None] & wide[None, :]
    seen = tf.where(inside[None, :, :, None], tf.roll(images, apart, axis=0), images)
    return seen, 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32))


def _beta(alpha: float, seeds: tf.Tensor) -> tf.Tensor:
    """A number from Beta(alpha, alpha), by two from Gamma(alpha)."""
    one = tf.random.stateless_gamma([], seeds[0], alpha)
    other = tf.random.stateless_gamma([], seeds[1], alpha)
    return one / (one + other)
