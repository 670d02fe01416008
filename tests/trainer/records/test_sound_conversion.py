"""Folders, CSV files and archives of sounds into records. No TensorFlow."""

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

soundfile = pytest.importorskip("soundfile")

from tests.trainer.records.folders import content, read, run  # noqa: E402


def tone(path: Path, hertz: float, seconds: float, rate: int = 16000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.5 * np.sin(hertz * np.arange(int(seconds * rate)) / rate * 6.28), rate)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """20 low and 20 high tones of 0.1 to 0.29 s, in four formats and at three rates."""
    folder = tmp_path / "clips"
    for name, hertz in (("low", 200), ("high", 2000)):
        for number in range(20):
            suffix = ("wav", "flac", "OGG", "mp3")[number % 4]
            rate = (16000, 8000, 44100)[number % 3]
            tone(folder / name / f"{number}.{suffix}", hertz, 0.1 + number / 100, rate)
    (folder / "low" / "notes.txt").write_text("not a sound")
    return folder


def dataset(out: Path) -> dict[str, Any]:
    return json.loads((out / "dataset.json").read_text())


def refused(capsys: Any, *arguments: object) -> str:
    """The one line that a run with these arguments prints before it exits with 2."""
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_every_sound_is_in_one_split_as_wav(clips: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert run(clips, out, "--validation", 0.25, "--seconds", 0.2) == 0
    told = dataset(out)
    lengths = {key: told["statistics"][key] for key in ("longer", "shorter")}
    assert capsys.readouterr().out == (
        "30 train, 10 validation examples in {out}: 0.2 s of each heard ({longer} are longer, "
        "{shorter} shorter)\n".format(**lengths, out=out)
    )
    assert 15 <= lengths["longer"] <= 25
    train, validation = read(out, "train"), read(out, "validation")
    assert sorted(record["audio/filename"].decode() for record in train + validation) == sorted(
        path.relative_to(clips).as_posix() for path in clips.rglob("*.*") if path.suffix != ".txt"
    )
    for record in train + validation:
        wav, name = record["audio/encoded"], record["audio/filename"].decode()
        assert record["audio/class/label"] == ("high", "low").index(name.split("/")[0])
        assert wav[:4] == b"RIFF"
        assert int.from_bytes(wav[24:28], "little") == 16000
        assert not [key for key in record if key.startswith("image/")]
    assert (told["kind"], told["form"]) == ("sounds", {"rate": 16000, "seconds": 0.2})
    assert told["splits"]["train"]["classes"] == {"high": 15, "low": 15}
    assert set(next(iter(told["splits"]["train"]["files"].values()))) == {
        "records",
        "bytes",
        "sha256",
    }


def test_the_folder_says_what_is_in_it(clips: Path, tmp_path: Path) -> None:
    assert run(clips, tmp_path / "out") == 0
    told = dataset(tmp_path / "out")
    seconds = told["statistics"]["seconds"]
    assert seconds["least"] == pytest.approx(0.1, abs=0.002)
    assert seconds["most"] == pytest.approx(0.29, abs=0.06)  # MP3 comes in frames
    assert told["form"]["seconds"] == pytest.approx(seconds["most"], abs=0.001), "all of each"
    assert told["statistics"]["longer"] == 0
    assert told["statistics"]["shorter"] > 30
    facts = told["statistics"]["sounds"]
    assert facts["format FLAC PCM_16"] == 10
    assert facts["44100 samples a second to 16000"] == 12
    assert told["statistics"]["not_sounds"] == 1
    assert told["statistics"]["silent"] == {"sounds": 0, "named": []}
    assert told["duplicates"]["all"]["sounds"] == 0


def test_long_ones_are_kept_whole_and_ten_seconds_are_heard(tmp_path: Path) -> None:
    for name, seconds in (("a/1", 1), ("a/2", 2), ("b/1", 1), ("b/2", 12)):
        tone(tmp_path / "in" / f"{name}.wav", 100, seconds, 8000)
    assert run(tmp_path / "in", tmp_path / "out", "--validation", 0.5, "--rate", 8000) == 0
    everything = read(tmp_path / "out", "train") + read(tmp_path / "out", "validation")
    assert max(len(record["audio/encoded"]) for record in everything) == 44 + 2 * 12 * 8000
    assert dataset(tmp_path / "out")["form"] == {"rate": 8000, "seconds": 10.0}


def test_what_is_heard_changes_no_record(clips: Path, tmp_path: Path, capsys) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    assert run(clips, out) == run(clips, other, "--seconds", 0.1) == 0
    first, second = content(out), content(other)
    assert first.pop("dataset.json") != second.pop("dataset.json")
    assert first == second
    capsys.readouterr()
    assert run(clips, out) == 0
    assert "there already" in capsys.readouterr().out
    assert "exists" in refused(capsys, clips, out, "--seconds", 0.1)


def test_pictures_and_sounds_together_are_refused_by_name(
    clips: Path, tmp_path: Path, capsys
) -> None:
    Image.new("RGB", (4, 4)).save(clips / "low" / "cover.jpg")
    error = refused(capsys, clips, tmp_path / "out")
    assert "has pictures (low/cover.jpg) and sounds (high/0.wav): give" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips"]


def test_options_of_the_other_kind_are_refused(clips: Path, tmp_path: Path, capsys) -> None:
    for option in (("--resize", 64), ("--quality", 80), ("--encoding", "png")):
        error = refused(capsys, clips, tmp_path / "out", *option)
        assert "has sounds (high/0.wav): --encoding" in error
        assert f"{option[0]}" in error
        assert "are of pictures" in error
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "in" / name / "1.png")
    error = refused(capsys, tmp_path / "in", tmp_path / "out", "--rate", 8000)
    assert "has pictures (a/1.png): --rate and --seconds are of sounds" in error
    with pytest.raises(SystemExit, match="2"):
        run(clips, tmp_path / "out", "--rate", 8000, "--quality", 80)
    assert "--quality is of pictures and --rate of sounds" in capsys.readouterr().err
    for option, value in (("--rate", 10), ("--seconds", 0), ("--seconds", 601)):
        with pytest.raises(SystemExit, match="2"):
            run(clips, tmp_path / "out", option, value)
        assert f"{option} is between" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips", "in"]


def test_what_cannot_be_heard_ends_the_run_or_is_left_out(
    clips: Path, tmp_path: Path, capsys
) -> None:
    (clips / "high" / "a.wav").write_bytes(b"no sound")
    (clips / "high" / "b.wav").write_bytes((clips / "high" / "0.wav").read_bytes()[:600])
    (clips / "low" / "c.mp3").write_bytes(b"")
    soundfile.write(clips / "low" / "d.wav", np.zeros(0), 16000)
    assert "cannot be read: " in refused(capsys, clips, tmp_path / "out")
    assert run(clips, tmp_path / "out", "--on-error", "skip") == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "skipped: high/a.wav: not a sound that libsndfile knows",
        "skipped: high/b.wav: is cut short",
        "skipped: low/c.mp3: is empty",
        "skipped: low/d.wav: has no samples",
    ]
    assert "and 4 skipped" in captured.out
    assert sum(s["records"] for s in dataset(tmp_path / "out")["splits"].values()) == 40


def test_without_the_libraries_it_says_how_to_get_them(
    clips: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **given: Any) -> Any:
        if name == "soxr":
            raise ImportError("No module named 'soxr'")
        return real(name, *more, **given)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install soundfile soxr" in refused(capsys, clips, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips"]
