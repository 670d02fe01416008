"""A source of pictures into a folder of records that appears in one move.

The same source gives the same bytes, with any number of processes. Until OUT is complete, the work
lies in OUT.partial: a run that was killed takes over the files that are finished there.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.records import pictures, sources, statistics, tfrecord, writing
from trainer.records.options import FORMAT, Options
from trainer.records.pictures import UnreadablePicture
from trainer.records.plan import PlannedFile, class_names, content_digest, digest, plan
from trainer.records.sources import Item, RecordsError


@dataclass
class Conversion:
    """How far a conversion is."""

    total: int
    done: int = 0
    skipped: int = 0
    taken_over: int = 0
    """Examples from an earlier run, which was stopped."""
    phase: str = "pictures"


Tell = Callable[[Conversion], None]


@dataclass(frozen=True)
class Converted:
    """What is in the folder now."""

    out: Path
    counts: Mapping[str, int]
    """Examples of each split."""
    skipped: tuple[str, ...]
    """One line for each picture that was left out."""
    warnings: tuple[str, ...] = ()
    taken_over: int = 0
    unchanged: bool = False
    """The folder was there already, made from the same source with the same options."""


def convert(
    source: Path,
    out: Path,
    options: Options | None = None,
    tell: Tell = lambda _: None,
) -> Converted:
    """Write the records of `source` to the new folder `out`. Raises RecordsError."""
    options = options or Options()
    partial = out.with_name(f"{out.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _alone(partial), contextlib.ExitStack() as stack:
        inputs = sources.find(source)
        if importlib.util.find_spec("PIL") is None:
            raise RecordsError("pictures need Pillow: pip install pillow")
        options = replace(options, target=inputs.target)
        names = class_names(source, inputs.items, options.labels, options.target)
        workers = options.workers or len(os.sched_getaffinity(0))
        pool = stack.enter_context(_pool(workers)) if workers > 1 else None
        keys = {item.name: digest(item.name) for item in inputs.items}
        if options.split_by == "content":
            progress = Conversion(len(inputs.items), phase="reading")
            keys |= _contents(inputs.items, pool, progress, tell)
        files = plan(inputs.items, names, keys, options)
        made_from = _hash([FORMAT, names, *(_key(file, options) for file in files)])
        if out.exists():
            return _there_already(out, made_from)
        reports = _convert_all(files, partial, options, pool, tell)
        dataset = statistics.dataset(names, files, reports, options, inputs.ignored)
        dataset["made_from"] = made_from
        empty = [name for name in ("train", "validation") if not dataset["splits"].get(name)]
        if empty:
            raise RecordsError(
                f"{source}: nothing is left for {empty[0]}: give more examples, or another share"
            )
        _finish(partial, out, files, names, dataset)
    return _converted(
        out, dataset, sum(bool(r.get("taken_over")) and r["records"] for r in reports)
    )


# --- the files -----------------------------------------------------------------------------------


def make(planned: PlannedFile, path: Path, options: Options) -> dict[str, Any]:
    """Write one file and report on it, in a process of its own.

    Raises RecordsError for an example that cannot be read, unless `options.skip`.
    """
    report = statistics.Report()
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    checksum = hashlib.sha256()
    size = 0
    with temporary.open("wb") as file:
        for item, label in planned.items:
            try:
                content = item.path.read_bytes()
                made = pictures.prepare(content, options.form)
            except (UnreadablePicture, OSError) as error:
                problem = f"{item.name}: {error}"
                if not options.skip:
                    temporary.unlink()
                    raise RecordsError(f"cannot be read: {problem}") from None
                report.skipped.append(problem)
                continue
            framed = tfrecord.frame(writing.example(made, label, item.name))
            file.write(framed)
            checksum.update(framed)
            size += len(framed)
            report.add(item, content, made, options.target)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return {**vars(report), "bytes": size, "sha256": checksum.hexdigest()}


def _convert_all(
    files: Sequence[PlannedFile],
    partial: Path,
    options: Options,
    pool: ProcessPoolExecutor | None,
    tell: Tell,
) -> list[dict[str, Any]]:
    """Return the report of each file, in order; files of an earlier run are taken over."""
    progress = Conversion(sum(len(file.items) for file in files), phase="pictures")
    reports: dict[str, dict[str, Any]] = {}
    todo = []
    for file in files:
        report = _earlier(file, partial, options)
        if report is None:
            todo.append(file)
            continue
        reports[file.name] = {**report, "taken_over": True}
        progress.done += len(file.items)
        progress.taken_over += len(file.items)
        progress.skipped += len(report["skipped"])
    tell(progress)

    def add(file: PlannedFile, report: dict[str, Any]) -> None:
        content = json.dumps({"key": _key(file, options), **report})
        _write(partial / f"{file.name}.json", content)
        reports[file.name] = report
        progress.done += len(file.items)
        progress.skipped += len(report["skipped"])
        tell(progress)

    if pool is None:
        for file in todo:
            add(file, make(file, partial / file.name, options))
    else:
        _in_pool(pool, todo, partial, options, add)
    return [reports[file.name] for file in files]


def _in_pool(
    pool: ProcessPoolExecutor,
    todo: Sequence[PlannedFile],
    partial: Path,
    options: Options,
    add: Callable[[PlannedFile, dict[str, Any]], None],
) -> None:
    running: dict[Future[dict[str, Any]], PlannedFile] = {}
    waiting = list(reversed(todo))
    try:
        while waiting or running:
            # Not all at once: what is submitted is copied, and a failure should end the run soon.
            while waiting and len(running) < 64:
                file = waiting.pop()
                running[pool.submit(make, file, partial / file.name, options)] = file
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                add(running.pop(future), future.result())
    except BrokenProcessPool as error:
        text = "a worker process was killed, perhaps for lack of memory: try fewer --workers"
        raise RecordsError(text) from error
    finally:
        for future in running:
            future.cancel()


def _earlier(file: PlannedFile, partial: Path, options: Options) -> dict[str, Any] | None:
    """Return the report of a finished file that was made of the same items in the same way."""
    path = partial / file.name
    try:
        report: dict[str, Any] = json.loads((partial / f"{file.name}.json").read_text())
        if report.pop("key") != _key(file, options) or path.stat().st_size != report["bytes"]:
            return None
        with path.open("rb") as content:
            same = hashlib.file_digest(content, "sha256").hexdigest() == report["sha256"]
    except (OSError, ValueError, KeyError):
        return None
    return report if same else None


def _key(file: PlannedFile, options: Options) -> str:
    """Return a hash of everything that a file's bytes and its report depend on."""
    items = [(p.name, p.size, p.version, label) for p, label in file.items]
    return _hash([FORMAT, file.name, items, asdict(options.form), options.skip])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _contents(
    items: Sequence[Item],
    pool: ProcessPoolExecutor | None,
    progress: Conversion,
    tell: Tell,
) -> dict[str, str]:
    """Return SHA-256 of the bytes of each item, by its name."""
    keys = {}
    digests = pool.map(content_digest, items, chunksize=16) if pool else map(content_digest, items)
    for item, content_hash in zip(items, digests, strict=True):
        keys[item.name] = content_hash
        progress.done += 1
        if progress.done % 256 == 0:
            tell(progress)
    return keys


