"""Folders as people name them: which are splits, which are classes, and what is neither."""

from pathlib import Path

import pytest
from PIL import Image

from tests.trainer.records.folders import run
from trainer.options import UsageError
from trainer.records import sources
from trainer.records.conversion import preview
from trainer.records.plan import Options


def fill(source: Path, *folders: str, suffix: str = ".png", count: int = 4) -> Path:
    """Write `count` pictures into each folder of a source."""
    for number, folder in enumerate(folders):
        (source / folder).mkdir(parents=True, exist_ok=True)
        for n in range(count):
            name = source / folder / f"{n}{suffix}"
            Image.new("RGB", (9, 9), (n, number, 7)).save(name, None if suffix else "png")
    return source


def divided(source: Path, *splits: str) -> Path:
    return fill(source, *(f"{split}/{name}" for split in splits for name in ("cat", "dog")))


@pytest.mark.parametrize(
    "names",
    [
        ("train", "valid", "test"),
        ("Training", "Validation", "Testing"),
        ("TRAIN", "dev", "Test"),
        ("training", "eval", "test"),
        ("train", "val", "test"),
    ],
)
def test_splits_are_known_by_the_names_that_people_give_them(
    names: tuple[str, str, str], tmp_path: Path
) -> None:
    counts = preview(divided(tmp_path / "set", *names), Options())
    assert counts == {split: {"cat": 4, "dog": 4} for split in ("train", "validation", "test")}


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("train/cat", "train/dog", "val/cat", "unlabeled"), "unlabeled is not a split; move"),
        (("train/cat", "train/dog", "cat", "dog"), "train is a split .* and cat is not a split"),
        (("train", "val"), "train, val are names of splits, and have no folders of classes"),
        (("train", "unlabeled"), "train are names of splits, and have no folders"),
        (("val/cat", "val/dog", "test/cat"), "has the split test, and no folder train"),
        (("Set A/cat", "Set A/dog", "Set B/cat"), "Set A: has pictures in folders below it only"),
        (("train/Set A/cat", "val/Set A/dog"), "train/Set A: has pictures in folders below"),
        (
            ("images/train/cat", "images/val/cat"),
            r"images: .*; give \S+/set/images in place",
        ),
        ((".",), r"set: \d pictures lie in no class's folder \(\S+\); put each class's"),
    ],
)
def test_what_may_be_splits_is_refused_and_not_learnt_as_classes(
    folders: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        preview(fill(tmp_path / "set", *folders), Options())


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    counts = preview(fill(tmp_path / "set", "bus", "car", "train"), Options())
    assert counts["train"] == {"bus": 3, "car": 3, "train": 3}


def test_the_only_picture_of_a_class_is_for_training(tmp_path: Path) -> None:
    source = fill(fill(tmp_path / "set", "cat", "dog"), "bird", count=1)
    assert preview(source, Options())["train"] == {"cat": 3, "dog": 3, "bird": 1}


def test_a_linked_folder_is_a_class(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", "dogs")
    source = fill(tmp_path / "set", "cat")
    (source / "dog").symlink_to(tmp_path / "elsewhere" / "dogs")
    assert preview(source, Options())["train"] == {"cat": 3, "dog": 3}


@pytest.mark.parametrize("suffix", [".avif", ".jp2", ".pgm", ".PNG", ""])
def test_a_picture_is_known_by_its_suffix_or_its_first_bytes(suffix: str, tmp_path: Path) -> None:
    source = fill(fill(tmp_path / "set", "cat", suffix=suffix), "dog")
    assert preview(source, Options())["train"] == {"cat": 3, "dog": 3}


def test_what_is_left_out_is_counted_by_kind_and_named(tmp_path: Path, capsys) -> None:
    source = fill(tmp_path / "set", "cat", "dog")
    (source / "cat" / "0.heic").write_bytes(b"?")
    (source / "cat" / "1.heic").write_bytes(b"?")
    (source / "dog" / "README").write_text("no picture")
    assert sources.find(source).left_out == ("cat/0.heic", "cat/1.heic", "dog/README")
    assert run(source, tmp_path / "out") == 0
    shown = "3 files are left out (2 .heic, 1 without a suffix), cat/0.heic for one"
    assert f"warning: {shown}" in capsys.readouterr().err


def test_a_class_that_one_split_lacks_is_told(tmp_path: Path, capsys) -> None:
    source = divided(tmp_path / "set", "train", "valid")
    fill(source, "valid/bird", count=2)
    assert run(source, tmp_path / "out") == 0
    warning = "warning: class bird has no picture for train, and 2 for validation"
    assert warning in capsys.readouterr().err


def test_a_dry_run_shows_the_splits_by_classes_and_writes_nothing(tmp_path: Path, capsys) -> None:
    source = divided(tmp_path / "set", "Training", "valid")
    assert run(source, tmp_path / "out", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "class      train validation",
        "cat            4          4",
        "dog            4          4",
    ]
    assert not (tmp_path / "out").exists()


# CSV files as people write them


@pytest.mark.parametrize(
    ("text", "target", "labels"),
    [
        ("filename;label\na.png;cat\nb.png;dog\n", "class", ["cat", "dog"]),
        ("file_name\tclass\r\na.png\tcat\r\nb.png\tdog\r\n", "class", ["cat", "dog"]),
        ('image,label,note\na.png,cat,"two\nlines"\nb.png,dog,\n', "class", ["cat", "dog"]),
        ("image_path,Cat,Dog,split\na.png,1,1,train\nb.png,0,0,val\n", "labels", ["Cat|Dog", ""]),
        ("path,Cat,Dog\na.png,1.0,0.0\nb.png,0.0,1.0\n", "class", ["Cat", "Dog"]),
    ],
)
def test_a_csv_file_is_read_as_people_write_it(
    text: str, target: str, labels: list[str], tmp_path: Path
) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    (tmp_path / "p.csv").write_bytes(text.encode())
    found = sources.find(tmp_path / "p.csv")
    assert (found.target, [item.label for item in found.items]) == (target, labels)


def test_a_mistake_is_named_with_the_line_that_its_row_begins_on(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "p.csv").write_text('path,label\na.png,"two\nlines"\nb.png,cat\n')
    with pytest.raises(UsageError, match=r"p.csv, line 4: there is no .*b.png"):
        sources.find(tmp_path / "p.csv")


def test_a_column_that_is_no_label_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "p.csv").write_text("path,Cat,Age\na.png,1,42\n")
    with pytest.raises(
        UsageError, match=r"line 2: Age is '42', and a column of a label has 0 or 1"
    ):
        sources.find(tmp_path / "p.csv")
