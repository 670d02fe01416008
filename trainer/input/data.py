"""Records to batches: each example once an epoch, in an order that a restart resumes.

Each worker reads its own contiguous part of all records, whatever the number of files and workers.
The order within an epoch is a function of the run's seed, the epoch and the worker alone, and the
epochs follow each other without a gap. So the number of consumed examples is the whole position of
the input, and resuming skips records before they are decoded. Augmentation draws its numbers by the
same position, so a restarted run sees the same pictures.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import Config, UsageError
from trainer.input import (
    augment,
    cache,
    decoding,
    device,
    mixing,
    parts,
    pictures,
    resuming,
    targets,
)
from trainer.input.parts import Layout, Piece, Shard, part

WINDOW = 4096
"""Most examples that are shuffled together."""
WINDOW_BYTES = 64 << 20
"""Most bytes of these examples."""
GROUP, GROUP_BYTES = 256, 8 << 20
"""Most examples that are parsed together, and most bytes of them."""
CYCLE = 8
"""Most files that are read in turns."""
_NAME = {"image/filename": tf.io.FixedLenFeature([], tf.string, "")}
_UNDER_WAY = 8 * len(os.sched_getaffinity(0))
"""Pictures that TensorFlow decodes at once. AUTOTUNE has about one a core, which then waits
whenever the next example in order is not ready."""


@tf.autograph.experimental.do_not_convert
def training(
    shards: tuple[Shard, ...],
    context: tf.distribute.InputContext,
    config: Config,
    classes: int,
    *,
    batch_size: int,
    consumed: int,
    repeats: parts.Repeats | None = None,
    graph: bool = False,
    on_device: bool = False,
) -> tf.data.Dataset:
    """Return endless batches of one worker: (uint8 images, targets), as targets.read has them, or
    mixed (uint8 images, float32 [n, classes] shares of the classes).

    `batch_size` is a replica's; `consumed` counts the examples that all workers together have
    already trained on. With `on_device`, the batches are what device.augmented makes these of; with
    `graph`, too, and TensorFlow alone makes them, so that another process can. Raises UsageError
    where this worker has no records.
    """
    worker, workers = context.input_pipeline_id, context.num_input_pipelines
    if not mixing.none(config) and batch_size < 2:
        raise UsageError("--mixup and --cutmix: each replica needs a batch of 2 pictures or more")
    pieces = part(shards, worker, workers)
    own = repeats.size(pieces) if repeats else parts.size(pieces)
    if not own:
        total = sum(shard.records for shard in shards)
        raise UsageError(f"{total} training records are too few for every worker to have one")
    first, offset = parts.position(consumed, workers, own)

    def epoch(number: tf.Tensor, done: int = 0) -> tf.data.Dataset:
        key = tf.constant([config.seed, worker], tf.int64)
        key = tf.random.fold_in(key, number, alg="philox")
        # Encoded records are skipped, so no example before the position is decoded.
        return _shuffled(pieces, shards, key, classes, repeats, 0 if graph else done).skip(done)

    examples = tf.data.Dataset.range(first + bool(offset), tf.int64.max).flat_map(epoch)
    if offset:
        examples = epoch(tf.constant(first, tf.int64), offset).concatenate(examples)
    if graph:
        batches = _in_graph(examples, batch_size, config)
    else:
        batches = _decoded(examples.batch(batch_size, drop_remainder=True), config, on_device)
    if not mixing.none(config):

        def mixed(batch: Any, numbers: tf.Tensor) -> tuple[Any, tf.Tensor]:
            images, labels = batch
            if isinstance(images, Mapping):
                return {**images, device.MIXING: numbers}, labels
            return mixing.mixed(images, labels, numbers, config, classes)

        made = consumed // workers // batch_size
        batches = mixing.drawn(batches, config, worker, made).map(
            mixed, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
    return batches.prefetch(tf.data.AUTOTUNE)


def _decoded(batches: tf.data.Dataset, config: Config, on_device: bool) -> tf.data.Dataset:
    """Return (images, labels) of batches of (content, name, label, draws)."""
    kept = cache.kept().pixels if config.cache == "memory" else pictures.pixels
    decoder = pictures.Decoder(config, kept)

    def made(
        contents: tf.Tensor, names: tf.Tensor, labels: tf.Tensor, draws: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        images = decoder.batch(contents, draws, names)
        numbers = augment.changing(draws, config)
        if not on_device:
            return augment.changed(images, draws, numbers, config), labels
        return {device.IMAGES: images, device.DRAWS: draws, device.CHANGES: numbers}, labels

    return batches.map(made, num_parallel_calls=2, deterministic=True)


def _in_graph(examples: tf.data.Dataset, batch_size: int, config: Config) -> tf.data.Dataset:
    """Return (what device.augmented takes, labels) of (content, name, label, draws)."""

    size = config.image_size

    def made(
        content: tf.Tensor, _: tf.Tensor, label: tf.Tensor, draws: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        seen = functools.partial(augment.window, draws=draws, config=config)
        image = decoding.decode(content, size, None if augment.whole(config) else seen)
        mirrored, upended, turns = tf.unstack(augment.placing(draws[None], config)[0])
        image = tf.image.rot90(image[:: 1 - 2 * upended, :: 1 - 2 * mirrored], turns)
        image = tf.ensure_shape(image, [size, size, 3])
        numbers = augment.changing(draws[None], config)[0]
        return {device.IMAGES: image, device.DRAWS: draws, device.CHANGES: numbers}, label

    batches = examples.map(made, num_parallel_calls=_UNDER_WAY, deterministic=True)
    return batches.batch(batch_size, drop_remainder=True)


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


@tf.autograph.experimental.do_not_convert
def evaluation(
    shards: tuple[Shard, ...],
    context: tf.distribute.InputContext,
    config: Config,
    classes: int,
    batch_size: int,
) -> tf.data.Dataset:
    """Return one pass over one worker's records: (uint8 images, targets, float32 weights).

    Examples of weight 0 fill it up to the same number of full batches on every replica.
    """
    pieces = part(shards, context.input_pipeline_id, context.num_input_pipelines)
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    own = parts.size(pieces)
    missing = evaluation_batches(shards, context, batch_size) * replicas * batch_size - own
    filler = next(Piece(shard.path, 0, 1) for shard in shards if shard.records)
    square = decoding.squares(config.image_size, config.evaluate_crop)

    def made(number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
        contents, _, labels = _parsed(record[None], classes, shards[0].layout)
        return square(contents[0]), labels[0], tf.cast(number < own, tf.float32)

    return (
        tf.data.Dataset.from_tensor_slices(_columns((*pieces, *(filler,) * missing)))
        .flat_map(_records)
        .enumerate()
        .map(made, num_parallel_calls=_UNDER_WAY, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def _columns(pieces: tuple[Piece, ...]) -> tuple[list[Any], ...]:
    """Return paths, starts and counts."""
    return tuple(map(list, zip(*map(dataclasses.astuple, pieces), strict=True)))


def parse(
    record: tf.Tensor, image_size: int, classes: int, layout: Layout
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return image and target of a serialised tf.train.Example."""
    contents, _, labels = _parsed(record[None], classes, layout)
    return decoding.decode(contents[0], image_size), labels[0]


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


