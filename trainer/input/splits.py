"""A folder of records: the files of its splits, their kind, and records that cannot be read."""

import contextlib
import functools
import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from trainer.config import Config, UsageError
from trainer.event_lines import say
from trainer.input import targets
from trainer.input.data import parse
from trainer.input.parts import OURS, Layout, Shard
from trainer.job import storage
from trainer.records import tfrecord

UNKNOWN_SIZE = 32
"""Pixels to decode pictures at where only their soundness counts."""
_GZIP = b"\x1f\x8b"
_NAMES = ("{}-*.tfrecord", "{}-?????-of-?????", "*-{}.tfrecord-?????-of-?????")
"""Of a split's files, as trainer.records, many scripts, and TensorFlow Datasets call them."""
_FILE = r"[^/\s;:'\"]*(?:\.tfrecord|-\d{5}-of-\d{5})[^/\s;:'\"]*"
"""Of such a name in an error's text."""
_TRACING = threading.Lock()
"""Held where one of several threads makes operations: TensorFlow 2.21 keeps the types of their
arguments in a table without a lock (python_api_dispatcher.cc), and a process ended by SIGSEGV."""


class CorruptRecord(UsageError):  # noqa: N818 - named for what was found
    """A record cannot be read; the message names its file."""


def find(folder: str, split: str, layout: Layout = OURS) -> tuple[Shard, ...]:
    """Return the files of a split ("train", "validation"), sorted. layout: what is asked for.

    Raises UsageError, CorruptRecord.
    """

    def counted(shard: Shard) -> Shard:
        known = shard.records >= 0
        return shard if known else replace(shard, records=count_records(shard.path))

    with ThreadPoolExecutor(8) as pool:
        shards = tuple(pool.map(counted, _listed(folder, split, layout)))
    return _sized(shards, folder, split, layout)


def usable(
    folder: str, split: str, image_size: int, classes: int, layout: Layout = OURS
) -> tuple[tuple[Shard, ...], tuple[str, ...]]:
    """Return the files of a split without unreadable records, and one line for each of those
    records.

    It reads all records and checks their checksums; where dataset.json does not know the file, it
    decodes each picture, too. A file with damaged records is replaced by a copy without them in a
    temporary folder, so every epoch has the same records, on every worker and after every restart.
    Raises UsageError.
    """
    shards = _listed(folder, split, layout)
    decoded = (image_size, classes, _layout((shard.path for shard in shards), layout))

    def sift(shard: Shard) -> tuple[Shard, list[str]]:
        with contextlib.suppress(CorruptRecord):
            records = count_records(shard.path)
            if _reads(shard.path, None if shard.records >= 0 else decoded):
                return replace(shard, records=records), []
        good, problems = _sifted(shard.path, decoded)
        copy = Path(tempfile.mkdtemp(dir=_scratch().name), shard.path.rpartition("/")[2])
        content = b"".join(map(tfrecord.frame, good))
        copy.write_bytes(content)
        return replace(shard, path=str(copy), records=len(good), bytes=len(content)), problems

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sifted = list(pool.map(sift, shards))
    problems = tuple(problem for _, faults in sifted for problem in faults)
    return _sized(tuple(shard for shard, _ in sifted), folder, split, layout), problems


def of(config: Config, classes: int) -> tuple[tuple[Shard, ...], tuple[Shard, ...]]:
    """Return the files of training and validation; reports what --on-corrupt skip leaves out."""
    both = []
    size, layout = config.image_size or UNKNOWN_SIZE, targets.asked(config)
    for split in ("train", "validation"):
        if config.on_corrupt == "skip":
            shards, problems = usable(config.records, split, size, classes, layout)
            for problem in problems:
                say("corrupt", f"skipped: {problem}", "WARNING")
            if problems:
                left = sum(shard.records for shard in shards)
                text = f"{len(problems)} {split} records or parts of files skipped, {left} left"
                say("corrupt", text, "WARNING", skipped=len(problems), records=left)
        else:
            shards = find(config.records, split, layout)
        both.append(shards)
        for name, records in _absent(config.records, split):
            text = f"class {name}: 0 of {records:,} {split} records"
            say("data", text, "WARNING", split=split, missing=name)
    return both[0], both[1]


def _absent(folder: str, split: str) -> list[tuple[str, int]]:
    """Return the classes of which a split has no record, by dataset.json, and its records."""
    with contextlib.suppress(tf.errors.NotFoundError, ValueError, KeyError, TypeError):
        dataset = _dataset(folder)
        if dataset.get("target") == targets.CLASS:
            part = dataset["splits"][split]
            return [(name, part["records"]) for name, n in part["classes"].items() if n == 0]
    return []


