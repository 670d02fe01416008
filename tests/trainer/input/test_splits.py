"""A folder of records: they are counted, damaged ones are named or left out, others are refused."""

import functools
import gzip
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tests.trainer.input.samples import PIXEL, labels, made, options, shards
from tests.trainer.runs import SMOKE
from trainer.config import UsageError
from trainer.input import splits
from trainer.job import storage
from trainer.records import tfrecord
from trainer.records.tfrecord import serialise

pytestmark = pytest.mark.tensorflow


def test_records_are_counted_without_reading_them() -> None:
    assert [shard.records for shard in splits.find(str(SMOKE), "train")] == [250] * 4


def test_the_size_of_pictures_that_are_no_jpegs_is_known_too(tmp_path: Path) -> None:
    options = ("--encoding", "png", "--resize", "48", "--square")
    folder = str(made(tmp_path, *options))
    assert splits.stored_size(folder, splits.find(folder, "train")) == 48


def test_missing_and_empty_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no records at {tmp_path}/train-"):
        splits.find(str(tmp_path), "train")
    (tmp_path / "train-0.tfrecord").touch()
    with pytest.raises(UsageError, match="are empty"):
        splits.find(str(tmp_path), "train")


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    path = Path(shards(tmp_path, 3)[0].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(splits.CorruptRecord, match=f"{path}: cut short in record 2"):
        splits.count_records(str(path))
    path.write_bytes(whole + b"more")
    with pytest.raises(splits.CorruptRecord, match="cut short after record 3"):
        splits.count_records(str(path))
    path.write_bytes(b"\1" + whole[1:])
    with pytest.raises(splits.CorruptRecord, match="record 0 is corrupt"):
        splits.count_records(str(path))


DAMAGES = ("no image", "label", "feature", "checksum")


def damaged(folder: Path, damage: str, number: int = 0) -> Path:
    """Three records, of which the second is damaged."""
    record = serialise(PIXEL, 1)
    broken = {
        "no image": serialise(b"GIF89a and no more", 1),
        "label": serialise(PIXEL, 7),
        "feature": tf.train.Example().SerializeToString(),
        "checksum": record,
    }[damage]
    path = folder / f"train-{number:05d}.tfrecord"
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


def test_a_corrupt_record_is_named_with_its_file(tmp_path: Path, task) -> None:
    """Also one that is met after the first step, when a failure of a device would be believed."""
    path = damaged(tmp_path, "no image")
    assert splits.count_records(str(path)) == 3
    short = ("--steps", 6, "--batch-size", 1, "--steps-per-loop", 1, "--seed", 1)
    code, lines = task("--records", tmp_path, "--job-dir", tmp_path / "job", *short)
    assert code == 2
    assert "step" in [line["event"] for line in lines]
    assert lines[-1]["message"].startswith(f"{path}: record 1 is corrupt: ")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "there is no"), ("cat\n", "two or more"), ("cat\n\ndog\n", "none")]
)
def test_class_names_are_needed(tmp_path: Path, text: str | None, message: str) -> None:
    out = made(tmp_path)
    (out / "labels.txt").unlink()
    if text is not None:
        (out / "labels.txt").write_text(text)
    with pytest.raises(UsageError, match=message):
        splits.class_names(str(out))


@pytest.mark.parametrize("text", [b"cat\r\ndog\r\n", b"\xef\xbb\xbfcat\ndog", b"cat\ndog\n"])
def test_class_names_may_come_from_another_system(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "labels.txt").write_bytes(text)
    assert splits.class_names(str(tmp_path)) == ("cat", "dog")


def test_dataset_json_spares_counting_and_is_not_believed_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = made(tmp_path)
    expected = [shard.records for shard in splits.find(str(out), "train")]
    counted = []
    count = splits.count_records
    monkeypatch.setattr(splits, "count_records", lambda path: counted.append(path) or count(path))
    assert [shard.records for shard in splits.find(str(out), "train")] == expected
    assert not counted
    first = sorted(out.glob("train-*"))[0]
    first.write_bytes(first.read_bytes() + tfrecord.frame(serialise(PIXEL, 0)))
    assert splits.find(str(out), "train")[0].records == expected[0] + 1
    assert counted == [str(first)]


