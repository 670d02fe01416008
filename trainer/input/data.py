"""Records to batches: each example once an epoch, in an order that a restart resumes.

Each worker reads its own contiguous part of all records, whatever the number of files and workers.
The order within an epoch is a function of the run's seed, the epoch and the worker alone, and the
epochs follow each other without a gap. So the number of consumed examples is the whole position of
the input, and resuming skips records before they are decoded. Augmentation draws its numbers by the
same position, so a restarted run sees the same pictures.
"""

from typing import Any

import tensorflow as tf

from trainer.config import UsageError
from trainer.input import augment, balance, cache, decoding, device, mixing, parts, reading, targets
from trainer.input.augment import NONE, Augmentation
from trainer.input.parts import Piece, Shard, part

Source = reading.Files | cache.Decoded
WINDOW = 4096
"""Most examples that are shuffled together."""
WINDOW_BYTES = 64 << 20
"""Most bytes of these examples."""
GROUP, GROUP_BYTES = 256, 8 << 20
"""Most examples that are parsed together, and most bytes of them."""
CYCLE = 8
"""Most files that are read in turns."""


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
    keep: str = cache.NONE,
    whole: bool = False,
) -> tf.data.Dataset:
    """Return endless batches of one worker: (uint8 images, targets), as targets.read has them, or
    with `mix` (uint8 images, float32 [n, classes] shares of the classes).

    `batch_size` is a replica's; `consumed` counts the examples that all workers together have
    already trained on. `keep` is --cache. With `whole`, the batches are what device.augmented makes
    these of. Raises UsageError where this worker has no records, or where they cannot be kept.
    """
    worker, workers = context.input_pipeline_id, context.num_input_pipelines
    if not mix.none and batch_size < 2:
        raise UsageError("--mixup and --cutmix: each replica needs a batch of 2 pictures or more")
    pieces = part(shards, worker, workers)
    own = repeats.size(pieces) if repeats else parts.size(pieces)
    if not own:
        total = sum(shard.records for shard in shards)
        raise UsageError(f"{total} training records are too few for every worker to have one")
    first, offset = parts.position(consumed, workers, own)
    size, together = window(shards), group(shards)
    source = _source(pieces, classes, shards, image_size, augmentation, keep, whole)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        key = tf.constant([seed, worker], tf.int64)
        key = tf.random.fold_in(key, number, alg="philox")
        examples = _shuffled(source, key, size, together, augmentation, repeats)
        # Encoded records are skipped, so no example before the position is decoded.
        return examples.skip(tf.where(number == first, tf.constant(offset, tf.int64), 0))

    examples = tf.data.Dataset.range(first, tf.int64.max).flat_map(epoch)
    canvas = device.canvas(shards, image_size) if whole else 0
    batches = _batches(examples, source, batch_size, image_size, augmentation, canvas)
    if not mix.none:

        def mixed(batch: Any, numbers: tf.Tensor) -> tuple[Any, tf.Tensor]:
            images, labels = batch
            if whole:
                return {**images, device.MIXING: numbers}, labels
            return mixing.mixed(images, labels, numbers, mix, classes)

        made = consumed // workers // batch_size
        batches = mixing.drawn(batches, mix, seed, worker, made).map(
            mixed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
    return batches.prefetch(tf.data.AUTOTUNE)


def _source(
    pieces: tuple[Piece, ...],
    classes: int,
    shards: tuple[Shard, ...],
    image_size: int,
    how: Augmentation,
    keep: str,
    whole: bool,
) -> Source:
    """Return where the examples come from. Raises UsageError if they cannot be kept as `keep` asks:
    if they are no JPEGs, of unknown size, or decoded at a half for some crops."""
    least, most, _ = _jpeg(shards)
    target = shards[0].target
    if keep == cache.NONE:
        # Their sizes are of use for a crop, or to decode at a half.
        sized = least > 0 and (whole or not how.whole or most >= 2 * image_size)
        return reading.Files(pieces, classes, target, sized, most)
    if not least:
        raise UsageError(
            f"--cache {keep}: takes records of JPEGs that trainer.records made, with the "
            "dataset.json beside them"
        )
    if min(most, how.cut or most) >= 2 * image_size:
        raise UsageError(
            f"--cache {keep}: pictures with a shorter side of {most} are decoded at a half for "
            f"--image-size {image_size}: make smaller records (trainer.records --resize)"
        )
    return cache.decoded(pieces, classes, target, keep)


def _batches(
    examples: tf.data.Dataset,
    source: Source,
    batch_size: int,
    image_size: int,
    how: Augmentation,
    canvas: int,
) -> tf.data.Dataset:
    """Return batches of (uint8 images, labels) of what `_shuffled` gives; with a `canvas`, of whole
    pictures at the top left of squares of so many pixels, for device.augmented."""

    def example(content: tf.Tensor, label: tf.Tensor, view: augment.View) -> tuple[Any, tf.Tensor]:
        if how.drawn:
            view = {**view, "changes": augment.changing(view["draws"], how)}
        if canvas:
            return {**view, device.WHOLE: source.picture(content)[:canvas]}, label
        image = augment.placed(source.seen(content, view, image_size, how), view)
        if not how.repaints:
            return decoding.square(image, image_size), label
        one = {name: tensor[None] for name, tensor in view.items()}
        image = augment.change(decoding.resized(image, image_size)[None], one, how)[0]
        return decoding.uint8(image), label

    made = examples.map(example, num_parallel_calls=reading.under_way(), deterministic=True)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, made.element_spec)
    if not canvas:
        return made.batch(batch_size, drop_remainder=True)
    shapes[0][device.WHOLE] = [canvas, canvas, 3]
    return made.padded_batch(batch_size, shapes, drop_remainder=True)


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
    target = shards[0].target

    def weighted(records: tf.data.Dataset, weight: float) -> tf.data.Dataset:
        return records.map(lambda record: (record, weight))

    own = [weighted(reading.records(p.path, p.start, p.count), 1.0) for p in pieces]
    records = weighted(reading.records(filler.path, 0, 1).repeat(), 0.0)
    for dataset in reversed(own):
        records = dataset.concatenate(records)
    return (
        records.map(
            lambda record, weight: (*parse(record, image_size, classes, target, crop), weight),
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
    target: str = targets.CLASS,
    crop: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image and target of a serialised tf.train.Example, without augmentation."""
    contents, labels, _ = reading.examples(record[None], classes, target)
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
    source: Source,
    key: tf.Tensor,
    size: int,
    group: int,
    augmentation: Augmentation,
    repeats: balance.Repeats | None,
) -> tf.data.Dataset:
    """Return (content, label, augment.View) of the examples of `source`, in the order that `key`
    (two int64) gives.

    Several files are read at once, in random order, and examples are drawn at random from a window
    of `size`. Small work that is the same for each example is done for a group at once.
    """
    count = len(source.pieces)
    order = tf.random.experimental.stateless_shuffle(tf.range(count), key, alg="philox")

    def prepared(number: tf.Tensor, examples: tf.Tensor) -> tuple[Any, ...]:
        contents, labels, sizes = source.examples(examples)
        seed = tf.random.fold_in(key, number + 1, alg="philox")
        shape = [tf.shape(labels)[0], augment.DRAWS]
        draws = tf.random.stateless_uniform(shape, seed, alg="philox")
        return contents, labels, augment.views(draws, sizes, augmentation)

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
    together = _drawn(examples, size, key).batch(group)
    return together.enumerate().map(prepared).prefetch(1).unbatch()


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
