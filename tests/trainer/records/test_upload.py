"""Records into a bucket, for which TensorFlow's folder in memory stands, ram://."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.records.folders import run
from trainer.input import splits
from trainer.job import storage
from trainer.records import upload

pytestmark = pytest.mark.tensorflow

BUCKET = "ram://bucket/cats"


def there() -> dict[str, bytes]:
    return {name: storage.read(f"{BUCKET}/{name}") for name in storage.gfile.listdir(BUCKET)}


def test_what_is_uploaded_is_what_was_made_and_the_same_is_not_sent_again(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, small = tmp_path / "out", ("--shard-size", 8)
    assert run(pictures, out, *small, "--upload", f"{BUCKET}/") == 0
    assert there() == {path.name: path.read_bytes() for path in out.iterdir()}
    assert sum(shard.records for shard in splits.find(BUCKET, "train")) == 36
    sent: list[str] = []
    write = storage.write

    def told(path: str, content: bytes) -> None:
        sent.append(path.rpartition("/")[2])
        write(path, content)

    monkeypatch.setattr(storage, "write", told)
    upload.upload(out, BUCKET)
    assert sent == ["labels.txt", "dataset.json"]
    for path in [*(pictures / "red").glob("1*")]:
        path.unlink()
    shutil.rmtree(out)
    assert run(pictures, out, *small, "--upload", BUCKET) == 0
    assert there() == {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_folder_that_nobody_can_write_to_is_told_before_the_work(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(pictures, tmp_path / "out", "--upload", tmp_path / "file/cats") == 2
    assert "cannot write to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_upload_that_fails_leaves_the_records_and_says_how_to_go_on(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload, "check", lambda _: None)
    monkeypatch.setattr(storage, "write", full)
    out = tmp_path / "out"
    assert run(pictures, out, "--upload", "ram://other/cats") == 2
    assert f"gcloud storage rsync -r {out} ram://other/cats" in capsys.readouterr().err
    assert (out / "dataset.json").exists()