def test_corrupt_records_are_skipped_counted_and_named_if_asked(tmp_path: Path) -> None:
    paths = [damaged(tmp_path, damage, number) for number, damage in enumerate(DAMAGES)]
    files, problems = splits.usable(str(tmp_path), "train", 8, 2)
    assert [shard.records for shard in files] == [2] * 4
    for path, problem in zip(paths, problems, strict=True):
        assert problem.startswith(f"{path}: record 1 is corrupt: ")
    assert splits.find_corrupt(options(records=str(tmp_path), image_size=8)) == problems[0]
    assert labels(files, 16) == [1] * 16


def test_operations_are_made_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by several at once, they ended a process by SIGSEGV, once in some ten starts."""
    one, made, parse = threading.Lock(), tf.data.TFRecordDataset, splits.parse

    def alone(call: Callable[..., object], *given: object) -> object:
        assert one.acquire(blocking=False)
        time.sleep(0.05)  # for the other threads to come
        one.release()
        return call(*given)

    monkeypatch.setattr(tf.data, "TFRecordDataset", functools.partial(alone, made))
    monkeypatch.setattr(splits, "parse", functools.partial(alone, parse))
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\ne\nf\n")
    files = shards(tmp_path, 2, 2, 2)
    assert [*map(len, splits.labels(files, 6).values())] == [2, 2, 2]
    assert splits.find_corrupt(options(records=str(tmp_path), image_size=8)) is None
    for path in (Path(shard.path) for shard in files[:2]):
        path.write_bytes(path.read_bytes()[:-1])
    assert len(splits.usable(str(tmp_path), "train", 8, 6)[1]) == 2


def test_of_a_file_that_was_cut_short_the_rest_is_used(tmp_path: Path) -> None:
    path = Path(shards(tmp_path, 3, 2)[0].path)
    path.write_bytes(path.read_bytes()[:-1])
    files, problems = splits.usable(str(tmp_path), "train", 8, 10)
    assert [shard.records for shard in files] == [2, 2]
    assert problems == (f"{path}: cut short in record 2; what follows in the file is lost",)
    assert sorted(labels(files, 4)) == [0, 1, 3, 4]


def test_a_run_over_corrupt_records_goes_on_if_asked(tmp_path: Path, task) -> None:
    path = damaged(tmp_path, "checksum")
    (tmp_path / "labels.txt").write_text("".join(f"{n}\n" for n in range(10)))
    given = ("--records", tmp_path, "--job-dir", tmp_path / "job", "--steps", 2, "--batch", 2)
    code, lines = task(*given, "--export", "none", "--on-corrupt", "skip")
    assert code == 0
    named, counted = (line for line in lines if line["event"] == "corrupt")
    assert named["message"].startswith(f"skipped: {path}: record 1 is corrupt")
    assert (counted["skipped"], counted["records"]) == (1, 2)


# Records of other tools


def renamed(tmp_path: Path, name: str) -> Path:
    """The smoke records with the names that another tool gives them."""
    for split, count in (("train", 4), ("validation", 1)):
        for number in range(count):
            place = f"{number:05d}-of-{count:05d}"
            target = tmp_path / name.format(split=split, place=place)
            shutil.copy(SMOKE / f"{split}-{place}.tfrecord", target)
    return tmp_path


@pytest.mark.parametrize("name", ["{split}-{place}", "digits-{split}.tfrecord-{place}"])
def test_files_are_found_by_the_names_that_other_tools_give_them(name: str, tmp_path: Path) -> None:
    folder = str(renamed(tmp_path, name))
    assert [shard.records for shard in splits.find(folder, "train")] == [250] * 4
    assert [shard.records for shard in splits.find(folder, "validation")] == [200]


def test_compressed_records_are_called_that_and_not_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "train-0.tfrecord"
    path.write_bytes(gzip.compress((SMOKE / "train-00000-of-00004.tfrecord").read_bytes()))
    with pytest.raises(
        UsageError, match=r"train-0.tfrecord: is compressed: give --compression gzip"
    ):
        splits.find(str(tmp_path), "train")


def test_records_with_other_features_are_told_what_they_have(tmp_path: Path) -> None:
    path = tmp_path / "train-0.tfrecord"
    path.write_bytes(tfrecord.frame(tfrecord.example({"image": PIXEL, "label": 3})))
    with pytest.raises(UsageError, match=r"records have image, label, and no image/encoded"):
        splits.find(str(tmp_path), "train")


def test_labels_that_count_from_one_are_told_how_to_be_read(tmp_path: Path) -> None:
    [shard] = shards(tmp_path, 3)  # with the labels 0, 1 and 2
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    problem = splits.find_corrupt(options(records=str(tmp_path), image_size=8))
    assert problem is not None
    assert problem.startswith(f"{shard.path}: record 2 is corrupt: label beyond labels.txt")
    assert "they count from 0" in problem


# Other records after a restart


def reverse_labels(records: Path) -> None:
    names = (records / "labels.txt").read_text().split()
    (records / "labels.txt").write_text("\n".join(reversed(names)) + "\n")


def swap_files(records: Path) -> None:
    one, other, *_ = sorted(records.glob("train-*"))
    one.rename(records / "spare")
    other.rename(one)
    (records / "spare").rename(other)


def remove_file(records: Path) -> None:
    max(records.glob("train-*")).unlink()


def correct_a_label(records: Path) -> None:
    """Give the first record of a file another label: as many bytes, the same last record."""
    path = min(records.glob("train-*"))
    first, *others = (record.numpy() for record in tf.data.TFRecordDataset(str(path)))
    example = tf.train.Example.FromString(first)
    label = example.features.feature["image/class/label"].int64_list.value
    label[0] = 1 if label[0] != 1 else 2
    corrected = (example.SerializeToString(deterministic=True), *others)
    before = path.stat().st_size
    path.write_bytes(b"".join(map(tfrecord.frame, corrected)))
    assert path.stat().st_size == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (correct_a_label, "train-00000-of-00004.tfrecord is changed"),
        (reverse_labels, "line 1 of labels.txt was '0' and is '9'"),
        (swap_files, "train-00000-of-00004.tfrecord is changed and 1 more"),
        (remove_file, "train-00003-of-00004.tfrecord is gone"),
    ],
)
def test_what_differs_is_named(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    records = shutil.copytree(SMOKE, tmp_path / "records")
    before = fingerprint(records)
    assert splits.differences(before, fingerprint(records)) == ""
    change(records)
    assert splits.differences(before, fingerprint(records)) == message


def fingerprint(records: Path) -> dict:
    shards = splits.find(str(records), "train")
    return splits.fingerprint(shards, splits.class_names(str(records)))


def test_in_a_bucket_dataset_json_stands_for_the_files_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read each record's checksum there would be to read all of it."""
    records = made(tmp_path)
    on_a_disk = fingerprint(records)
    monkeypatch.setattr(storage, "remote", lambda _: True)
    before = fingerprint(records)
    assert splits.differences(on_a_disk, before) == "", "the same records were copied there"
    dataset = (records / "dataset.json").read_text()
    name, of_a_file = next(iter(json.loads(dataset)["splits"]["train"]["files"].items()))
    (records / "dataset.json").write_text(dataset.replace(of_a_file["sha256"], "0" * 64))
    assert splits.differences(before, fingerprint(records)) == f"{name} is changed"


