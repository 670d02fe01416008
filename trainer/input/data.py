"""Records to batches: each example once an epoch, in an order that a restart resumes.

Each worker reads its own contiguous part of all records, whatever the number of files and workers.
The order within an epoch is a function of the run's seed, the epoch and the worker alone, and the
epochs follow each other without a gap. So the number of consumed examples is the whole position of
the input, and resuming skips records before they are decoded. Augmentation draws its numbers by the
same position, so a restarted run sees the same pictures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.config import UsageError
from trainer.input import (
    augment,
    balance,
    cache,
    decoding,
    device,
    mixing,
    parts,
    reading,
    targets,
)
from trainer.input.augment import NONE, Augmentation
from trainer.input.parts import Piece, Shard, part

WINDOW = 4096
"""Most examples that are shuffled together."""
WINDOW_BYTES = 64 << 20
"""Most bytes of these examples."""
GROUP, GROUP_BYTES = 256, 8 << 20
"""Most examples that are parsed together, and most bytes of them."""
CYCLE = 8
"""Most files that are read in turns."""


@dataclass(frozen=True)
class _Stored:
    """What is known of all examples of some files before one is read."""

    side: int
    """Pixels of the squares that are stored decoded; 0: encoded pictures."""
    least: int
    most: int
    """The least and the most pixels that the shorter side of a JPEG has; 0: not known."""
    longest: int
    """The most pixels that any side has."""
    target: str
    """What is to be said of each: see trainer.input.targets."""

    @property
    def smallest(self) -> int:
        """No picture has a shorter side than this; 0: not known."""
        return self.side or self.least

    def exact(self, image_size: int, how: Augmentation) -> bool:
        """Is what is seen of each picture a square of `image_size` pixels before any resize?"""
        if how.whole:
            square = self.side or (self.least if self.least == self.longest else 0)
            return square == image_size
        return how.cut == image_size <= self.smallest

    def sized(self, image_size: int, how: Augmentation) -> bool:
        """Is the size of each known, and of use: for a crop, or to decode at a half?"""
        return self.smallest > 0 and (not how.whole or self.most >= 2 * image_size)

    def halves(self, image_size: int, how: Augmentation) -> bool:
        """May a JPEG be decoded at a half or less, as large as the crop allows?"""
        return min(self.most, how.cut or self.most) >= 2 * image_size

    def check_kept(self, image_size: int, how: Augmentation, keep: str) -> None:
        """Refuse to keep decoded what is no JPEG, of unknown size, or decoded at a half for some
        crops. Raises UsageError."""
        if not self.least or self.side:
            raise UsageError(
                f"--cache {keep}: takes records of JPEGs that trainer.records made, with the "
                "dataset.json beside them"
            )
        if self.halves(image_size, how):
            raise UsageError(
                f"--cache {keep}: pictures with a shorter side of {self.most} are decoded at a "
                f"half for --image-size {image_size}: make smaller records (trainer.records "
                "--resize)"
            )


def training(
    shards: tuple[Shard, ...],
    context: tf.distribute.InputContext,
    *,
    batch_size: int,
    image_size: int,
    classes: int,
    seed: int,
    consumed: int,
    augmentation: Augmentation = NONE,
    mix: mixing.Mixing = mixing.NONE,
    repeats: balance.Repeats | None = None,
    copies: int = 1,
    keep: str = cache.NONE,
    whole: bool = False,
) -> tf.data.Dataset:
    """Return endless batches of one worker: (uint8 images, targets), as targets.read has them, or
    with `mix` (uint8 images, float32 [n, classes] shares of the classes).

    `batch_size` is a replica's, a multiple of `copies`; `consumed` counts the examples that all
    workers together have already trained on. Each example comes `copies` times in a row, augmented
    anew each time. `keep` is --cache. With `whole`, the batches are what device.augmented makes
    these of. Raises UsageError where this worker has no records, or where
    they cannot be kept.
    """
    worker, workers = context.input_pipeline_id, context.num_input_pipelines
    if not mix.none and batch_size < 2 * copies:
        raise UsageError("--mixup and --cutmix: each replica needs a batch of 2 pictures or more")
    pieces = part(shards, worker, workers)
    own = repeats.size(pieces) if repeats else parts.size(pieces)
    if not own:
        total = sum(shard.records for shard in shards)
        raise UsageError(f"{total} training records are too few for every worker to have one")
    first, offset = parts.position(consumed // copies, workers, own)
    stored = _Stored(shards[0].side, *_jpeg(shards), shards[0].target)
    size, together = window(shards), group(shards)
    source = _source(pieces, classes, stored, image_size, augmentation, keep, whole)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        key = tf.constant([seed, worker], tf.int64)
        key = tf.random.fold_in(key, number, alg="philox")
        examples = _shuffled(source, key, size, together, augmentation, repeats, copies)
        # Encoded records are skipped, so no example before the position is decoded.
        return examples.skip(tf.where(number == first, tf.constant(offset, tf.int64), 0))

    examples = tf.data.Dataset.range(first, tf.int64.max).flat_map(epoch)
    if whole:
        side = device.canvas(shards, image_size)
        batches = _canvases(examples, batch_size, side, stored, augmentation, source, copies)
    else:
        batches = _batched(examples, batch_size, stored, image_size, augmentation, source, copies)
    if not mix.none:
        made = consumed // workers // batch_size
        drawn = mixing.drawn(batches, mix, seed, worker, made)
        batches = drawn.map(
            _with_numbers if whole else _mixed(mix, classes, copies),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
    return batches.prefetch(tf.data.AUTOTUNE)


def _with_numbers(batch: Any, numbers: tf.Tensor) -> tuple[Any, tf.Tensor]:
    return {**batch[0], device.MIXING: numbers}, batch[1]


def _mixed(mix: mixing.Mixing, classes: int, copies: int) -> Callable[..., Any]:
    return lambda batch, drawn: mixing.mixed(batch[0], batch[1], drawn, mix, classes, copies)


def _canvases(
    examples: tf.data.Dataset,
    batch_size: int,
    side: int,
    stored: _Stored,
    how: Augmentation,
    source: reading.Files | cache.Decoded,
    copies: int,
) -> tf.data.Dataset:
    """Return batches of whole pictures at the top left of squares, for device.augmented."""

    def example(content: tf.Tensor, label: tf.Tensor, view: augment.View) -> tuple[Any, ...]:
        view = {**view, device.WHOLE: _opened(content, stored, source)[:side]}
        if how.trivial or how.changes:
            each = tf.unstack(tf.reshape(view["draws"], [copies, augment.DRAWS]))
            drawn = tf.stack([augment.changing(draws, how) for draws in each])
            view["changes"] = drawn if copies > 1 else drawn[0]
        return view, label

    def several(views: augment.View, labels: tf.Tensor) -> tuple[Any, ...]:
        images = views.pop(device.WHOLE)
        flat = {name: _side_by_side(values)[0] for name, values in views.items()}
        return {**flat, device.WHOLE: images}, tf.repeat(labels, copies, axis=0)

    made = examples.map(example, num_parallel_calls=reading.under_way(), deterministic=True)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, made.element_spec)
    shapes[0][device.WHOLE] = [side, side, 3]
    batches = made.padded_batch(batch_size // copies, shapes, drop_remainder=True)
    return batches.map(several) if copies > 1 else batches


def _source(
    pieces: tuple[Piece, ...],
    classes: int,
    stored: _Stored,
    image_size: int,
    how: Augmentation,
    keep: str,
    whole: bool,
) -> reading.Files | cache.Decoded:
    """Return where the examples come from.

    Raises UsageError if they cannot be kept, as `keep` asks.
    """
    if keep == cache.NONE:
        sized = whole or stored.sized(image_size, how)
        return reading.Files(pieces, classes, stored.side, stored.target, sized)
    stored.check_kept(image_size, how, keep)
    return cache.decoded(pieces, classes, stored.target, keep)


def _batched(
    examples: tf.data.Dataset,
    batch_size: int,
    stored: _Stored,
    image_size: int,
    how: Augmentation,
    source: reading.Files | cache.Decoded,
    copies: int,
) -> tf.data.Dataset:
    """Return batches of (uint8 images, labels) of what `_shuffled` gives."""
    if stored.side == image_size and how.none and copies == 1:  # Nothing to do: a batch at once.
        return examples.batch(batch_size, drop_remainder=True).map(
            lambda contents, labels, *_: (decoding.pixels(contents, image_size), labels),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
    batches = examples.map(
        _example(stored, image_size, how, source, copies),
        num_parallel_calls=reading.under_way(),
        deterministic=True,
    ).batch(batch_size // copies, drop_remainder=True)
    return batches if copies == 1 else batches.map(_side_by_side)


def _example(
    stored: _Stored,
    image_size: int,
    how: Augmentation,
    source: reading.Files | cache.Decoded,
    copies: int,
) -> Callable[..., Any]:
    """Return the function that makes (uint8 image, label) of (content, label, augment.View); of
    several copies (uint8 images, labels), from a JPEG that is decoded once.
    """
    least, most = stored.least, stored.most
    once = copies > 1 and least > 0 and not stored.halves(image_size, how)
    opens = isinstance(source, cache.Decoded) or stored.side > 0 or once
    in_bytes = stored.exact(image_size, how) and not how.repaints

    def made(common: tf.Tensor, view: augment.View) -> tf.Tensor:
        if opens:
            image = decoding.part(common, view["seen"]) if "seen" in view else common
        elif least:
            image = decoding.jpeg_view(common, view.get("seen"), image_size, how, most)
        else:
            image = decoding.view(common, view.get("draws"), image_size, how)
        image = augment.placed(image, view)
        if in_bytes:
            return tf.ensure_shape(image, [image_size, image_size, 3])
        return decoding.uint8(changed(decoding.resized(image, image_size), view))

    def changed(image: tf.Tensor, view: augment.View) -> tf.Tensor:
        if how.trivial or how.changes:
            view = {**view, "changes": augment.changing(view["draws"], how)}
        several = {name: tensor[None] for name, tensor in view.items()}
        return augment.change(image[None], several, how)[0] if how.repaints else image

    def example(content: tf.Tensor, label: tf.Tensor, view: augment.View) -> tuple[tf.Tensor, ...]:
        common = _opened(content, stored, source) if opens else content
        if copies == 1:
            return made(common, view), label
        views = [
            {name: tensor[number] for name, tensor in view.items()} for number in range(copies)
        ]
        return tf.stack([made(common, view) for view in views]), tf.stack([label] * copies)

    return example


def _opened(
    content: tf.Tensor, stored: _Stored, source: reading.Files | cache.Decoded
) -> tf.Tensor:
    """Return all of a picture: what its copies have in common. There may be more rows below it."""
    if isinstance(source, cache.Decoded):
        return source.picture(content)
    if stored.side:
        return decoding.pixels(content[None], stored.side)[0]
    return tf.io.decode_jpeg(content, channels=3)


def _side_by_side(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return [n, copies, ...] as [n * copies, ...]."""
    shapes = (tensor.shape.as_list() for tensor in batch)
    return tuple(
        tf.reshape(tensor, [n * copies, *rest])
        for tensor, (n, copies, *rest) in zip(batch, shapes, strict=True)
    )


