"""Sources: folders of splits, CSV files, archives, and what is refused."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.trainer.records.folders import as_tar, as_zip, names, read, run
from trainer.records import conversion
from trainer.records.options import Options
from trainer.records.pictures import PictureForm
from trainer.records.sources import RecordsError


def as_csv(pictures: Path, to: Path) -> Path:
    rows = ["image,label"]
    rows += [
        f"{path.relative_to(to)},{'red' if 'red' in path.parts else 'grey'}"
        for path in pictures.rglob("*.*")
        if path.suffix in (".png", ".JPG")
    ]
    (to / "p.csv").write_text("\n".join(rows))
    return to / "p.csv"


@pytest.mark.parametrize(
    "packed",
    [
        as_zip,
        as_tar,
        lambda pictures, to: as_tar(pictures, to, "tgz", "w:gz"),
        lambda pictures, to: as_tar(pictures, to, "tar.xz", "w:xz"),
        as_csv,
    ],
    ids=["zip", "tar", "tgz", "tar.xz", "csv"],
)
def test_all_sources_give_the_same_pictures(
    packed: Callable[[Path, Path], Path], pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    source = packed(pictures, tmp_path)
    conversion.convert(source, out, Options(PictureForm("keep"), workers=2, shard_size=6))
    found = read(out, "train") + read(out, "validation")
    seen = Counter((r["image/encoded"], r["image/class/label"]) for r in found)
    assert seen == Counter(
        (path.read_bytes(), int("red" in path.parts))
        for path in pictures.rglob("*.*")
        if path.suffix in (".png", ".JPG")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["out", "pictures", source.name]
    )


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


def test_vertex_ais_csv_without_a_header(pictures: Path, tmp_path: Path) -> None:
    rows = [
        "TRAINING,pictures/red/0.png,red",
        "TRAINING,pictures/grey/more/1.png,grey",
        "VALIDATION,pictures/red/2.png,red",
    ]
    (tmp_path / "p.csv").write_text("\n".join(rows))
    assert run(tmp_path / "p.csv", tmp_path / "out") == 0
    assert names(tmp_path / "out", "validation") == ["pictures/red/2.png"]
    assert len(names(tmp_path / "out", "train")) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("path,label\npictures/red/0.png,red\nnowhere.png,red", "p.csv, line 3: there is no"),
        ("pictures/red/0.png,red\npictures/red/0.png,grey", "line 2: .* is on line 1 already"),
        ("pictures/red/0.png,", "line 1: needs a path and a label"),
        ("path,label,split\npictures/red/0.png,red,later", "line 2: 'later' is not a split"),
        ("gs://bucket/0.png,red", "line 1: .* copy the files to a disk first"),
        ("", "is empty"),
    ],
)
def test_a_mistake_in_a_csv_file_is_named_with_its_line(
    rows: str, message: str, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.csv").write_text(rows)
    with pytest.raises(RecordsError, match=message):
        conversion.convert(tmp_path / "p.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_become_records_is_refused(pictures: Path, tmp_path: Path) -> None:
    def refused(source: Path, message: str) -> None:
        with pytest.raises(RecordsError, match=message):
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
    (tmp_path / "x.zip").write_bytes(as_zip(pictures, tmp_path).read_bytes()[:-30])
    refused(tmp_path / "x.zip", "x.zip: is not a zip archive, or cut short")
    (tmp_path / "x.tgz").write_bytes(as_tar(pictures, tmp_path, "tgz", "w:gz").read_bytes()[:-30])
    refused(tmp_path / "x.tgz", "x.tgz: is not a tar archive, or cut short")
    (tmp_path / "x.doc").touch()
    refused(tmp_path / "x.doc", "is not a folder, CSV file or archive")
    (tmp_path / "out").mkdir()
    (pictures / "empty").rmdir()
    with pytest.raises(RecordsError, match="exists"):
        conversion.convert(pictures, tmp_path / "out", Options(workers=1))
