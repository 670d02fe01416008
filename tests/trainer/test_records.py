"""A folder of class folders into records, and the records of the smoke test."""

import struct
from pathlib import Path

import pytest
from PIL import Image
from runs import ROOT, SMOKE

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from trainer import data, records  # noqa: E402


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """20 reddish and 20 grey ones, PNG and JPEG, of different sizes."""
    folder = tmp_path / "pictures"
    for name in ("red", "grey"):
        (folder / name / "more").mkdir(parents=True)
    for number in range(20):
        size = (8 + number, 12)
        red = Image.new("RGB", size, (200, number, number))
        red.save(
            folder / "red" / f"{number}.{('png', 'JPG')[number % 2]}",
            "png" if number % 2 == 0 else "jpeg",
        )
        Image.new("L", size, 5 * number).save(folder / "grey" / "more" / f"{number}.png")
    (folder / "grey" / "notes.txt").write_text("not a picture")
    return folder


def read(folder: Path, split: str) -> list[tuple[bytes, int]]:
    examples = []
    for path in sorted(folder.glob(f"{split}-*.tfrecord")):
        for content in tf.data.TFRecordDataset(str(path)):
            example = tf.io.parse_single_example(content, data.FEATURES)
            examples.append((example["image/encoded"].numpy(), int(example["image/class/label"])))
    return examples


def test_every_picture_is_in_one_split_as_it_was(pictures: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert records.main([str(pictures), str(out), "--validation", "0.3", "--shard-size", "8"]) == 0
    train, validation = read(out, "train"), read(out, "validation")
    assert f"{len(train)} train, {len(validation)} validation examples" in capsys.readouterr().out
    assert (out / "labels.txt").read_text() == "grey\nred\n"
    expected = [
        (path.read_bytes(), int(path.parts[-2] == "red"))
        for path in pictures.rglob("*.*")
        if path.suffix != ".txt"
    ]
    assert sorted(train + validation) == sorted(expected)
    assert validation
    assert len(list(out.glob("train-*"))) == -(-len(train) // 8)
    assert [shard.records > 0 for shard in data.find(str(out), "train")]


def test_the_same_pictures_give_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        records.convert(pictures, tmp_path / name, validation=0.3)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_picture_moves_none_between_the_splits(pictures: Path, tmp_path: Path) -> None:
    records.convert(pictures, tmp_path / "before", validation=0.3)
    Image.new("RGB", (9, 9), "blue").save(pictures / "red" / "new.png")
    records.convert(pictures, tmp_path / "after", validation=0.3)
    for split in ("train", "validation"):
        before, after = (set(read(tmp_path / name, split)) for name in ("before", "after"))
        assert before <= after


def test_a_corrupt_picture_is_named_or_skipped(pictures: Path, tmp_path: Path, capsys) -> None:
    broken = pictures / "red" / "broken.png"
    broken.write_bytes((pictures / "red" / "0.png").read_bytes()[:40])
    out = tmp_path / "out"
    assert records.main([str(pictures), str(out)]) == 2
    assert f"error: {broken}: cannot be decoded" in capsys.readouterr().err
    assert not out.exists()
    assert records.main([str(pictures), str(out), "--skip-corrupt", "--validation", "0.3"]) == 0
    assert f"skipped: {broken}" in capsys.readouterr().err
    assert len(read(out, "train") + read(out, "validation")) == 40


def test_what_cannot_become_records_is_refused(pictures: Path, tmp_path: Path) -> None:
    (pictures / "empty").mkdir()
    with pytest.raises(records.RecordsError, match="empty: no pictures"):
        records.convert(pictures, tmp_path / "out")
    with pytest.raises(records.RecordsError, match="two or more folders"):
        records.convert(pictures / "red", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(records.RecordsError, match="exists"):
        records.convert(pictures, tmp_path / "out")


def test_pictures_of_any_size_and_colour_decode_to_one_shape(pictures: Path) -> None:
    for path in (pictures / "red" / "1.JPG", pictures / "grey" / "more" / "19.png"):
        image = data.decode(tf.constant(path.read_bytes()), 16)
        assert image.shape == (16, 16, 3)
        assert image.dtype == tf.uint8
    assert int(tf.reduce_min(image)) == int(tf.reduce_max(image)) == 95


def test_the_committed_smoke_records_are_what_the_script_makes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    namespace: dict = {
        "__name__": "script",
        "__file__": str(ROOT / "scripts/make_smoke_records.py"),
    }
    exec((ROOT / "scripts/make_smoke_records.py").read_text(), namespace)
    namespace["main"](tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in SMOKE.iterdir()}
    assert committed.pop("README.md")
    assert made == committed
    assert struct.unpack(">II", read(SMOKE, "train")[0][0][16:24]) == (8, 8)