# --- the folder ----------------------------------------------------------------------------------


def _finish(
    partial: Path, out: Path, files: Sequence[PlannedFile], names: Sequence[str], dataset: Any
) -> None:
    """Leave only what belongs in the folder, and give it its name."""
    _write(partial / "labels.txt", "".join(f"{name}\n" for name in names))
    _write(partial / "dataset.json", json.dumps(dataset, indent=1) + "\n")
    keep = {file.name for file in files} | {"labels.txt", "dataset.json"}
    for path in partial.iterdir():
        if path.name not in keep:
            path.unlink()
    try:
        partial.rename(out)
    except OSError as error:
        raise RecordsError(f"{out}: exists; records are written to a new folder") from error


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text(content)
    temporary.rename(path)


def _there_already(out: Path, made_from: str) -> Converted:
    """Return what `out` has, if it was made from the same. Raises RecordsError if not."""
    try:
        dataset = json.loads((out / "dataset.json").read_text())
        if dataset["made_from"] == made_from:
            return _converted(out, dataset, 0, unchanged=True)
    except (OSError, ValueError, KeyError):
        pass
    raise RecordsError(f"{out}: exists; records are written to a new folder")


def _converted(
    out: Path, dataset: Mapping[str, Any], taken_over: int, unchanged: bool = False
) -> Converted:
    warnings = []
    for kind, text in (
        ("in_several_splits", "{} are copies of one in another split: see --split-by content"),
        ("with_several_labels", "{} are copies of one with another label"),
    ):
        if count := dataset["duplicates"][kind]["pictures"]:
            first, other, *_ = dataset["duplicates"][kind]["named"][0]
            warnings.append(f"{text.format(f'{count} pictures')} ({first} and {other}, for one)")
    counts = {name: split["records"] for name, split in dataset["splits"].items()}
    skipped = tuple(dataset["skipped"])
    return Converted(out, counts, skipped, tuple(warnings), taken_over, unchanged)


@contextlib.contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Hold the folder of work. Raises RecordsError where another run holds it."""
    lock = partial.with_name(f".{partial.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RecordsError(f"{partial}: another run is writing there") from None
        partial.mkdir(exist_ok=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                partial.rmdir()  # Only where nothing is in it.
            lock.unlink(missing_ok=True)


# --- processes -----------------------------------------------------------------------------------


def _pool(workers: int) -> ProcessPoolExecutor:
    # Spawned, not forked: the caller may have threads, such as TensorFlow's.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_worker, initargs=(os.getpid(),))


def _worker(parent: int) -> None:
    """Begin a worker process: it leaves Ctrl-C to the main process, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
