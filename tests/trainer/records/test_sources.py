"""Sources: folders of splits, CSV files, and what is refused."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from tests.trainer.records.folders import names, read, run
from trainer.options import UsageError
from trainer.records import conversion
from trainer.records.plan import Options

pytestmark = pytest.mark.tensorflow


def as_csv(pictures: Path, to: Path) -> Path:
    rows = ["image,label"]
    rows += [
        f"{path.relative_to(to)},{'red' if 'red' in path.parts else 'grey'}"
        for path in pictures.rglob("*.*")
        if path.suffix in (".png", ".JPG")
    ]
    (to / "p.csv").write_text("\n".join(rows))
    return to / "p.csv"


def test_a_list_gives_the_pictures_of_its_folder(pictures: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "out", as_csv(pictures, tmp_path)
    conversion.convert(source, out, Options(encoding="png", workers=2, shard_size=6))
    found = read(out, "train") + read(out, "validation")
    seen = Counter((r["image/encoded"], r["image/class/label"]) for r in found)
    assert len(found) == 40
    for path in pictures.rglob("*.png"):
        assert seen[path.read_bytes(), int("red" in path.parts)]


def test_folders_of_splits_are_taken_as_they_are(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "divided"
    for name, kind in (("train", "red"), ("train", "grey"), ("val", "red"), ("test", "grey")):
        folder = source / name / kind
        folder.mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / f"{number}.png")
    assert run(source, tmp_path / "out") == 0
    assert sorted(names(tmp_path / "out", "train"))[0] == "train/grey/0.png"
    assert set(names(tmp_path / "out", "validation")) == {f"val/red/{n}.png" for n in range(3)}
    assert set(names(tmp_path / "out", "test")) == {f"test/grey/{n}.png" for n in range(3)}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("path,label\npictures/red/0.png,red\nnowhere.png,red", "p.csv, line 3: there is no"),
        ("image,label\npictures/red/0.png,red\npictures/red/0.png,grey", "is on line 2 already"),
        ("path,label\npictures/red/0.png,", "line 2: needs a path and a label"),
        ("path,label,split\npictures/red/0.png,red,later", "line 2: 'later' is not a split"),
        ("path,label\ngs://bucket/0.png,red", "line 2: .* copy the files to a disk first"),
        ("pictures/red/0.png,red", "p.csv: its first line has to name its columns"),
        ("", "is empty"),
    ],
)
def test_a_mistake_in_a_csv_file_is_named_with_its_line(
    rows: str, message: str, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.csv").write_text(rows)
    with pytest.raises(UsageError, match=message):
        conversion.convert(tmp_path / "p.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_become_records_is_refused(pictures: Path, tmp_path: Path) -> None:
    def refused(source: Path, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            conversion.convert(source, tmp_path / "out", Options(workers=1))
        assert not list(tmp_path.glob("*out*"))

    (pictures / "empty").mkdir()
    refused(pictures, "empty: no pictures in this class")
    refused(pictures / "red" / "more", "no pictures found")
    (pictures / "red" / "more").rmdir()
    refused(pictures / "red", "no pictures found")
    (tmp_path / "one" / "red").mkdir(parents=True)
    shutil.copy(pictures / "red" / "0.png", tmp_path / "one" / "red")
    refused(tmp_path / "one", r"two or more classes, a folder each; has 1 \(red\)")
    refused(tmp_path / "nowhere", "there is no such file")
    (tmp_path / "x.zip").touch()
    refused(tmp_path / "x.zip", "is not a folder or CSV file; unpack an archive first")
    (tmp_path / "out").mkdir()
    (pictures / "empty").rmdir()
    with pytest.raises(UsageError, match="exists"):
        conversion.convert(pictures, tmp_path / "out", Options(workers=1))
