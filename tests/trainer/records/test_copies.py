"""Copies of a picture, and groups of pictures that belong together."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.trainer.records.folders import names, run
from trainer.options import UsageError
from trainer.records import sources
from trainer.records.conversion import preview
from trainer.records.plan import Options


def picture(seed: int, size: int = 96) -> Image.Image:
    """A picture of soft shapes, each seed another."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """12 pictures of each of two classes, a third of them for validation, none like another."""
    for number in range(24):
        split, name = ("valid", "train")[number % 3 > 0], ("cat", "dog")[number // 12]
        (tmp_path / "in" / split / name).mkdir(parents=True, exist_ok=True)
        picture(number).save(tmp_path / "in" / split / name / f"{number}.png")
    return tmp_path / "in"


def told(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[dict, list[str]]:
    assert run(source, tmp_path / "out") == 0
    found = json.loads((tmp_path / "out/dataset.json").read_text())["copies"]
    return found, capsys.readouterr().err.splitlines()


def test_pictures_that_are_no_copies_are_told_nothing_of(source: Path, tmp_path: Path, capsys):
    found, lines = told(source, tmp_path, capsys)
    assert [kind["pictures"] for kind in found.values()] == [0, 0, 0, 0]
    assert lines == []


def test_a_copy_in_another_class_is_told(source: Path, tmp_path: Path, capsys) -> None:
    (source / "train/dog/again.png").write_bytes((source / "train/cat/1.png").read_bytes())
    found, [line] = told(source, tmp_path, capsys)
    assert found["in_several_classes"]["named"] == [["train/cat/1.png", "train/dog/again.png"]]
    assert line == (
        "warning: 1 pictures have copies in another class (train/cat/1.png and "
        "train/dog/again.png, for one): one label is wrong"
    )


@pytest.mark.parametrize("how", ["smaller", "brighter", "jpeg"])
def test_a_near_copy_in_another_split_is_told(source: Path, tmp_path: Path, capsys, how: str):
    image = picture(1)
    match how:
        case "smaller":
            image = image.resize((50, 50))
        case "brighter":
            image = ImageEnhance.Brightness(image).enhance(1.1)
    image.save(source / f"valid/cat/again.{'jpg' if how == 'jpeg' else 'png'}", quality=60)
    found, [line] = told(source, tmp_path, capsys)
    assert found["near_in_several_splits"]["pictures"] == 1
    assert "1 pictures look like ones in another split (train/cat/1.png and valid/cat/again" in line


def test_pictures_of_one_colour_look_like_nothing(source: Path, tmp_path: Path, capsys) -> None:
    for number, split in enumerate(("train", "valid")):
        Image.new("RGB", (90, 90), (40, 90 + number, 0)).save(source / split / "cat/flat.png")
    assert told(source, tmp_path, capsys)[1] == []


# Groups


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """60 pictures of 12 videos, a class in each half of them."""
    rows = [("path", "label", "video")]
    for number in range(60):
        picture(number, 16).save(tmp_path / f"{number}.png")
        video = number // 5
        rows.append((f"{number}.png", ("cat", "dog")[video % 2], f"v{video}"))
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "list.csv"


def test_a_group_stays_in_one_split(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(videos, out, "--group-column", "Video", "--validation", 0.3) == 0
    seen = {
        split: {int(name.removesuffix(".png")) // 5 for name in names(out, split)}
        for split in ("train", "validation")
    }
    assert not seen["train"] & seen["validation"]
    assert len(seen["validation"]) == 4  # of 12, two of each class: 10 of 30 pictures
    alone = preview(videos, Options(validation=0.3, group_column="path"))
    assert alone == preview(videos, Options(validation=0.3))  # each picture is its own


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("patient", None, "has no column patient: its columns are path, label, video"),
        (
            "video",
            ("path,label,video", "path,label,split,video"),
            "group v0 is in validation and train",
        ),
    ],
)
def test_groups_that_cannot_be_kept_are_refused(
    videos: Path, column: str, change: tuple[str, str] | None, message: str
) -> None:
    if change:
        lines = videos.read_text().replace(*change).splitlines()
        for number, line in enumerate(lines[1:], start=1):
            path, label, video = line.split(",")
            lines[number] = f"{path},{label},{('train', 'val')[number % 2]},{video}"
        videos.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message):
        preview(videos, Options(group_column=column))


def test_a_folder_has_no_columns(source: Path) -> None:
    with pytest.raises(UsageError, match="--group-column: is for a CSV file"):
        sources.find(source, "video")
