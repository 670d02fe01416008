"""Folders and CSV files into records: complete, reproducible, whole or not there."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from tests import ROOT
from tests.clock import until
from tests.trainer.records.folders import content, names, read, run
from tests.trainer.runs import SMOKE
from trainer.options import UsageError
from trainer.records import command, conversion
from trainer.records.plan import Options

pytestmark = pytest.mark.tensorflow


def test_every_picture_is_in_one_split(pictures: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert run(pictures, out, "--encoding", "png", "--validation", 0.3, "--shard-size", 8) == 0
    train, validation = read(out, "train"), read(out, "validation")
    assert capsys.readouterr().out == f"28 train, 12 validation examples in {out}\n"
    assert (out / "labels.txt").read_text() == "grey\nred\n"
    seen = Counter(
        (r["image/filename"].decode(), r["image/class/label"]) for r in train + validation
    )
    expected = [
        (path.relative_to(pictures).as_posix(), int("red" in path.parts))
        for path in pictures.rglob("*.*")
        if path.suffix in (".png", ".JPG")
    ]
    assert seen == Counter(expected)
    for record in train:
        name = record["image/filename"].decode()
        if name.endswith(".png"):
            assert record["image/encoded"] == (pictures / name).read_bytes()
    assert len(list(out.glob("train-*"))) == -(-len(train) // 8)
    dataset = json.loads((out / "dataset.json").read_text())
    assert dataset["classes"] == ["grey", "red"]
    assert dataset["statistics"]["width"] == {"least": 8, "most": 27}
    assert dataset["statistics"]["not_pictures"] == 1
    for split in dataset["splits"].values():
        assert split["records"] == sum(about["records"] for about in split["files"].values())
        for name, about in split["files"].items():
            assert (out / name).stat().st_size == about["bytes"]
    assert sorted(tmp_path.iterdir()) == [out, pictures]


def test_another_picture_moves_at_most_one_of_its_class(pictures: Path, tmp_path: Path) -> None:
    conversion.convert(pictures, tmp_path / "before", Options(validation=0.3, workers=1))
    Image.new("RGB", (9, 9), "blue").save(pictures / "red" / "new.png")
    conversion.convert(pictures, tmp_path / "after", Options(validation=0.3, workers=1))
    before, after = (set(names(tmp_path / name, "validation")) for name in ("before", "after"))
    assert len(before - after) <= 1
    assert {name for name in before ^ after if name.startswith("grey")} == set()


def test_a_record_has_its_pictures_size_and_dataset_json_what_a_reader_can_rely_on(
    pictures: Path, tmp_path: Path
) -> None:
    square = ("--resize", 8, "--square")
    for encoding, options, expected in (
        ("jpeg", (), [8, 12, 27]),
        ("jpeg", square, [8, 8, 8]),
        ("png", square, [0, 0, 0]),
    ):
        out = tmp_path / f"{encoding}{len(options)}"
        assert run(pictures, out, "--encoding", encoding, *options) == 0
        splits = json.loads((out / "dataset.json").read_text())["splits"]
        sides = [about["jpeg"] for split in splits.values() for about in split["files"].values()]
        least, most, longest = zip(*sides, strict=True)
        assert [min(least), max(most), max(longest)] == expected
        for record in read(out, "train"):
            with Image.open(io.BytesIO(record["image/encoded"])) as image:
                assert (record["image/width"], record["image/height"]) == image.size


def test_any_number_of_processes_gives_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        options = Options(shard_size=4, workers=workers)
        conversion.convert(pictures, tmp_path / str(workers), options)
    assert content(tmp_path / "1") == content(tmp_path / "3")


def test_class_numbers_can_be_given(pictures: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "labels").write_text("red\nblue\ngrey\n")
    assert run(pictures, tmp_path / "out", "--labels", tmp_path / "labels") == 0
    assert (tmp_path / "out/labels.txt").read_text() == "red\nblue\ngrey\n"
    assert {r["image/class/label"] for r in read(tmp_path / "out", "train")} == {0, 2}
    (tmp_path / "labels").write_text("red\nblue\n")
    assert run(pictures, tmp_path / "more", "--labels", tmp_path / "labels") == 2
    assert "class 'grey' is not in --labels" in capsys.readouterr().err


def test_numbers_as_class_names_are_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "9", "2"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (4, 4)).save(tmp_path / "in" / name / f"{number}.png")
    run(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out/labels.txt").read_text() == "2\n9\n10\n"


# What goes wrong


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corrupt_picture_ends_the_run_or_is_skipped(
    pictures: Path, tmp_path: Path, capsys, workers: int
) -> None:
    (pictures / "red" / "broken.png").write_bytes((pictures / "red/0.png").read_bytes()[:40])
    out = tmp_path / "out"
    options = ("--workers", str(workers), "--shard-size", "5")
    assert command.main([str(pictures), str(out), *options]) == 2
    assert "error: cannot be read: red/broken.png: " in capsys.readouterr().err
    assert not out.exists()
    assert command.main([str(pictures), str(out), *options, "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert "skipped: red/broken.png: " in captured.err
    assert "and 1 skipped" in captured.out
    assert len(read(out, "train") + read(out, "validation")) == 40
    [skipped] = json.loads((out / "dataset.json").read_text())["skipped"]
    assert skipped.startswith("red/broken.png: ")


@pytest.mark.parametrize(
    "wrong", [("--validation", "1.5"), ("--quality", "0"), ("--square",), ("--workers", "-1")]
)
def test_a_wrong_option_is_refused(wrong: tuple[str, ...], tmp_path: Path, capsys) -> None:
    assert command.main([*wrong, str(tmp_path), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {wrong[0]}")


def test_copies_in_two_splits_are_reported(pictures: Path, tmp_path: Path, capsys) -> None:
    original = pictures / "grey/more/3.png"
    for number in range(8):
        (pictures / "grey" / f"copy{number}.png").write_bytes(original.read_bytes())
    assert run(pictures, tmp_path / "out", "--validation", 0.5) == 0
    warning = "warning: 1 pictures have copies in another split (grey/copy0.png and"
    assert warning in capsys.readouterr().err
    found = json.loads((tmp_path / "out/dataset.json").read_text())["copies"]
    [copies] = found["in_several_splits"]["named"]
    assert len(copies) == 9


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_leaves_no_folder_and_the_next_one_makes_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    noise = random.Random(0)
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for index in range(60):
            image = Image.frombytes("RGB", (300, 300), noise.randbytes(270_000))
            image.save(tmp_path / "in" / name / f"{index}.png", compress_level=0)
    command = [sys.executable, "-m", "trainer.records", tmp_path / "in", tmp_path / "out"]
    command += ["--shard-size", "4", "--workers", "2"]
    partial = tmp_path / "out.partial"
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE)
    until(lambda: len(list(partial.glob("*.tfrecord"))) >= 5)
    process.send_signal(number)
    assert process.wait() in (-number, 128 + number)
    assert not (tmp_path / "out").exists()
    assert run(tmp_path / "in", tmp_path / "out", "--shard-size", 4) == 0
    conversion.convert(tmp_path / "in", tmp_path / "whole", Options(shard_size=4, workers=1))
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    # No worker outlived the killed one and wrote more.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "whole"]


def test_the_second_of_two_runs_is_refused(pictures: Path, tmp_path: Path) -> None:
    def second(*_: int) -> None:
        with pytest.raises(UsageError, match="another run is writing there"):
            conversion.convert(pictures, tmp_path / "out", Options(workers=1))

    conversion.convert(pictures, tmp_path / "out", Options(workers=1), second)
    assert len(names(tmp_path / "out", "train")) == 36
    with pytest.raises(UsageError, match="out: exists; records are written to a new folder"):
        conversion.convert(pictures, tmp_path / "out", Options(workers=1))


def test_help_needs_neither_tensorflow_nor_pillow() -> None:
    code = (
        "import sys\nfrom trainer.records import command\n"
        "try: command.main(['--help'])\nexcept SystemExit: pass\n"
        "sys.exit(bool({'tensorflow', 'PIL', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ})
    assert done.returncode == 0


def test_the_committed_smoke_records_are_what_the_script_makes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    namespace: dict = {
        "__name__": "script",
        "__file__": str(ROOT / "tools/make_smoke_records.py"),
    }
    exec((ROOT / "tools/make_smoke_records.py").read_text(), namespace)
    namespace["main"](tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in SMOKE.iterdir()}
    assert committed.pop("README.md")
    assert made == committed


# Sources: folders of splits, CSV files, and what is refused


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


def test_folders_of_splits_are_taken_as_they_are(tmp_path: Path) -> None:
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
    refused(pictures / "red", "20 pictures lie in no class's folder")
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
