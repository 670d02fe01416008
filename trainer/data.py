"""TFRecords in, batches out: each example once an epoch, in an order that can be taken up again.

Each worker reads its own contiguous part of all records, whatever the number of files and
workers. The order within an epoch is a function of run seed, epoch and worker alone, and
epochs follow each other without a gap, so the number of examples consumed is the whole input
position: resuming skips records before they are decoded.
"""

import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer import storage
from trainer.config import UsageError

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
WINDOW = 4096
"""Encoded examples that are shuffled together, held in memory."""
CYCLE = 8
"""Files read in turns."""
_MASK = 0xA282EAD8


class CorruptRecord(Exception):  # noqa: N818 - named for what was found
    """A record that cannot be read; names its file."""


@dataclass(frozen=True)
class Shard:
    """A TFRecord file."""

    path: str
    records: int


@dataclass(frozen=True)
class Piece:
    """Records [start, start + count) of a file."""

    path: str
    start: int
    count: int


def find(folder: str, split: str) -> tuple[Shard, ...]:
    """The files of a split ("train", "validation"), sorted. Raises UsageError, CorruptRecord."""
    pattern = f"{folder.rstrip('/')}/{split}-*.tfrecord"
    paths = sorted(storage.gfile.glob(pattern))
    if not paths:
        raise UsageError(f"there are no records at {pattern}")
    with ThreadPoolExecutor(8) as pool:
        shards = tuple(map(Shard, paths, pool.map(count_records, paths)))
    if not any(shard.records for shard in shards):
        raise UsageError(f"the records at {pattern} are empty")
    return shards


def class_names(folder: str) -> tuple[str, ...]:
    """labels.txt: the name of class n in line n. Raises UsageError."""
    path = f"{folder.rstrip('/')}/labels.txt"
    try:
        names = tuple(storage.read(path).decode().split("\n"))
    except tf.errors.NotFoundError:
        raise UsageError(f"there is no {path}: one class name a line, label 0 first") from None
    names = names[:-1] if names[-1] == "" else names
    if len(names) < 2 or not all(names):
        raise UsageError(f"{path}: needs two or more lines, none empty")
    return names


