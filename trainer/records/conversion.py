"""A source of pictures into a folder of records that appears in one move.

The same source gives the same bytes, with any number of processes. Until OUT is complete, the work
lies in OUT.partial; what a killed run leaves there, the next one removes.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainer.options import UsageError
from trainer.records import copies, pictures, sources, tfrecord
from trainer.records.copies import NAMED, Seen
from trainer.records.pictures import PictureForm, StoredPicture, UnreadablePicture
from trainer.records.plan import Options, PlannedFile, class_names, plan
from trainer.records.sources import Item
from trainer.records.tfrecord import Target

FORMAT = 4
"""Version of dataset.json and of the records."""
Tell = Callable[[int, int], None]
"""Takes how many pictures are done, and of how many."""


@dataclass
class Conversion:
    """Says what is in one file."""

    name: str
    split: str
    length: int = 0
    """In bytes."""
    sha256: str = ""
    jpegs: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Width and height of each picture."""
    classes: Counter[int] = field(default_factory=Counter)
    """Examples of each class, by its number."""
    seen: list[Seen] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, item: Item, label: Target, content: bytes, picture: StoredPicture) -> None:
        """Count an example: `content` is the source file, `picture` what is stored of it."""
        self.sizes.append((picture.width, picture.height))
        self.jpegs += picture.jpeg
        digest = hashlib.sha256(content).hexdigest()
        self.seen.append(Seen(item.name, self.split, label, digest, picture.likeness))
        numbers = (label,) if isinstance(label, int) else label
        self.classes.update(number for number in numbers if isinstance(number, int))

    @property
    def sides(self) -> tuple[int, int, int]:
        """Return the least and the most of the pictures' shorter sides, and the longest side.

        They are zeros where one picture is not a JPEG. From them a reader knows that it meets no
        other format, no JPEG smaller than its crop, none so large that it should be decoded at half
        its size, and whether all have one size.
        """
        if not self.sizes or self.jpegs < len(self.sizes):
            return 0, 0, 0
        shorter = list(map(min, self.sizes))
        return min(shorter), max(shorter), max(map(max, self.sizes))


def convert(
    source: Path, out: Path, options: Options | None = None, tell: Tell = lambda *_: None
) -> dict[str, Any]:
    """Write the records of `source` to the new folder `out`, and return its dataset.json. Raises
    UsageError.
    """
    if out.exists():
        raise UsageError(f"{out}: exists; records are written to a new folder")
    options = options or Options()
    inputs = sources.find(source, options.group_column)
    if not all(map(importlib.util.find_spec, ("PIL", "simplejpeg"))):
        raise UsageError("pictures need Pillow and simplejpeg: pip install pillow simplejpeg")
    options = replace(options, target=inputs.target)
    names = class_names(source, inputs.items, options)
    files = plan(inputs.items, names, options)
    partial = out.with_name(f"{out.name}.partial")
    with _alone(partial):
        reports = _make_all(files, partial, options, tell)
        content = describe(names, reports, options, inputs.left_out)
        for split in ("train", "validation"):
            if split not in content["splits"]:
                text = f"nothing is left for {split}: give more examples, or another share"
                raise UsageError(f"{source}: {text}")
        (partial / "labels.txt").write_text("".join(f"{name}\n" for name in names))
        (partial / "dataset.json").write_text(json.dumps(content, indent=1) + "\n")
        partial.rename(out)
    return content


def preview(source: Path, options: Options) -> dict[str, Counter[str]]:
    """Return how many pictures of each class each split would have; of `labels` and `values`, how
    many it would have. Raises UsageError."""
    inputs = sources.find(source, options.group_column)
    options = replace(options, target=inputs.target)
    names = class_names(source, inputs.items, options)
    splits: dict[str, Counter[str]] = {}
    for file in plan(inputs.items, names, options):
        of_class = (item.label if inputs.target == "class" else "" for item, _ in file.items)
        splits.setdefault(file.split, Counter()).update(of_class)
    return splits


