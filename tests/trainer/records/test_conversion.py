"""Folders, CSV files and archives into records: complete, reproducible, resumed after a kill."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.trainer.records.folders import content, names, read, run
from tests.trainer.runs import ROOT, SMOKE
from trainer.records import command, conversion
from trainer.records.options import Options
from trainer.records.pictures import PictureForm
from trainer.records.sources import RecordsError


def test_every_picture_is_in_one_split(pictures: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert run(pictures, out, "--encoding", "keep", "--validation", 0.3, "--shard-size", 8) == 0
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
        assert (
            record["image/encoded"] == (pictures / record["image/filename"].decode()).read_bytes()
        )
    assert len(list(out.glob("train-*"))) == -(-len(train) // 8)
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
        ("keep", (), [0, 0, 0]),
        ("png", square, [0, 0, 0]),
    ):
        out = tmp_path / f"{encoding}{len(options)}"
        assert run(pictures, out, "--encoding", encoding, *options) == 0
        splits = json.loads((out / "dataset.json").read_text())["splits"]
        files = [told for split in splits.values() for told in split["files"].values()]
        found = [told["jpeg"] for told in files]
        least, most, longest = zip(*found, strict=True)
        assert [min(least), max(most), max(longest)] == expected
        for record in read(out, "train"):
            with Image.open(io.BytesIO(record["image/encoded"])) as image:
                assert (record["image/width"], record["image/height"]) == image.size


def test_any_number_of_processes_gives_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    for workers in (1, 3):
        options = Options(shard_size=4, workers=workers)
        conversion.convert(pictures, tmp_path / str(workers), options)
    assert content(tmp_path / "1") == content(tmp_path / "3")


def test_a_second_run_does_nothing(pictures: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert run(pictures, out) == 0
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    capsys.readouterr()
    assert run(pictures, out) == 0
    assert "there already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert run(pictures, out, "--quality", 80) == 2
    assert f"error: {out}: exists" in capsys.readouterr().err


def test_the_folder_says_what_is_in_it(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "out", "--shard-size", 10)
    dataset = json.loads((tmp_path / "out/dataset.json").read_text())
    assert dataset["classes"] == ["grey", "red"]
    for split in dataset["splits"].values():
        for name, about in split["files"].items():
            assert (tmp_path / "out" / name).stat().st_size == about["bytes"]
        assert split["records"] == sum(about["records"] for about in split["files"].values())
    statistics = dataset["statistics"]
    assert statistics["width"] == {"least": 8, "median": 18, "mean": 17.5, "most": 27}
    assert statistics["pictures"]["grey"] == 20
    assert statistics["pictures"]["format JPEG"] == 10
    assert statistics["not_pictures"] == 1


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
    "wrong",
    [
        ("--validation", "1.5"),
        ("--quality", "0"),
        ("--square",),
        ("--background", "transparentish"),
        ("--shard-size", "0"),
    ],
)
def test_a_wrong_option_is_refused(wrong: tuple[str, ...], tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main([str(tmp_path), str(tmp_path / "out"), *wrong])
    assert stopped.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_copies_are_reported_and_kept_on_one_side_if_asked(pictures: Path, tmp_path: Path) -> None:
    original = pictures / "grey/more/3.png"
    for number in range(8):
        (pictures / "grey" / f"copy{number}.png").write_bytes(original.read_bytes())
    (pictures / "red" / "wrong.png").write_bytes(original.read_bytes())
    options = Options(validation=0.5, workers=1)
    result = conversion.convert(pictures, tmp_path / "name", options)
    assert "are copies of one in another split: see --split-by content" in result.warnings[0]
    assert "are copies of one with another label" in result.warnings[1]
    (pictures / "red" / "wrong.png").unlink()
    result = conversion.convert(
        pictures, tmp_path / "content", Options(validation=0.5, workers=2, split_by="content")
    )
    assert result.warnings == ()
    dataset = json.loads((tmp_path / "content/dataset.json").read_text())
    assert dataset["duplicates"]["all"]["pictures"] == 8


# Killed and restarted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, number: signal.Signals) -> None:
    noise = random.Random(0)
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for index in range(60):
            image = Image.frombytes("RGB", (300, 300), noise.randbytes(270_000))
            image.save(tmp_path / "in" / name / f"{index}.png", compress_level=0)
    conversion.convert(tmp_path / "in", tmp_path / "whole", Options(shard_size=4, workers=1))

    command = [sys.executable, "-m", "trainer.records", tmp_path / "in", tmp_path / "out"]
    command += ["--shard-size", "4", "--workers", "2"]
    partial = tmp_path / "out.partial"
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(list(partial.glob("*.json"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    assert process.wait() in (-number, 128 + number)
    made = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.tfrecord.json")}
    assert 5 <= len(made) < 31
    assert not (tmp_path / "out").exists()

    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of them from the run before" in done.stdout
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    # No worker outlived the killed one and wrote more.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "whole"]


def test_only_what_is_whole_and_of_the_same_pictures_is_taken_over(
    pictures: Path, tmp_path: Path
) -> None:
    class Stopped(Exception):  # noqa: N818
        pass

    def stop_at(count: int) -> Callable[[conversion.Conversion], None]:
        def tell(progress: conversion.Conversion) -> None:
            if progress.done >= count:
                raise Stopped

        return tell

    options = Options(shard_size=5, workers=1)
    with pytest.raises(Stopped):
        conversion.convert(pictures, tmp_path / "out", options, stop_at(25))
    first, second, *_ = sorted((tmp_path / "out.partial").glob("*.tfrecord"))
    first.write_bytes(first.read_bytes()[:-1])
    damaged = bytearray(second.read_bytes())
    damaged[100] ^= 1
    second.write_bytes(damaged)
    result = conversion.convert(pictures, tmp_path / "out", options)
    assert 0 < result.taken_over < 20
    conversion.convert(pictures, tmp_path / "whole", options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")

    with pytest.raises(Stopped):
        conversion.convert(pictures, tmp_path / "other", options, stop_at(25))
    other = Options(PictureForm(quality=50), shard_size=5, workers=1)
    assert conversion.convert(pictures, tmp_path / "other", other).taken_over == 0


def test_two_runs_at_once_do_not_disturb_each_other(pictures: Path, tmp_path: Path) -> None:
    def second(_: conversion.Conversion) -> None:
        with pytest.raises(RecordsError, match="another run is writing there"):
            conversion.convert(pictures, tmp_path / "out", Options(workers=1))

    conversion.convert(pictures, tmp_path / "out", Options(workers=1), second)
    assert len(names(tmp_path / "out", "train")) == 36


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
        "__file__": str(ROOT / "scripts/make_smoke_records.py"),
    }
    exec((ROOT / "scripts/make_smoke_records.py").read_text(), namespace)
    namespace["main"](tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in SMOKE.iterdir()}
    assert committed.pop("README.md")
    assert made == committed