def test_a_checkpoint_of_an_earlier_version_is_compared_by_what_it_has() -> None:
    now = fingerprint(SMOKE)
    before = {**now, "files": {name: [*of.values()][:3] for name, of in now["files"].items()}}
    assert splits.differences(before, now) == ""
    before["files"]["train-00000-of-00004.tfrecord"][0] += 1
    assert splits.differences(before, now) == "train-00000-of-00004.tfrecord is changed"


def test_other_records_are_refused_unless_they_are_accepted(tmp_path: Path, task) -> None:
    records = shutil.copytree(SMOKE, tmp_path / "records")
    given = ("--records", records, "--batch-size", 8, "--export", "none", "--steps")
    assert task(*given, 2)[0] == 0
    remove_file(records)
    code, lines = task(*given, 4)
    assert code == 2
    assert "train-00003-of-00004.tfrecord is gone" in lines[-1]["message"]
    assert "--accept-changed-records" in lines[-1]["message"]
    code, lines = task(*given, 4, "--accept-changed-records")
    assert code == 0
    assert [line["step"] for line in lines if line["event"] == "resumed"] == [2]
    state = json.loads((tmp_path / "checkpoints/step-00000004.json").read_text())["state"]
    names = {f"train-{number:05d}-of-00004.tfrecord" for number in range(3)}
    assert {name for name in state["records"]["files"] if "train" in name} == names, "now the job's"
