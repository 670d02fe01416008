"""Does the trainer learn from sound? It tells ten spoken digits apart, in voices new to it.

    python -m bench.spoken_digits [--steps 800] [--seeds 3] [--keep DIR]

The speech synthesiser espeak-ng (Debian's package of that name) says zero to nine in seven accents
of English, at several speeds and pitches. The voices in TRAINED are for training, those in HELD_OUT
for evaluation. Then `trainer.records` reads a CSV file and `trainer.task` trains, as for a user.
"""

import argparse
import contextlib
import csv
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

from bench import held_out_accuracy

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ACCENTS = (
    "en",
    "en-us",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-rp",
    "en-gb-x-gbcwmd",
)
TRAINED = ("m1", "m2", "m3", "m7", "f1", "f2", "f4", "klatt2")
HELD_OUT = ("m4", "m8", "f3", "f5", "klatt4")
SPEEDS, PITCHES = (130, 170, 210), (35, 60)
WAYS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "--shift 0.1 --noise 0.1 --erase 0.1": ("--shift", "0.1", "--noise", "0.1", "--erase", "0.1"),
}


def speak(folder: Path) -> None:
    """Write WAV files and sounds.csv: each voice says each word in each accent."""
    rows: list[tuple[str, str, str, str, str, str]] = []
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
    common = ("--image-size", "64", "--schedule", "cosine", "--learning-rate", "0.003")
    began = time.monotonic()
    return held_out_accuracy(records, job, *common, *options), time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--keep", type=Path, help="keep sounds, records and jobs in this new folder"
    )
    given = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        parser.error("needs espeak-ng: apt-get install espeak-ng")
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "sounds").mkdir(parents=True)
        speak(folder / "sounds")
        from trainer.records import command

        if command.main([str(folder / "sounds/sounds.csv"), str(folder / "records")]):
            return 1
        told = json.loads((folder / "records/dataset.json").read_text())
        # espeak-ng takes another voice instead of a missing one, without saying so.
        if told["duplicates"]["in_several_splits"]["sounds"]:
            parser.error("this espeak-ng lacks some voices: training would hear held-out ones")
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