def count_records(path: str) -> int:
    """Count by hopping from one record's length to the next's, without reading the payload.

    Framing: 8 bytes length, 4 bytes masked CRC-32C of it, payload, 4 bytes checksum (TensorFlow,
    tsl/lib/io/record_writer.h). Raises CorruptRecord.
    """
    size = storage.gfile.stat(path).length
    position = records = 0
    with storage.gfile.GFile(path, "rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(12)
            if len(header) < 12:
                raise CorruptRecord(f"{path}: cut short after record {records}")
            length, checksum = struct.unpack("<QI", header)
            if _masked_crc32c(header[:8]) != checksum:
                raise CorruptRecord(f"{path}: record {records} is corrupt (byte {position})")
            position += 12 + length + 4
            records += 1
    if position != size:
        raise CorruptRecord(f"{path}: cut short in record {records - 1}")
    return records


def part(shards: Iterable[Shard], worker: int, workers: int) -> tuple[Piece, ...]:
    """The records of one of `workers`: contiguous, disjoint, together all, equal to within one."""
    shards = tuple(shards)
    total = sum(shard.records for shard in shards)
    first, end = total * worker // workers, total * (worker + 1) // workers
    pieces, offset = [], 0
    for shard in shards:
        start, stop = max(first - offset, 0), min(end - offset, shard.records)
        if start < stop:
            pieces.append(Piece(shard.path, start, stop - start))
        offset += shard.records
    return tuple(pieces)


def training(
    shards: tuple[Shard, ...],
    context: tf.distribute.InputContext,
    *,
    batch_size: int,
    image_size: int,
    classes: int,
    seed: int,
    consumed: int,
) -> tf.data.Dataset:
    """Endless batches of one worker: (uint8 images, int64 labels).

    `batch_size` is a replica's; `consumed` counts the examples that all workers together have
    already trained on.
    """
    pieces = part(shards, context.input_pipeline_id, context.num_input_pipelines)
    own = sum(piece.count for piece in pieces)
    if not own:
        total = sum(shard.records for shard in shards)
        raise UsageError(f"{total} training records are too few for every worker to have one")
    first, offset = divmod(consumed // context.num_input_pipelines, own)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        key = tf.constant([seed, context.input_pipeline_id], tf.int64)
        key = tf.random.fold_in(key, number, alg="philox")
        # Skipped are encoded records, so taking up a position costs no decoding.
        return _shuffled(pieces, key).skip(
            tf.where(number == first, tf.constant(offset, tf.int64), 0)
        )

    return (
        tf.data.Dataset.range(first, tf.int64.max)
        .flat_map(epoch)
        .map(
            lambda record: parse(record, image_size, classes),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_batches(
    shards: tuple[Shard, ...], context: tf.distribute.InputContext, batch_size: int
) -> int:
    """Batches of one replica in a pass over all records: the same on each, as collectives need."""
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
) -> tf.data.Dataset:
    """One pass over one worker's records: (uint8 images, int64 labels, float32 weights).

    Padded with examples of weight 0 to the same number of full batches on every replica.
    """
    pieces = part(shards, context.input_pipeline_id, context.num_input_pipelines)
    filler = next(Piece(shard.path, 0, 1) for shard in shards if shard.records)
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    batches = evaluation_batches(shards, context, batch_size) * replicas

    def weighted(records: tf.data.Dataset, weight: float) -> tf.data.Dataset:
        return records.map(lambda record: (record, weight))

    own = [weighted(_records(p.path, p.start, p.count), 1.0) for p in pieces]
    records = weighted(_records(filler.path, 0, 1).repeat(), 0.0)
    for dataset in reversed(own):
        records = dataset.concatenate(records)
    return (
        records.map(
            lambda record, weight: (*parse(record, image_size, classes), weight),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .batch(batch_size, drop_remainder=True)
        .take(batches)
        .prefetch(tf.data.AUTOTUNE)
    )


def parse(record: tf.Tensor, image_size: int, classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A serialised tf.train.Example into image and label."""
    example = tf.io.parse_single_example(record, FEATURES)
    label = example["image/class/label"]
    tf.debugging.assert_less(label, tf.cast(classes, tf.int64), "label beyond labels.txt")
    tf.debugging.assert_non_negative(label, "negative label")
    return decode(example["image/encoded"], image_size), label


def decode(encoded: tf.Tensor, image_size: int) -> tf.Tensor:
    """JPEG, PNG, BMP or GIF bytes into a uint8 RGB square: training and serving share it."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image = tf.image.resize(image, (image_size, image_size))
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def find_corrupt(folder: str, image_size: int) -> str | None:
    """Name the first record that cannot be read, in one line; None where all can.

    Reads everything, so it is for the time after a pipeline failed: tf.data does not say where.
    """
    classes = len(class_names(folder))
    for path in sorted(storage.gfile.glob(f"{folder.rstrip('/')}/*.tfrecord")):
        number = -1
        try:
            for number, record in enumerate(tf.data.TFRecordDataset(path)):  # noqa: B007
                parse(record, image_size, classes)
        except tf.errors.DataLossError as error:
            return f"{path}: record {number + 1} is corrupt: {first_line(error)}"
        except tf.errors.InvalidArgumentError as error:
            return f"{path}: record {number} is corrupt: {first_line(error)}"
    return None


def first_line(error: tf.errors.OpError) -> str:
    """TensorFlow's message without the names of nodes and its hints."""
    return (error.message or "").removeprefix("{{").split("\n")[0][:200]


def _records(path: Any, start: Any, count: Any) -> tf.data.Dataset:
    start, count = tf.cast(start, tf.int64), tf.cast(count, tf.int64)
    return tf.data.TFRecordDataset(path).skip(start).take(count)


def _shuffled(pieces: tuple[Piece, ...], key: tf.Tensor) -> tf.data.Dataset:
    """Serialised examples of `pieces`, in the order that `key` (two int64) gives.

    Files in random order, several at once, then each window of examples permuted. Not
    Dataset.shuffle: that takes no seed that is computed in the graph, as an epoch's is.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(len(pieces)), key, alg="philox")
    paths, starts, counts = zip(*((p.path, p.start, p.count) for p in pieces), strict=True)

    def permute(number: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        seed = tf.random.fold_in(key, number + 1, alg="philox")
        return tf.random.experimental.stateless_shuffle(window, seed, alg="philox")

    return (
        tf.data.Dataset.from_tensor_slices(
            tuple(tf.gather(tf.constant(column), order) for column in (paths, starts, counts))
        )
        .interleave(
            _records,
            cycle_length=min(CYCLE, len(pieces)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .batch(WINDOW)
        .enumerate()
        .map(permute)
        .unbatch()
    )


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def _masked_crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
