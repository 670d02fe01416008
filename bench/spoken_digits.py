"""Does it learn from sound? Ten spoken digits, told apart in voices that it has never heard.

    python -m bench.spoken_digits [--steps 800] [--seeds 3] [--keep DIR]

A speech synthesiser (espeak-ng, of Debian's package of that name) says zero to nine in seven
accents of English, in TRAINED voices for training and HELD_OUT ones for evaluation, at several
speeds and pitches. Everything else is as a user would do it: `trainer.records` with a CSV file,
`trainer.task`.
"""

import argparse
import contextlib
import csv
import io
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ACCENTS = ("en", "en-us", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-rp")
ACCENTS += ("en-gb-x-gbcwmd",)
TRAINED = ("m1", "m2", "m3", "m7", "f1", "f2", "f4", "klatt2")
HELD_OUT = ("m4", "m8", "f3", "f5", "klatt4")
SPEEDS, PITCHES = (130, 170, 210), (35, 60)
WAYS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "--shift 0.1 --noise 0.1 --erase 0.1": ("--shift", "0.1", "--noise", "0.1", "--erase", "0.1"),
}


def speak(folder: Path) -> None:
    """WAV files and sounds.csv: each voice says each word in each accent."""
    rows = []
    voices = {**dict.fromkeys(TRAINED, "train"), **dict.fromkeys(HELD_OUT, "validation")}
    for (voice, split), accent in itertools.product(voices.items(), ACCENTS):
        for word, speed in itertools.product(WORDS, SPEEDS if split == "train" else SPEEDS[1:2]):
            pitch = PITCHES[(len(rows) // len(WORDS)) % 2]
            name = f"{word}-{accent}-{voice}-{speed}-{pitch}.wav"
            rows.append((name, word, split, f"{accent}+{voice}", str(speed), str(pitch)))

    def say(row: Sequence[str]) -> None:
        name, word, _, voice, speed, pitch = row
        command = ["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "-w", str(folder / name)]
        subprocess.run([*command, word], check=True, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor() as pool:
        list(pool.map(say, rows))
    with (folder / "sounds.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("audio", "label", "split"), *(row[:3] for row in rows)])


def train(records: Path, job: Path, *options: str) -> tuple[float, float]:
    """Held-out accuracy of a run of `trainer.task`, and its seconds."""
    from trainer import task

    arguments = ["--records", str(records), "--job-dir", str(job), "--image-size", "64"]
    arguments += ["--schedule", "cosine", "--learning-rate", "0.003"]
    output, began = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(output):
        code = task.main([*arguments, *options])
    if code:
        raise RuntimeError(output.getvalue())
    summary = json.loads((job / "summary.json").read_text())
    return float(summary["evaluation"]["accuracy"]), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a new folder for sounds, records and jobs")
    given = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        parser.error("needs espeak-ng: apt-get install espeak-ng")
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "sounds").mkdir(parents=True)
        speak(folder / "sounds")
        from trainer.records import making

        if making.main([str(folder / "sounds/sounds.csv"), str(folder / "records")]):
            return 1
        told = json.loads((folder / "records/dataset.json").read_text())
        if told["duplicates"]["in_several_splits"][
            "sounds"
        ]:  # A voice that is not there is another.
            parser.error("this espeak-ng lacks some of the voices: what is held out would be heard")
        for way, options in WAYS.items():
            found = [
                train(
                    folder / "records",
                    folder / f"jobs/{way.replace(' ', '').replace('--', '-')}/{seed}",
                    *("--steps", str(given.steps), "--seed", str(seed), *options),
                )
                for seed in range(given.seeds)
            ]
            accuracies, seconds = zip(*found, strict=True)
            each = ", ".join(f"{one:.3f}" for one in accuracies)
            mean, longest = statistics.mean(accuracies), max(seconds)
            print(f"{way}: {mean:.3f} ({each}), {longest:.0f} s at most", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
