"""Pictures into TFRecords: `python -m trainer.records SOURCE OUT`.

    SOURCE                         OUT
    cat/1.jpg                      labels.txt                          cat, dog
    cat/2.png      --->            train-00000-of-00002.tfrecord
    dog/1.jpg                      validation-00000-of-00001.tfrecord
                                   dataset.json                        counts, sizes, options

SOURCE is a folder of class folders (also below train/ and validation/), or a CSV file of paths and
labels. Pictures are stored as a person sees them, in the form that decodes fastest. The same source
gives the same bytes, with any number of processes. OUT appears in one move when it is complete.

Exit codes: 0 done; 1 a fault of the program; 2 what was given cannot be right; 130 and 143 stopped.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from trainer.records.conversion import convert
from trainer.records.pictures import ENCODINGS, PictureForm
from trainer.records.plan import SHARD_SIZE, Options
from trainer.records.sources import RecordsError

SECONDS = 10.0
"""Between two lines about progress; on a terminal, one line is written over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, print the outcome, and return the exit code."""
    given = _parse(arguments)

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
    try:
        options = Options(
            form=PictureForm(given.encoding, given.quality, given.resize, given.square),
            validation=given.validation,
            shard_size=given.shard_size,
            skip=given.on_error == "skip",
            labels=_labels(given.labels) if given.labels else (),
            workers=given.workers,
        )
        content = convert(given.source, given.out, options, _Progress().show)
    except (RecordsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for problem in content["skipped"]:
        print(f"skipped: {problem}", file=sys.stderr)
    copies = content["copies_in_several_splits"]
    for first, other, *_ in copies["named"][:1]:
        text = f"{copies['pictures']} pictures have copies in another split"
        text += f" ({first} and {other}, for one), which an evaluation flatters"
        print(f"warning: {text}", file=sys.stderr)
    counts = [f"{split['records']} {name}" for name, split in content["splits"].items()]
    skipped = f" and {len(content['skipped'])} skipped" if content["skipped"] else ""
    print(f"{', '.join(counts)} examples{skipped} in {given.out}")
    return 0


class _Progress:
    """Shows on stderr how far a conversion is."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now, terminal, last = time.monotonic(), sys.stderr.isatty(), done == total
        if not (terminal and last) and now - self._last < (0.1 if terminal else SECONDS):
            return
        self._last = now
        rate = done / max(now - self._began, 1e-9)
        text = f"pictures {done:,} of {total:,}, {rate:,.0f} a second"
        end = "\n" if last or not terminal else ""
        sys.stderr.write(("\r\033[K" if terminal else "") + text + end)
        sys.stderr.flush()


def _labels(path: Path) -> tuple[str, ...]:
    labels = tuple(path.read_text().splitlines())
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise RecordsError(f"{path}: needs names, a line each, no two equal")
    return labels


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked arguments."""
    parser = argparse.ArgumentParser(prog="python -m trainer.records", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("source", type=Path, help="folder of class folders, or CSV file")
    add("out", type=Path, help="new folder")
    add("--encoding", choices=ENCODINGS, default="jpeg", help="jpeg (small), png (no loss)")
    add("--quality", type=int, default=90, help="of JPEGs, 1 to 100 (90)")
    add(
        "--resize",
        type=int,
        metavar="N",
        help="pixels of the shorter side; never enlarges. With --square: of the square that the "
        "whole picture becomes",
    )
    add(
        "--square",
        action="store_true",
        help="squares of --resize pixels; training with --image-size of the same number then "
        "resizes nothing",
    )
    add("--validation", type=float, default=0.1, help="share of each class held out (0.1)")
    add(
        "--labels",
        type=Path,
        help="file of the names of classes or values, label 0 first (default: classes sorted)",
    )
    add("--shard-size", type=int, help=f"most examples a file ({SHARD_SIZE}, fewer for few)")
    add(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="a picture that cannot be read ends the run, or is named and left out",
    )
    add("--workers", type=int, default=0, help="processes (one a core)")
    given = parser.parse_args(arguments)
    if not 0 < given.validation < 1:
        parser.error("--validation is between 0 and 1")
    if given.square and not given.resize:
        parser.error("--square needs --resize: all pictures then have one size")
    for name, least, most in (
        ("shard_size", 1, 10**9),
        ("quality", 1, 100),
        ("resize", 1, 65535),
        ("workers", 0, 1024),
    ):
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')} is between {least:g} and {most:g}")
    return given
