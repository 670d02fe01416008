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
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trainer.options import Section, UsageError, read
from trainer.records.conversion import convert
from trainer.records.plan import Options

SECONDS = 10.0
"""Between two lines about progress; on a terminal, one line is written over."""
_option = Section("what is read and written")


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """Says what is converted."""

    source: str = _option(..., "folder of class folders, or CSV file", positional=True)
    out: str = _option(..., "new folder", positional=True)


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
        content = convert(Path(request.source), Path(request.out), request, _Progress().show)
    except (UsageError, OSError) as error:
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
    print(f"{', '.join(counts)} examples{skipped} in {request.out}")
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
