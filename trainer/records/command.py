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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.options import Section, UsageError, read
from trainer.records.conversion import convert, preview
from trainer.records.plan import Options

SECONDS = 10.0
"""Between two lines about progress; on a terminal, one line is written over."""
_option = Section("what is read and written")


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """Says what is converted."""

    source: str = _option(..., "folder of class folders, or CSV file", positional=True)
    out: str = _option(..., "new folder", positional=True)
    upload: str = _option(
        "",
        "folder to copy the records to, such as gs://bucket/cats; needs TensorFlow",
        metavar="URL",
    )
    dry_run: bool = _option(
        False, "say how many pictures of each class each split would have, and end", bare=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, print the outcome, and return the exit code."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
    try:
        given = read(
            Request,
            sys.argv[1:] if arguments is None else arguments,
            prog="python -m trainer.records",
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        request = Request(**given)
        if request.square and not request.resize:
            raise UsageError("--square needs --resize: all pictures then have one size")
        if request.dry_run:
            print(_table(preview(Path(request.source), request)))
            return 0
        if request.upload:
            from trainer.records.upload import check, upload

            check(request.upload)
        content = convert(Path(request.source), Path(request.out), request, _Progress().show)
        if request.upload:
            upload(Path(request.out), request.upload)
    except (UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for problem in content["skipped"]:
        print(f"skipped: {problem}", file=sys.stderr)
    for text in _warnings(content):
        print(f"warning: {text}", file=sys.stderr)
    counts = [f"{split['records']} {name}" for name, split in content["splits"].items()]
    skipped = f" and {len(content['skipped'])} skipped" if content["skipped"] else ""
    print(f"{', '.join(counts)} examples{skipped} in {request.out}")
    return 0


def _warnings(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what dataset.json says that its reader may not expect."""
    left_out = content["left_out"]
    for kind, copies in content["copies"].items():
        for first, other, *_ in copies["named"][:1]:
            where = f"another {'split' if 'splits' in kind else 'class'}"
            alike = "look like ones" if "near" in kind else "have copies"
            why = (
                "an evaluation is better than the model"
                if "splits" in kind
                else "one label is wrong"
            )
            text = f"{copies['pictures']} pictures {alike} in {where}"
            yield f"{text} ({first} and {other}, for one): {why}"
    if left_out["named"]:
        kinds = (
            f"{count} {kind or 'without a suffix'}" for kind, count in left_out["kinds"].items()
        )
        count = content["statistics"]["not_pictures"]
        text = f"{count} files are left out ({', '.join(kinds)}), {left_out['named'][0]} for one"
        yield f"{text}: they are no pictures, or lie in no class"
    if content["target"] == "class":
        splits = content["splits"]
        for split, other in (("train", "validation"), ("validation", "train")):
            for name, count in splits[split]["classes"].items():
                if not count:
                    held = splits[other]["classes"][name]
                    yield f"class {name} has no picture for {split}, and {held} for {other}"


def _table(splits: Mapping[str, Counter[str]]) -> str:
    """Return a table of the pictures: a line a class, a column a split."""
    classes = sorted(set().union(*splits.values()))
    width = max(len("class"), *map(len, classes))
    head = [f"{'class':{width}}", *(f"{split:>10}" for split in splits)]
    rows = ([f"{name:{width}}", *(f"{n[name]:>10}" for n in splits.values())] for name in classes)
    return "\n".join(map(" ".join, (head, *rows)))


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
