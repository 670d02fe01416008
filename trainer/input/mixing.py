"""Mixed pictures: mixup and cutmix, for a batch at once.

As elsewhere in the input, the random numbers depend on the run's seed, the worker and the place in
the order alone, so a restarted run sees the same mixtures.
"""

from collections.abc import Callable

import tensorflow as tf

from trainer.config import Config

_OFFSET = 2**32
"""Added to a worker's number, so that the key is none that draws the examples of a worker."""


def none(config: Config) -> bool:
    """Return whether no pictures are mixed."""
    return not (config.mixup or config.cutmix)


def drawn(batches: tf.data.Dataset, config: Config, worker: int, first: int) -> tf.data.Dataset:
    """Return (batch, numbers) of each batch: what `mixed` takes.

    Batch number `first` is the first one.
    """
    alphas = [alpha for alpha in (config.mixup, config.cutmix) if alpha]

    def numbers(number: tf.Tensor) -> tf.Tensor:
        key = tf.constant([config.seed, _OFFSET + worker], tf.int64)
        seeds = tf.random.split(tf.random.fold_in(key, number, alg="philox"), 4, alg="philox")
        way = tf.random.stateless_uniform([], seeds[3], 0, len(alphas), tf.int32, alg="philox")
        share = tf.stack([_beta(alpha, seeds) for alpha in alphas])[way]
        centre = tf.random.stateless_uniform([2], seeds[2], alg="philox")
        return tf.concat([[tf.cast(way, tf.float32), share], centre], 0)

    return batches.enumerate(first).map(
        lambda number, batch: (batch, numbers(number)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def mixed(
    images: tf.Tensor,
    labels: tf.Tensor,
    numbers: tf.Tensor,
    config: Config,
    classes: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (uint8 images, float32 [n, classes] shares of the classes) from images and labels, as
    `numbers` says.

    Each picture is mixed with the one before it, in the random order of the epoch; all pairs of a
    batch have the same share.
    """
    ways: list[Callable[[], tuple[tf.Tensor, tf.Tensor]]] = []
    if config.mixup:
        ways.append(lambda: mixup(images, numbers[1]))
    if config.cutmix:
        ways.append(lambda: cutmix(images, numbers[1], numbers[2:]))
    seen, share = tf.switch_case(tf.cast(numbers[0], tf.int32), ways)
    own = labels if labels.shape.rank == 2 else tf.one_hot(labels, classes)
    shares = share * own + (1.0 - share) * tf.roll(own, 1, axis=0)
    return tf.ensure_shape(seen, images.shape), shares


def mixup(images: tf.Tensor, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return `share` of each picture and the rest of the one before it; returns `share`,
    too (Zhang et al., mixup: Beyond Empirical Risk Minimization).
    """
    own = tf.cast(images, tf.float32)
    both = share * own + (1.0 - share) * tf.roll(own, 1, axis=0)
    return tf.cast(both + 0.5, tf.uint8), share


def cutmix(images: tf.Tensor, share: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each picture with a rectangle of the one before it, whose centre is anywhere,
    in shares of the sides; returns the share of a picture that is its own (Yun et al.,
    CutMix).

    The rectangle has 1 - `share` of the area, and less where it is cut off at the edge.
    """
    size = tf.cast(tf.shape(images)[1:3], tf.float32)
    sides = tf.floor(size * tf.sqrt(1.0 - share))
    centre = tf.floor(size * centre)
    start = tf.maximum(centre - tf.floor(sides / 2), 0.0)
    end = tf.minimum(centre - tf.floor(sides / 2) + sides, size)
    rows, columns = tf.range(size[0]), tf.range(size[1])
    tall = (rows >= start[0]) & (rows < end[0])
    wide = (columns >= start[1]) & (columns < end[1])
    inside = tall[:, None] & wide[None, :]
    seen = tf.where(inside[None, :, :, None], tf.roll(images, 1, axis=0), images)
    return seen, 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32))


def _beta(alpha: float, seeds: tf.Tensor) -> tf.Tensor:
    """Return a number from Beta(alpha, alpha), by two from Gamma(alpha)."""
    first = tf.random.stateless_gamma([], seeds[0], alpha)
    other = tf.random.stateless_gamma([], seeds[1], alpha)
    return first / (first + other)