def stored_size(folder: str, shards: tuple[Shard, ...]) -> int:
    """Return the most pixels that the shorter side of a training picture has; 0: not known.

    shards: those of training in the folder.
    """
    if all(shard.jpeg[1] for shard in shards):
        return max(shard.jpeg[1] for shard in shards)
    if any(shard.records < 0 for shard in _listed(folder, "train")):
        return 0
    try:  # Not all are JPEGs: what the shorter side of every picture of the folder has at most.
        statistics = _dataset(folder)["statistics"]
        return int(min(statistics[side]["most"] for side in ("width", "height")))
    except (ValueError, KeyError, TypeError):
        return 0


def labels(shards: tuple[Shard, ...], outputs: int) -> dict[str, np.ndarray]:
    """Return the target of each record, as targets.read has it, by the file's path.

    It reads all records once.
    """
    layout = shards[0].layout
    feature = targets.wanted(layout, outputs)

    @tf.autograph.experimental.do_not_convert
    def several(records: tf.Tensor) -> tf.Tensor:
        return targets.read(tf.io.parse_example(records, feature), layout, outputs)

    def read(shard: Shard) -> np.ndarray:
        with _TRACING:
            records = tf.data.TFRecordDataset(shard.path).batch(1024).map(several)
            iterator = records.as_numpy_iterator()
        return np.concatenate([*iterator] or [np.zeros(0, np.int64)])

    filled = [shard for shard in shards if shard.records]
    with ThreadPoolExecutor(8) as pool:
        counts = pool.map(read, filled)
        return dict(zip((shard.path for shard in filled), counts, strict=True))