def _records(path: Any, start: Any, count: Any) -> tf.data.Dataset:
    """Return the serialised records [start, start + count) of a file."""
    start, count = tf.cast(start, tf.int64), tf.cast(count, tf.int64)
    return tf.data.TFRecordDataset(path).skip(start).take(count)


def _parsed(
    records: tf.Tensor, classes: int, layout: Layout
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return encoded pictures, names and checked targets of serialised examples."""
    image = {layout.image: tf.io.FixedLenFeature([], tf.string)}
    parsed = tf.io.parse_example(records, _NAME | image | targets.wanted(layout, classes))
    labels = targets.read(parsed, layout, classes)
    return parsed[layout.image], parsed["image/filename"], labels


def _shuffled(
    pieces: tuple[Piece, ...],
    shards: tuple[Shard, ...],
    key: tf.Tensor,
    classes: int,
    repeats: parts.Repeats | None,
    done: int,
) -> tf.data.Dataset:
    """Return (encoded picture, name, label, augment.DRAWS random numbers) of the examples of
    `pieces`, in the order that `key` (two int64) gives. The first `done` may be empty ones.

    Several files are read at once, in random order, and examples are drawn at random from a window.
    Small work that is the same for each example is done for a group at once.
    """
    layout, read = shards[0].layout, _records
    columns: Any = _columns(pieces)
    if done:
        needed, labels = _needed(pieces, shards, key, repeats, done)
        empty = resuming.empties(layout, classes, range(labels.max() + 1))
        read = functools.partial(resuming.records, empty=empty)
        columns = ([piece.path for piece in pieces], resuming.runs(pieces, needed, labels))

    def prepared(number: tf.Tensor, records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        contents, names, labels = _parsed(records, classes, layout)
        seed = tf.random.fold_in(key, number + 1, alg="philox")
        shape = [tf.shape(labels)[0], augment.DRAWS]
        return contents, names, labels, tf.random.stateless_uniform(shape, seed, alg="philox")

    records = _in_turns(read, columns, key)
    if repeats:
        times, feature = tf.constant(repeats.of, tf.int64), targets.wanted(layout, classes)

        def repeated(record: tf.Tensor) -> tf.data.Dataset:
            labels = targets.read(tf.io.parse_example(record[None], feature), layout, classes)
            return tf.data.Dataset.from_tensors(record).repeat(times[labels[0]])

        records = records.flat_map(repeated)
    together = _drawn(records, window(shards), key).batch(group(shards))
    return together.enumerate().map(prepared).prefetch(1).unbatch()


def _needed(
    pieces: tuple[Piece, ...], shards: tuple[Shard, ...], key: tf.Tensor,
    repeats: parts.Repeats | None, done: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return whether each record of `pieces` is still to come after the first `done` examples, and
    its label, or 0 where none repeats. The order is made of the records' numbers."""
    ends = np.cumsum([piece.count for piece in pieces])
    labels, often = np.zeros(ends[-1], np.int64), [1]
    if repeats:
        own = (repeats.labels[p.path][p.start : p.start + p.count] for p in pieces)
        labels, often = np.concatenate([*own]), [*repeats.of]
    times = tf.constant(np.array(often)[labels])

    def repeated(number: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(number).repeat(times[number])

    columns = (ends - [piece.count for piece in pieces], ends)
    numbers = _in_turns(tf.data.Dataset.range, columns, key).flat_map(repeated)
    needed = np.zeros(ends[-1], bool)
    order = _drawn(numbers, window(shards), key).skip(done).batch(WINDOW)
    for some in order.as_numpy_iterator():
        needed[some] = True
    return needed, labels


def _in_turns(
    read: Callable[..., tf.data.Dataset], columns: Iterable[Any], key: tf.Tensor
) -> tf.data.Dataset:
    """Return what `read` gives for each row of `columns`: some rows at once, in random order."""
    tensors = [
        column if isinstance(column, tf.RaggedTensor) else tf.constant(column) for column in columns
    ]
    count = tensors[0].shape[0]
    order = tf.random.experimental.stateless_shuffle(tf.range(count), key, alg="philox")
    return tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(tensor, order) for tensor in tensors)
    ).interleave(
        read,
        cycle_length=min(CYCLE, count),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


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
