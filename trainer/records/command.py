"""Pictures into TFRecords: `python -m trainer.records SOURCE OUT`.

    SOURCE                         OUT
    cat/1.jpg                      labels.txt                          cat, dog
    cat/2.png      --->            train-00000-of-00002.tfrecord
    dog/1.jpg                      validation-00000-of-00001.tfrecord
                                   dataset.json                        counts, statistics, options

SOURCE is a folder of class folders (also below train/ and validation/), or a CSV file of paths and
labels. Pictures are stored as a person sees them, in the form that decodes fastest. The same source
gives the same bytes, with any number of processes.

OUT appears in one move when it is complete. Until then the work lies in OUT.partial. After a kill,
the same command goes on from there: it does not make finished files again.

Exit codes: 0 done; 1 a fault of the program; 2 what was given cannot be right; 130 and 143 stopped,
start it again to go on.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType

from trainer.records.conversion import Conversion, Converted, convert
from trainer.records.options import Options
from trainer.records.pictures import ENCODINGS, PictureForm
from trainer.records.plan import SHARD_SIZE
from trainer.records.sources import RecordsError
from trainer.records.statusline import StatusLine


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, and turn the outcome into lines and an exit code."""
    given = _parse(arguments)
    line = StatusLine(at_once=True)

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
    try:
        options = Options(
            form=given.form,
            validation=given.validation,
            split_by=given.split_by,
            shard_size=given.shard_size,
            skip=given.on_error == "skip",
            labels=_labels(given.labels) if given.labels else (),
            workers=given.workers,
        )

        def tell(progress: Conversion) -> None:
            last = progress.done == progress.total
            line.show(lambda seconds: status(progress, seconds), last)

        result = convert(given.source, given.out, options, tell)
    except (RecordsError, OSError) as error:
        line.end()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: the same command goes on where it was", file=sys.stderr)
        return 130
    line.end()
    _tell(result)
    return 0


def status(progress: Conversion, seconds: float) -> str:
    """Return how far a conversion is after so many seconds, in words."""
    made = progress.done - progress.taken_over
    rate = made / seconds
    text = f"{progress.phase} {progress.done:,} of {progress.total:,}, {rate:,.0f} a second"
    if made and progress.done < progress.total:
        text += f", {(progress.total - progress.done) / rate:,.0f} s left"
    return text + (f", {progress.skipped} skipped" if progress.skipped else "")


def _tell(result: Converted) -> None:
    for problem in result.skipped:
        print(f"skipped: {problem}", file=sys.stderr)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    text = ", ".join(f"{count} {split}" for split, count in result.counts.items())
    if result.skipped:
        text += f" and {len(result.skipped)} skipped"
    if result.taken_over:
        text += f" ({result.taken_over} of them from the run before)"
    already = ", there already" if result.unchanged else ""
    print(f"{text} examples in {result.out}{already}")


def _labels(path: Path) -> tuple[str, ...]:
    labels = tuple(path.read_text().splitlines())
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise RecordsError(f"{path}: needs names, a line each, no two equal")
    return labels


# --- the command line ----------------------------------------------------------------------------


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked arguments, with the form of the pictures as `form`."""
    parser = argparse.ArgumentParser(prog="python -m trainer.records", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", type=Path, help="folder of class folders, or CSV file")
    parser.add_argument("out", type=Path, help="new folder")
    _add_forms(parser)
    _add_division(parser)
    given = parser.parse_args(arguments)
    if not 0 < given.validation < 1:
        parser.error("--validation is between 0 and 1")
    for name, least, most in (
        ("shard_size", 1, 10**9),
        ("quality", 1, 100),
        ("resize", 1, 65535),
        ("workers", 0, 1024),
    ):
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')} is between {least:g} and {most:g}")
    given.form = _form(parser, given)
    return given


def _add_forms(parser: argparse.ArgumentParser) -> None:
    """How pictures are stored."""
    add = parser.add_argument
    add(
        "--encoding",
        choices=ENCODINGS,
        help="jpeg (small, the default), png (no loss), keep (files as they are where they can be)",
    )
    add("--quality", type=int, help="of JPEGs, 1 to 100 (90)")
    add("--subsampling", choices=("4:2:0", "4:2:2", "4:4:4"), help="of a JPEG's colours (4:2:0)")
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
    add("--background", help="colour behind transparent pixels (white)")


def _add_division(parser: argparse.ArgumentParser) -> None:
    """Which examples go where, and how they are made."""
    add = parser.add_argument
    add("--validation", type=float, default=0.1, help="share of each class held out (0.1)")
    add(
        "--split-by",
        choices=("name", "content"),
        default="name",
        help="content: copies of a file are on the same side; reads everything twice",
    )
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


def _form(parser: argparse.ArgumentParser, given: argparse.Namespace) -> PictureForm:
    """Return the form that was asked for."""
    if given.square and not given.resize:
        parser.error("--square needs --resize: all pictures then have one size")
    names = [field.name for field in fields(PictureForm)]
    wanted = {name: vars(given)[name] for name in names if vars(given)[name] not in (None, False)}
    if given.background:
        _check_colour(parser, given.background)
    return PictureForm(**wanted)


def _check_colour(parser: argparse.ArgumentParser, colour: str) -> None:
    try:
        from PIL import ImageColor

        ImageColor.getrgb(colour)
    except ImportError:
        parser.error("--background needs Pillow: pip install pillow")
    except ValueError:
        parser.error(f"--background {colour}: is not a colour (white, #ff8800 ...)")