def make(planned: PlannedFile, folder: Path, options: Options) -> Conversion:
    """Write one file and report on it, in a process of its own.

    Raises UsageError for a picture that cannot be read, unless --on-error is skip.
    """
    report = Conversion(planned.name, planned.split)
    checksum = hashlib.sha256()
    with (folder / planned.name).open("wb") as file:
        for item, label in planned.items:
            try:
                content = item.path.read_bytes()
                picture = pictures.prepare(content, options)
            except (UnreadablePicture, OSError) as error:
                problem = f"{item.name}: {error}"
                if options.on_error == "fail":
                    raise UsageError(f"cannot be read: {problem}") from None
                report.skipped.append(problem)
                continue
            # With its size a reader can choose what it decodes before it looks at the picture.
            size = {"height": picture.height, "width": picture.width}
            example = tfrecord.serialise(
                picture.content, label, filename=item.name.encode(), **size
            )
            framed = tfrecord.frame(example)
            file.write(framed)
            checksum.update(framed)
            report.length += len(framed)
            report.add(item, label, content, picture)
    report.sha256 = checksum.hexdigest()
    return report


def _make_all(
    files: Sequence[PlannedFile], folder: Path, options: Options, tell: Tell
) -> list[Conversion]:
    """Write all files, and return the report of each, in their order."""
    total = sum(len(file.items) for file in files)
    reports: dict[str, Conversion] = {}

    def add(report: Conversion) -> None:
        reports[report.name] = report
        tell(sum(len(made.sizes) + len(made.skipped) for made in reports.values()), total)

    tell(0, total)

    workers = options.workers or len(os.sched_getaffinity(0))
    if workers == 1:
        for file in files:
            add(make(file, folder, options))
    else:
        # Spawned, not forked: the caller may have threads, such as TensorFlow's.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _worker, (os.getpid(),)) as pool:
            try:
                for future in as_completed(
                    [pool.submit(_make_for, os.getpid(), file, folder, options) for file in files]
                ):
                    add(future.result())
            except BrokenProcessPool as error:
                text = "a worker process was killed, perhaps for lack of memory"
                raise UsageError(f"{text}: try fewer --workers") from error
            finally:
                pool.shutdown(cancel_futures=True)
    return [reports[file.name] for file in files]


def _make_for(parent: int, planned: PlannedFile, folder: Path, options: Options) -> Conversion:
    """Write one file for `parent`. Begin none after its death: the next run may use the folder."""
    if os.getppid() != parent:
        os._exit(1)
    return make(planned, folder, options)


@contextlib.contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Hold the empty folder of work. Raises UsageError where another run holds it."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    lock = partial.with_name(f".{partial.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{partial}: another run is writing there") from None
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            yield
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _worker(parent: int) -> None:
    """Let this worker process leave Ctrl-C to the main process, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def describe(
    names: Sequence[str], reports: Sequence[Conversion], options: Options, left_out: Sequence[str]
) -> dict[str, Any]:
    """Return dataset.json: what is in the folder, for people and for `trainer.input`.

    The files `left_out` of the source are not pictures.
    """
    splits: dict[str, Any] = {}
    for report in reports:
        split = splits.setdefault(report.split, {"records": 0, "classes": Counter(), "files": {}})
        split["records"] += len(report.sizes)
        split["classes"].update(report.classes)
        split["files"][report.name] = {
            "records": len(report.sizes),
            "bytes": report.length,
            "sha256": report.sha256,
            "jpeg": report.sides,
        }
    for split in splits.values():
        split["classes"] = {name: split["classes"][n] for n, name in enumerate(names)}
    sizes = [size for report in reports for size in report.sizes]
    widths, heights = ([size[side] for size in sizes] for side in (0, 1))
    return {
        "format": FORMAT,
        "target": options.target,
        "classes": list(names),
        "splits": {name: split for name, split in splits.items() if split["records"]},
        "form": {field.name: getattr(options, field.name) for field in fields(PictureForm)},
        "statistics": {
            "width": {"least": min(widths, default=0), "most": max(widths, default=0)},
            "height": {"least": min(heights, default=0), "most": max(heights, default=0)},
            "not_pictures": len(left_out),
        },
        "left_out": {
            "kinds": dict(Counter(Path(name).suffix.lower() for name in left_out).most_common()),
            "named": list(left_out[:NAMED]),
        },
        "copies": copies.found([seen for report in reports for seen in report.seen]),
        "skipped": sorted(problem for report in reports for problem in report.skipped),
    }
