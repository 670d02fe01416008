"""A job goes on with the records that it began with, or says what differs."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.runs import SMOKE

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from trainer.input import splits  # noqa: E402


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
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


def test_other_records_are_refused_unless_they_are_accepted(tmp_path: Path, task) -> None:
    records = shutil.copytree(SMOKE, tmp_path / "records")
    options = ("--records", records, "--job-dir", tmp_path / "job", "--image-size", 8)
    options += ("--batch-size", 8, "--export", "none", "--steps")
    assert task(*options, 2)[0] == 0
    remove_file(records)
    code, lines = task(*options, 4)
    assert code == 2
    assert "train-00003-of-00004.tfrecord is gone" in lines[-1]["message"]
    assert "--accept-changed-records" in lines[-1]["message"]
    code, lines = task(*options, 4, "--accept-changed-records")
    assert code == 0
    assert [line["step"] for line in lines if line["event"] == "resumed"] == [2]
    assert task(*options, 6)[0] == 0, "the accepted ones are now the job's"