def class_names(folder: str, layout: Layout = OURS) -> tuple[str, ...]:
    """Return labels.txt: the name of class n in line n. Raises UsageError."""
    path = f"{folder.rstrip('/')}/labels.txt"
    try:
        text = storage.read(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not in UTF-8: {error}") from None
    except tf.errors.NotFoundError:
        raise UsageError(f"there is no {path}: one class name a line, label 0 first") from None
    names = tuple(text.removesuffix("\n").split("\n"))
    enough = len(names) > 1 or (
        _layout(_paths(folder, "train", layout), layout).target == targets.VALUES
    )
    if not (names and all(names) and enough):
        raise UsageError(f"{path}: needs two or more lines, none empty")
    return names


def count_records(path: str) -> int:
    """Count records by their lengths, without reading the payloads. Raises CorruptRecord."""
    return sum(1 for _ in _places(path))


def _places(path: str, footers: Callable[[bytes], object] | None = None) -> Iterator[int]:
    """Yield the payload length of each record. `footers` takes what each ends with: its checksum.
    Raises CorruptRecord."""
    size = storage.gfile.stat(path).length
    try:
        with storage.opened(path) as file:
            for position, length in tfrecord.lengths(file, size):
                if footers:
                    file.seek(position + tfrecord.HEADER + length)
                    footers(file.read(tfrecord.FOOTER))
                yield length
    except tfrecord.Damaged as damaged:
        with storage.opened(path) as file:
            if file.read(2) == _GZIP:
                text = "is compressed: give --compression gzip"
                raise UsageError(f"{path}: {text}") from None
        raise CorruptRecord(f"{path}: {damaged}") from None
    except OSError as error:  # which names no file where reading fails, and not opening
        raise OSError(error.errno, error.strerror, path) from error


def unread(folder: str, error: Exception) -> str:
    """Return one line with the file of records that a store did not give, and the system's words,
    if that is what `error` says; otherwise "". What the program may not read, it never will.
    """
    allowed = not isinstance(error, PermissionError | tf.errors.PermissionDeniedError)
    text = str(getattr(error, "message", None) or error)
    path = re.search(rf"{re.escape(folder.rstrip('/'))}/{_FILE}", text)
    if not (path and allowed and isinstance(error, storage.FAILURES)):
        return ""
    if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        return ""  # what was read is wrong
    why = error.strerror if isinstance(error, OSError) else text[path.end() :].partition("[[")[0]
    return f"{path[0]} cannot be read: {' '.join((why or '').strip(' ;:').split())[:200]}"


def find_corrupt(config: Config) -> str | None:
    """Return one line that names the first unreadable record; None: all can be read.

    It reads everything. It is called after a pipeline failed, because tf.data does not say where.
    """
    layout, image_size = targets.asked(config), config.image_size or UNKNOWN_SIZE
    classes = len(class_names(config.records, layout))
    paths = _glob(config.records, "*", layout)
    decoded = (image_size, classes, _layout(paths, layout))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fine = pool.map(lambda path: _reads(path, decoded), paths)
        for path, reads in zip(paths, fine, strict=True):
            if not reads:
                _, problems = _sifted(path, decoded)
                return problems[0] if problems else f"{path}: cannot be read"
    return None


def fingerprint(shards: Iterable[Shard], names: Iterable[str]) -> dict[str, Any]:
    """Return what a checkpoint holds of the records, as JSON, so that a restart notices others, and
    what workers compare: the names of the classes in their order, and what `_mark` says of each
    file. Raises CorruptRecord."""
    shards = tuple(shards)
    with ThreadPoolExecutor(8) as pool:
        marks = tuple(pool.map(_mark, shards))
    files = {s.path.rpartition("/")[2]: mark for s, mark in zip(shards, marks, strict=True)}
    return {"classes": list(names), "files": files}


def _mark(shard: Shard) -> dict[str, Any]:
    """Return the records and bytes of a file, the checksum of its last record, and a hash of the
    checksums of all its records; in a bucket, of a file that dataset.json knows, the SHA-256 that
    this has, since all of the file had to be read."""
    found = {"records": shard.records, "bytes": shard.bytes, "last": ""}
    if shard.bytes >= tfrecord.FOOTER:
        with storage.gfile.GFile(shard.path, "rb") as file:
            file.seek(shard.bytes - tfrecord.FOOTER)
            found["last"] = bytes(file.read(tfrecord.FOOTER)).hex()
    if shard.sha256 and storage.remote(shard.path):
        return {**found, "sha256": shard.sha256}
    digest = hashlib.sha256()
    for _ in _places(shard.path, digest.update):
        pass
    return {**found, "checksums": digest.hexdigest()}


def check_fingerprint(config: Config, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
    """Refuse to go on with other records than those before. Raises UsageError."""
    if before is None or config.accept_changed_records:
        return
    if difference := differences(before, now):
        raise UsageError(
            f"the records in {config.records} are not those that this job began with: "
            f"{difference}; use another --job-dir, or --accept-changed-records to go on with them"
        )


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Say, in words, how the records differ; "" if they are the same. Never more than a line."""
    for number, (old, new) in enumerate(zip(before["classes"], now["classes"], strict=False)):
        if old != new:
            return f"line {number + 1} of labels.txt was {old!r} and is {new!r}"
    if len(before["classes"]) != len(now["classes"]):
        return f"labels.txt had {len(before['classes'])} lines and has {len(now['classes'])}"
    old_files, new_files = before["files"], now["files"]
    kinds = {
        "gone": sorted(old_files.keys() - new_files.keys()),
        "new": sorted(new_files.keys() - old_files.keys()),
        "changed": [name for name in old_files if _changed(old_files[name], new_files.get(name))],
    }
    return ", ".join(
        f"{names[0]} is {kind}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for kind, names in kinds.items()
        if names
    )


def _changed(old: dict[str, Any] | list[Any], new: dict[str, Any] | None) -> bool:
    """Do two marks differ in what both say? Earlier versions wrote the first three as a list."""
    old = old if isinstance(old, dict) else dict(zip(_MARKS, old, strict=True))
    return new is not None and any(old[key] != new[key] for key in old.keys() & new.keys())


_MARKS = ("records", "bytes", "last")


def _paths(folder: str, split: str, layout: Layout) -> list[str]:
    if paths := _glob(folder, split, layout):
        return paths
    raise UsageError(f"there are no records at {folder.rstrip('/')}/{_NAMES[0].format(split)}")


def _glob(folder: str, split: str, layout: Layout) -> list[str]:
    """Return the files of a split by the first of _NAMES that fits, unpacked."""
    patterns = (f"{folder.rstrip('/')}/{name.format(split)}" for name in _NAMES)
    found: list[str] = next(filter(None, map(storage.gfile.glob, patterns)), [])
    if layout.compression == "none":
        return sorted(found)
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_unpacked, sorted(found)))


@functools.cache
def _unpacked(path: str) -> str:
    """Return a copy of a GZIP file, unpacked: records are read from any place on.

    Raises UsageError.
    """
    copy = Path(tempfile.mkdtemp(dir=_scratch().name), path.rpartition("/")[2])
    try:
        with storage.gfile.GFile(path, "rb") as file, copy.open("wb") as target:
            shutil.copyfileobj(gzip.GzipFile(fileobj=file), target, 1 << 20)
    except gzip.BadGzipFile:
        raise UsageError(f"{path}: is not compressed with GZIP: leave --compression out") from None
    except (EOFError, zlib.error) as error:
        raise CorruptRecord(f"{path}: is not whole: {error}") from None
    return str(copy)


def _sized(shards: tuple[Shard, ...], folder: str, split: str, layout: Layout) -> tuple[Shard, ...]:
    """Return `shards` with the layout of their examples."""
    filled = [shard.path for shard in shards if shard.records]
    if not filled:
        raise UsageError(f"the records at {folder.rstrip('/')}/{split}-*.tfrecord are empty")
    layout = _layout(filled, layout)
    return tuple(replace(shard, layout=layout) for shard in shards)


def _dataset(folder: str) -> dict[str, Any]:
    """Return dataset.json. Raises tf.errors.NotFoundError, ValueError, TypeError."""
    return dict(json.loads(storage.read(f"{folder.rstrip('/')}/dataset.json")))


def _listed(folder: str, split: str, layout: Layout = OURS) -> list[Shard]:
    """Return the files of a split as dataset.json has them, by their names and bytes; one that it
    does not know has -1 records. Raises UsageError."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    with contextlib.suppress(
        tf.errors.NotFoundError, ValueError, KeyError, AttributeError, TypeError
    ):
        for part in _dataset(folder)["splits"].values():
            known |= {(name, report["bytes"]): report for name, report in part["files"].items()}

    def shard(path: str) -> Shard:
        length = storage.gfile.stat(path).length
        report = known.get((path.rpartition("/")[2], length), {})
        match report.get("jpeg"):
            case [int(least), int(most), int(longest)]:
                jpeg = least, most, longest
            case _:
                jpeg = 0, 0, 0
        return Shard(path, report.get("records", -1), length, jpeg, report.get("sha256", ""))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(shard, _paths(folder, split, layout)))