def evaluation_batches(
    shards: tuple[Shard, ...], context: tf.distribute.InputContext, batch_size: int
) -> int:
    """Return batches of one replica in a pass over all records: the same number on each replica,
    because collective operations need all of them.
    """
    total = sum(shard.records for shard in shards)
    most = -(-total // context.num_input_pipelines)
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    return -(-most // (batch_size * replicas))


def evaluation(
    shards: tuple[Shard, ...],
    context: tf.distribute.InputContext,
    *,
    batch_size: int,
    image_size: int,
    classes: int,
    crop: float = 0.0,
) -> tf.data.Dataset:
    """Return one pass over one worker's records: (uint8 images, targets, float32 weights).

    `crop`: see decoding.decode.

    Examples of weight 0 fill it up to the same number of full batches on every replica.
    """
    pieces = part(shards, context.input_pipeline_id, context.num_input_pipelines)
    filler = next(Piece(shard.path, 0, 1) for shard in shards if shard.records)
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    batches = evaluation_batches(shards, context, batch_size) * replicas
    side, target = shards[0].side, shards[0].target

    def weighted(records: tf.data.Dataset, weight: float) -> tf.data.Dataset:
        return records.map(lambda record: (record, weight))

    own = [weighted(reading.records(p.path, p.start, p.count), 1.0) for p in pieces]
    records = weighted(reading.records(filler.path, 0, 1).repeat(), 0.0)
    for dataset in reversed(own):
        records = dataset.concatenate(records)
    return (
        records.map(
            lambda record, weight: (
                *parse(record, image_size, classes, side, target, crop),
                weight,
            ),
            num_parallel_calls=reading.under_way(),
            deterministic=True,
        )
        .batch(batch_size, drop_remainder=True)
        .take(batches)
        .prefetch(tf.data.AUTOTUNE)
    )


def parse(
    record: tf.Tensor,
    image_size: int,
    classes: int,
    side: int = 0,
    target: str = targets.CLASS,
    crop: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Image and target of a serialised tf.train.Example, without augmentation.

    `side` is that of decoded squares, or 0: encoded pictures.
    """
    contents, labels, _ = reading.examples(record[None], classes, side, target)
    if side:
        image = decoding.pixels(contents, side)[0]
        if crop:
            image = decoding.part(image, decoding.centre(tf.shape(image)[:2], crop))
        return decoding.uint8(decoding.resized(image, image_size)), labels[0]
    return decoding.decode(contents[0], image_size, crop), labels[0]


def window(shards: tuple[Shard, ...]) -> int:
    """Number of examples that are shuffled together. It depends on the files alone, because the
    order depends on it."""
    return max(32, min(WINDOW, WINDOW_BYTES // _mean(shards)))


def group(shards: tuple[Shard, ...]) -> int:
    """Number of examples that are parsed together. It depends on the files alone, because the
    random numbers depend on it."""
    return max(1, min(GROUP, GROUP_BYTES // _mean(shards)))


def _mean(shards: tuple[Shard, ...]) -> int:
    """Mean bytes of a record."""
    records, size = sum(s.records for s in shards), sum(s.bytes for s in shards)
    return max(1, size // max(1, records))


def _jpeg(shards: tuple[Shard, ...]) -> tuple[int, int, int]:
    """Shard.jpeg of all shards together."""
    least, most, longest = zip(*(shard.jpeg for shard in shards if shard.records), strict=True)
    return (min(least), max(most), max(longest)) if all(least) else (0, 0, 0)


def _shuffled(
    source: reading.Files | cache.Decoded,
    key: tf.Tensor,
    size: int,
    group: int,
    augmentation: Augmentation,
    repeats: balance.Repeats | None,
    copies: int,
) -> tf.data.Dataset:
    """Return (content, label, augment.View) of the examples of `source`, in the order that `key`
    (two int64) gives; with several `copies`, the view has one more axis for them in front.

    Several files are read at once, in random order, and examples are drawn at random from a window
    of `size`. Small work that is the same for each example is done for a group at once.
    """
    count = len(source.pieces)
    order = tf.random.experimental.stateless_shuffle(tf.range(count), key, alg="philox")

    def prepared(number: tf.Tensor, examples: tf.Tensor) -> tuple[Any, ...]:
        contents, labels, sizes = source.examples(examples)
        seed = tf.random.fold_in(key, number + 1, alg="philox")
        shape = [tf.shape(labels)[0] * copies, augment.DRAWS]
        draws = tf.random.stateless_uniform(shape, seed, alg="philox")
        sizes = sizes if sizes is None else tf.repeat(sizes, copies, axis=0)
        views = augment.views(draws, sizes, augmentation)
        if copies > 1:
            views = {name: _of_copies(view, copies) for name, view in views.items()}
        return contents, labels, views

    examples = tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(tf.constant(column), order) for column in source.columns)
    ).interleave(
        source.read,
        cycle_length=min(CYCLE, count),
        **source.reading,
    )
    if repeats:
        times = tf.constant(repeats.of, tf.int64)
        examples = examples.flat_map(
            lambda number: tf.data.Dataset.from_tensors(number).repeat(times[source.label(number)])
        )
    together = _drawn(examples, size, key).batch(max(1, group // copies))
    return together.enumerate().map(prepared).prefetch(1).unbatch()


def _of_copies(flat: tf.Tensor, copies: int) -> tf.Tensor:
    """Return [n * copies, ...] as [n, copies, ...]."""
    return tf.reshape(flat, [-1, copies, *flat.shape[1:]])


def _drawn(examples: tf.data.Dataset, size: int, key: tf.Tensor) -> tf.data.Dataset:
    """Dataset.shuffle with a window of `size` and a seed that is computed in the graph, since each
    epoch has its own. Dataset.shuffle itself fixes the seed when the graph is made."""
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        buffer_size=size,
        seed=tf.bitwise.bitwise_or(key[0], 1),  # Two zeros mean a seed from the clock.
        seed2=key[1],
        reshuffle_each_iteration=False,
        output_types=[examples.element_spec.dtype],
        output_shapes=[tf.TensorShape([])],
    )
    return tf.data.experimental.from_variant(shuffled, examples.element_spec)
