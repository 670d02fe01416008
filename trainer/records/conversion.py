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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.options import UsageError
from trainer.records import dataset, pictures, sources, tfrecord
from trainer.records.dataset import Report
from trainer.records.pictures import UnreadablePicture
from trainer.records.plan import Options, PlannedFile, class_names, plan

Tell = Callable[[int, int], None]
"""Takes how many pictures are done, and of how many."""


def convert(
    source: Path, out: Path, options: Options | None = None, tell: Tell = lambda *_: None
) -> dict[str, Any]:
    """Write the records of `source` to the new folder `out`, and return its dataset.json. Raises
    UsageError.
    """
    if out.exists():
        raise UsageError(f"{out}: exists; records are written to a new folder")
    inputs = sources.find(source)
    if importlib.util.find_spec("PIL") is None:
        raise UsageError("pictures need Pillow: pip install pillow")
    options = replace(options or Options(), target=inputs.target)
    names = class_names(source, inputs.items, options)
    files = plan(inputs.items, names, options)
    partial = out.with_name(f"{out.name}.partial")
    with _alone(partial):
        reports = _make_all(files, partial, options, tell)
        content = dataset.describe(names, reports, options, inputs.ignored)
        for split in ("train", "validation"):
            if split not in content["splits"]:
                text = f"nothing is left for {split}: give more examples, or another share"
                raise UsageError(f"{source}: {text}")
        (partial / "labels.txt").write_text("".join(f"{name}\n" for name in names))
        (partial / "dataset.json").write_text(json.dumps(content, indent=1) + "\n")
        partial.rename(out)
    return content


def make(planned: PlannedFile, folder: Path, options: Options) -> Report:
    """Write one file and report on it, in a process of its own.

    Raises UsageError for a picture that cannot be read, unless --on-error is skip.
    """
    report = Report(planned.name, planned.split)
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
) -> list[Report]:
    """Write all files, and return the report of each, in their order."""
    total = sum(len(file.items) for file in files)
    reports: dict[str, Report] = {}

    def add(report: Report) -> None:
        reports[report.name] = report
        tell(sum(len(made.sizes) + len(made.skipped) for made in reports.values()), total)

    tell(0, total)

    workers = options.workers or len(os.sched_getaffinity(0))
    if workers == 1:
        for file in files:
            add(make(file, folder, options))
    else:
        with _pool(workers) as pool:
            try:
                for future in as_completed(
                    [pool.submit(make, file, folder, options) for file in files]
                ):
                    add(future.result())
            except BrokenProcessPool as error:
                text = "a worker process was killed, perhaps for lack of memory"
                raise UsageError(f"{text}: try fewer --workers") from error
            finally:
                pool.shutdown(cancel_futures=True)
    return [reports[file.name] for file in files]


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


def _pool(workers: int) -> ProcessPoolExecutor:
    # Spawned, not forked: the caller may have threads, such as TensorFlow's.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_worker, initargs=(os.getpid(),))


def _worker(parent: int) -> None:
    """Let this worker process leave Ctrl-C to the main process, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