def _layout(paths: Iterable[str], asked: Layout) -> Layout:
    """Return the layout of the records, as the first one tells. Raises UsageError."""
    paths = list(paths)
    try:
        return targets.of(_first(paths), asked)
    except UsageError as error:
        raise UsageError(f"{paths[0]}: {error}") from None


def _first(paths: Iterable[str]) -> dict[str, Any]:
    """Return the features of the first record that can be read; {}: there is none."""
    for path in paths:
        with storage.gfile.GFile(path, "rb") as file:
            try:
                place = next(tfrecord.lengths(file, storage.gfile.stat(path).length), None)
                if place is None:
                    continue
                file.seek(place[0] + tfrecord.HEADER)
                example = tf.train.Example.FromString(file.read(place[1]))
                return dict(example.features.feature)
            except (tfrecord.Damaged, DecodeError):
                continue
    return {}


Decoded = tuple[int, int, Layout]
"""How examples are decoded: image size, classes, layout."""


def _reads(path: str, decoded: Decoded | None) -> bool:
    """Do all checksums match and, if `decoded` is given, can all pictures be decoded?"""
    with _TRACING:
        records = tf.data.TFRecordDataset(path)
        if decoded is not None:
            records = records.map(
                lambda record: parse(record, *decoded), num_parallel_calls=tf.data.AUTOTUNE
            )
        iterator = iter(records)
    try:
        for _ in iterator:
            pass
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
        return False
    return True


def _sifted(path: str, decoded: Decoded) -> tuple[list[bytes], list[str]]:
    """Return the readable records of a file, and one line for each of the others."""
    good: list[bytes] = []
    problems: list[str] = []
    with storage.gfile.GFile(path, "rb") as file, _TRACING:
        try:
            places = tfrecord.lengths(file, storage.gfile.stat(path).length)
            for number, place in enumerate(places):
                payload, problem = tfrecord.payload(file, *place), "its checksum does not fit"
                if payload is not None:
                    try:
                        parse(tf.constant(payload), *decoded)
                        good.append(payload)
                        continue
                    except tf.errors.InvalidArgumentError as error:
                        problem = (error.message or "").removeprefix("{{").split("\n")[0][:200]
                problems.append(f"{path}: record {number} is corrupt: {problem}")
        except tfrecord.Damaged as damaged:
            problems.append(f"{path}: {damaged}; what follows in the file is lost")
    return good, problems


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for repaired copies, which is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="records-")
