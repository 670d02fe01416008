"""Each example once an epoch, whatever the files and workers, in an order that resumes."""

import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from runs import SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer import data  # noqa: E402
from trainer.config import UsageError  # noqa: E402
from trainer.data import Shard  # noqa: E402
from trainer.records import serialise  # noqa: E402

_file = io.BytesIO()
Image.new("L", (8, 8)).save(_file, "png")
PIXEL = _file.getvalue()


def shards(folder: Path, *sizes: int, split: str = "train") -> tuple[Shard, ...]:
    """Files of these sizes; labels number the records through."""
    label = 0
    for number, size in enumerate(sizes):
        with tf.io.TFRecordWriter(str(folder / f"{split}-{number:05d}.tfrecord")) as writer:
            for _ in range(size):
                writer.write(serialise(PIXEL, label))
                label += 1
    return data.find(str(folder), split)


def context(worker: int, workers: int, replicas: int = 1) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(workers, worker, workers * replicas)


def labels(
    files: tuple[Shard, ...], count: int, worker: int = 0, workers: int = 1, **options: int
) -> list[int]:
    """The first `count` labels that a worker trains on."""
    defaults = {"batch_size": 1, "image_size": 8, "classes": 10**6, "seed": 0, "consumed": 0}
    dataset = data.training(files, context(worker, workers), **{**defaults, **options})
    return [int(label) for _, batch in dataset.take(count) for label in batch]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 12))
def test_parts_are_disjoint_whole_and_even(sizes: list[int], workers: int) -> None:
    files = [Shard(str(number), size) for number, size in enumerate(sizes)]
    parts = [data.part(files, worker, workers) for worker in range(workers)]
    seen = [(p.path, p.start + n) for part in parts for p in part for n in range(p.count)]
    assert Counter(seen) == Counter(
        (shard.path, number) for shard in files for number in range(shard.records)
    )
    counts = [sum(piece.count for piece in part) for part in parts]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("sizes", "workers"),
    [((12,), 1), ((12,), 3), ((5, 0, 7), 2), ((1, 1, 1, 1), 3), ((9, 2, 2), 4)],
)
def test_each_record_is_trained_on_once_an_epoch(
    tmp_path: Path, sizes: tuple[int, ...], workers: int
) -> None:
    files, total = shards(tmp_path, *sizes), sum(sizes)
    epochs: tuple[list[int], list[int]] = ([], [])
    for worker in range(workers):
        own = sum(piece.count for piece in data.part(files, worker, workers))
        seen = labels(files, 2 * own, worker, workers)
        epochs[0].extend(seen[:own])
        epochs[1].extend(seen[own:])
    for epoch in epochs:
        assert sorted(epoch) == list(range(total))


def test_the_order_changes_with_epoch_and_seed_and_with_nothing_else(tmp_path: Path) -> None:
    files = shards(tmp_path, 40, 40)
    twice = labels(files, 160)
    assert twice[:80] != twice[80:]
    assert twice == labels(files, 160)
    assert labels(files, 80, seed=1) != twice[:80]
    assert twice[:80] != list(range(80))


@pytest.mark.parametrize("consumed", [8, 72, 80, 200])
def test_a_run_takes_up_its_input_where_it_left_it(tmp_path: Path, consumed: int) -> None:
    files = shards(tmp_path, 30, 50)
    unbroken = labels(files, 40, batch_size=8)
    rest = (320 - consumed) // 8
    assert labels(files, rest, batch_size=8, consumed=consumed) == unbroken[consumed:]


@pytest.mark.parametrize(("workers", "replicas", "batch"), [(1, 1, 8), (3, 1, 4), (2, 2, 3)])
def test_each_record_is_evaluated_once_and_every_replica_has_the_same_number_of_batches(
    tmp_path: Path, workers: int, replicas: int, batch: int
) -> None:
    files = shards(tmp_path, 7, 3, split="validation")
    seen: list[int] = []
    for worker in range(workers):
        place = context(worker, workers, replicas)
        batches = list(data.evaluation(files, place, batch_size=batch, image_size=8, classes=99))
        assert len(batches) == replicas * data.evaluation_batches(files, place, batch)
        for images, numbers, weights in batches:
            assert images.shape == (batch, 8, 8, 3)
            seen += [int(n) for n, weight in zip(numbers, weights, strict=True) if weight]
    assert sorted(seen) == list(range(10))


def test_more_workers_than_records_are_refused(tmp_path: Path) -> None:
    files = shards(tmp_path, 2)
    with pytest.raises(UsageError, match="2 training records are too few"):
        labels(files, 1, worker=0, workers=3)


def test_records_are_counted_without_reading_them() -> None:
    assert [shard.records for shard in data.find(str(SMOKE), "train")] == [250] * 4


def test_missing_and_empty_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no records at {tmp_path}/train-"):
        data.find(str(tmp_path), "train")
    (tmp_path / "train-0.tfrecord").touch()
    with pytest.raises(UsageError, match="are empty"):
        data.find(str(tmp_path), "train")


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = Path(shards(tmp_path, 3)[0].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(data.CorruptRecord, match=f"{path}: cut short in record 2"):
        data.count_records(str(path))
    path.write_bytes(whole + b"more")
    with pytest.raises(data.CorruptRecord, match="cut short after record 3"):
        data.count_records(str(path))
    path.write_bytes(b"\1" + whole[1:])
    with pytest.raises(data.CorruptRecord, match="record 0 is corrupt"):
        data.count_records(str(path))


def damaged(folder: Path, damage: str) -> Path:
    """Three records, the second of which is damaged."""
    record = serialise(PIXEL, 1)
    broken = {
        "no image": serialise(b"GIF89a and no more", 1),
        "label": serialise(PIXEL, 7),
        "feature": tf.train.Example().SerializeToString(),
        "checksum": record,
    }[damage]
    path = folder / "train-00000.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in (record, broken, record):
            writer.write(content)
    if damage == "checksum":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    (folder / "validation-00000.tfrecord").write_bytes(
        (SMOKE / "validation-00000-of-00001.tfrecord").read_bytes()
    )
    (folder / "labels.txt").write_text("cat\ndog\n")
    return path


@pytest.mark.parametrize("damage", ["no image", "label", "feature", "checksum"])
def test_a_corrupt_record_is_named_with_its_file(tmp_path: Path, damage: str, task) -> None:
    path = damaged(tmp_path, damage)
    assert data.count_records(str(path)) == 3
    code, lines = task("--records", tmp_path, "--job-dir", tmp_path / "job", "--steps", 2)
    assert code == 2
    assert lines[-1]["message"].startswith(f"{path}: record 1 is corrupt: ")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "there is no"), ("cat\n", "two or more"), ("cat\n\ndog\n", "none")]
)
def test_class_names_are_needed(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(UsageError, match=message):
        data.class_names(str(tmp_path))
