"""Pictures or sounds into TFRecords: `python -m trainer.records SOURCE OUT`.

    SOURCE                         OUT
    cat/1.jpg                      labels.txt                          cat, dog
    cat/2.png      --->            train-00000-of-00002.tfrecord
    dog/1.jpg                      validation-00000-of-00001.tfrecord
                                   dataset.json                        counts, statistics, options

SOURCE is a folder of class folders (also below train/ and validation/), a CSV file of paths and
labels, or a zip or tar archive of such folders. Pictures are stored as a person sees them, in the
form that decodes fastest; sounds (WAV, FLAC, Ogg, MP3 ...) as WAV files of one channel, at one
rate. The same source gives the same bytes, with any number of processes.

OUT appears in one move when it is complete. Until then the work lies in OUT.partial; a run that
was killed goes on there when it is started again: files that are done are not made again.

Exit codes: 0 done; 1 a fault of the program; 2 what was given cannot be right; 130 and 143 stopped,
start it again to go on.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.records import sounds, sources, tfrecord
from trainer.records.pictures import ENCODINGS, Form, Prepared, Unreadable, prepare
from trainer.records.sources import Item
from trainer.records.sources import SourceError as RecordsError

FORMAT = 3
"""Of dataset.json, and of what is written: another number, and work of before is made again."""
SHARD_SIZE = 1000
"""Examples of a file, at most."""
MANY_SHARDS, SMALL_SHARD = 16, 64
"""So many files at least, where each then has so many examples: several workers read at once."""
NAMED = 20
"""Duplicates of a kind that are listed by name in dataset.json."""
PICTURE_OPTIONS = "".join(f"--{one.name}, " for one in fields(Form)).removesuffix(", ")
SOUND_OPTIONS = "--rate and --seconds"
Example = tuple[bytes, int]
"""Encoded image, label."""
PICTURES, SOUNDS = "pictures", "sounds"


@dataclass(frozen=True)
class Options:
    """What is made of the pictures or sounds."""

    form: Form | sounds.Form | None = None
    """None: the usual one of what is found."""
    validation: float = 0.1
    """Share of each class that is held out, where the source does not divide itself."""
    split_by: str = "name"
    """name, or content: then files with the same bytes are on the same side."""
    shard_size: int | None = None
    """Most examples of a file; None: SHARD_SIZE, or fewer so that there are MANY_SHARDS files."""
    skip: bool = False
    """Pictures that cannot be read are named and left out; else the first one ends the run."""
    labels: tuple[str, ...] = ()
    """Class names in the order of their numbers; (): those found, sorted."""
    workers: int = 0
    """Processes; 0: one for each core that this process may use."""


@dataclass(frozen=True)
class Shard:
    """A file to be written."""

    name: str
    items: tuple[tuple[Item, int], ...]
    """Each with its label's number."""


@dataclass
class Progress:
    """What there is to tell while it runs."""

    total: int
    done: int = 0
    skipped: int = 0
    read: int = 0
    """Bytes of what was there."""
    taken_over: int = 0
    """Pictures of an earlier run, which was stopped."""
    phase: str = "pictures"


Tell = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What is in the folder now."""

    out: Path
    counts: Mapping[str, int]
    """Examples of each split."""
    skipped: tuple[str, ...]
    """One line for each picture or sound that was left out."""
    warnings: tuple[str, ...] = ()
    taken_over: int = 0
    unchanged: bool = False
    """It was there already, made from the same source with the same options."""
    heard: str = ""
    """How much of a sound the model hears, in words."""


def convert(
    source: Path,
    out: Path,
    options: Options | None = None,
    tell: Tell = lambda _: None,
) -> Result:
    """Write the records. Raises RecordsError."""
    options = options or Options()
    partial = out.with_name(f"{out.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with _alone(partial), contextlib.ExitStack() as stack:
        progress = Progress(0, phase="decompressing")
        found = sources.find(source, partial, lambda: tell(progress))
        options = replace(options, form=_form(source, found, options.form))
        names = _class_names(source, found.items, options.labels)
        workers = options.workers or len(os.sched_getaffinity(0))
        pool = stack.enter_context(_pool(workers)) if workers > 1 else None
        keys = {item.name: _digest(item.name) for item in found.items}
        if options.split_by == "content":
            progress = Progress(len(found.items), phase="reading")
            keys |= _contents(found.items, pool, progress, tell)
        shards = plan(found.items, names, keys, options)
        more = [asdict(options.form)] if isinstance(options.form, sounds.Form) else []
        whole = _hash([FORMAT, names, *(_key(shard, options) for shard in shards), *more])
        if out.exists():
            return _there_already(out, whole)
        reports = _convert_all(shards, partial, options, pool, tell)
        dataset = _dataset(names, shards, reports, options, found.ignored)
        dataset["made_from"] = whole
        empty = [name for name in ("train", "validation") if not dataset["splits"].get(name)]
        if empty:
            raise RecordsError(f"{source}: nothing fell to {empty[0]}: give more, or a share")
        _finish(partial, out, shards, names, dataset)
    return _result(out, dataset, sum(bool(r.get("taken_over")) and r["records"] for r in reports))


def _form(
    source: Path, found: sources.Found, asked: Form | sounds.Form | None
) -> Form | sounds.Form:
    """The form that was asked for, or the usual one. Raises RecordsError where it is not one of
    what was found, or where that cannot be read here."""
    first = found.items[0].name
    if found.sounds:
        if isinstance(asked, Form):
            raise RecordsError(f"{source}: has sounds ({first}): {PICTURE_OPTIONS} are of pictures")
        if lacking := sounds.missing():
            raise RecordsError(lacking)
        return asked or sounds.Form()
    if isinstance(asked, sounds.Form):
        raise RecordsError(f"{source}: has pictures ({first}): {SOUND_OPTIONS} are of sounds")
    if importlib.util.find_spec("PIL") is None:
        raise RecordsError("pictures need Pillow: pip install pillow")
    return asked or Form()


def plan(
    items: Sequence[Item],
    names: Sequence[str],
    keys: Mapping[str, str],
    options: Options,
) -> list[Shard]:
    """Which item goes where. A function of the items' names (and contents, if asked) alone.

    Of each class the same share is held out: the items with the smallest keys. Each split is
    shuffled by the hash of the names, and dealt out to its files in turn.
    """
    splits: dict[str, list[Item]] = {"train": [], "validation": []}
    by_class: dict[str, list[Item]] = {}
    for item in items:
        if item.split:
            splits.setdefault(item.split, []).append(item)
        else:
            by_class.setdefault(item.label, []).append(item)
    divided = bool(splits["validation"])  # By the source; what it left open is for training.
    for group in by_class.values():
        ranked = sorted(group, key=lambda item: (keys[item.name], item.name))
        count = 0 if divided else min(max(1, round(len(group) * options.validation)), len(group))
        # All with the key of the last one, so that equal contents stay together.
        last = keys[ranked[count - 1].name] if count else ""
        held_out = [item for item in ranked if keys[item.name] <= last]
        splits["validation"] += held_out
        splits["train"] += ranked[len(held_out) :]
    labels = {name: number for number, name in enumerate(names)}
    shards = []
    for split, members in splits.items():
        members.sort(key=lambda item: (_digest(item.name), item.name))
        size = options.shard_size or SHARD_SIZE
        count = -(-len(members) // size)
        if not options.shard_size:
            count = max(count, min(MANY_SHARDS, -(-len(members) // SMALL_SHARD)))
        for number in range(count):
            chosen = tuple((item, labels[item.label]) for item in members[number::count])
            shards.append(Shard(file_name(split, number, count), chosen))
    return shards


def file_name(split: str, number: int, count: int) -> str:
    return f"{split}-{number:05d}-of-{count:05d}.tfrecord"


def write(
    out: Path, names: Sequence[str], splits: dict[str, list[Example]], shard_size: int
) -> None:
    """Write encoded images that are there already, in one move. The same input, the same bytes."""
    temporary = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    temporary.mkdir(parents=True)
    for split, examples in splits.items():
        count = -(-len(examples) // shard_size)
        for number in range(count):
            content = (serialise(*example) for example in examples[number::count])
            path = temporary / file_name(split, number, count)
            path.write_bytes(b"".join(map(tfrecord.frame, content)))
    (temporary / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    temporary.rename(out)


def serialise(image: bytes, label: int, **more: tfrecord.Value) -> bytes:
    """A tf.train.Example of what the trainer reads; `more` by name below image/."""
    features = {"image/encoded": image, "image/class/label": label}
    return tfrecord.example(features | {f"image/{name}": value for name, value in more.items()})


def make(shard: Shard, path: Path, options: Options) -> dict[str, Any]:
    """Write one file and report on it. Raises RecordsError for an unreadable one, if so asked.

    Runs in a process of its own.
    """
    report = _Report()
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    digest = hashlib.sha256()
    size = 0
    with temporary.open("wb") as file:
        for item, label in shard.items:
            try:
                content = item.read()
                made = _prepare(content, options)
            except (Unreadable, sounds.Unreadable, OSError) as error:
                problem = f"{item.name}: {error}"
                if not options.skip:
                    temporary.unlink()
                    raise RecordsError(f"cannot be read: {problem}") from None
                report.skipped.append(problem)
                continue
            framed = tfrecord.frame(_example(made, label, item.name, options.form))
            file.write(framed)
            digest.update(framed)
            size += len(framed)
            report.add(item, content, made)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return {**vars(report), "bytes": size, "sha256": digest.hexdigest()}


def _prepare(content: bytes, options: Options) -> Prepared | sounds.Prepared:
    if isinstance(options.form, sounds.Form):
        return sounds.prepare(content, options.form)
    return prepare(content, options.form or Form())


def _example(
    made: Prepared | sounds.Prepared, label: int, name: str, form: Form | sounds.Form | None
) -> bytes:
    if isinstance(made, sounds.Prepared):
        return tfrecord.example(
            {
                "audio/encoded": made.content,
                "audio/class/label": label,
                "audio/filename": name.encode(),
            }
        )
    assert isinstance(form, Form)
    more: dict[str, tfrecord.Value] = {"filename": name.encode()}
    if form.encoding != "uint8":
        # The size, so that a reader can choose what it decodes before it looks at the picture.
        more |= {"height": made.height, "width": made.width}
        return serialise(made.content, label, **more)
    return tfrecord.example(
        {
            "image/pixels": made.content,
            "image/class/label": label,
            "image/filename": name.encode(),
        }
    )


@dataclass
class _Report:
    """Statistics of one file, in whole numbers, so that any order of adding gives the same sum."""

    records: int = 0
    skipped: list[str] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    source_bytes: int = 0
    frames: list[int] = field(default_factory=list)
    """Samples of each sound."""
    silent: list[str] = field(default_factory=list)
    jpegs: int = 0
    widths: list[int] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    pixels: list[int] = field(default_factory=lambda: [0] * 9)
    """Of each channel: count, sum, sum of squares."""
    digests: list[tuple[str, str, str]] = field(default_factory=list)
    """SHA-256 of the file, its name, its label."""

    def add(self, item: Item, content: bytes, made: Prepared | sounds.Prepared) -> None:
        self.records += 1
        self.classes[item.label] += 1
        self.facts.update(made.facts)
        self.source_bytes += len(content)
        self.digests.append((hashlib.sha256(content).hexdigest(), item.name, item.label))
        if isinstance(made, sounds.Prepared):
            self.frames.append(made.frames)
            self.silent += [item.name] if made.silent else []
        else:
            self._add_picture(made)

    def _add_picture(self, made: Prepared) -> None:
        self.jpegs += made.jpeg
        self.widths.append(made.width)
        self.heights.append(made.height)
        for channel in range(3):
            counts = made.histogram[256 * channel : 256 * (channel + 1)]
            self.pixels[3 * channel] += sum(counts)
            self.pixels[3 * channel + 1] += sum(v * n for v, n in enumerate(counts))
            self.pixels[3 * channel + 2] += sum(v * v * n for v, n in enumerate(counts))


def _convert_all(
    shards: Sequence[Shard],
    partial: Path,
    options: Options,
    pool: ProcessPoolExecutor | None,
    tell: Tell,
) -> list[dict[str, Any]]:
    """The report of each file, in order; files of an earlier run are taken over."""
    progress = Progress(sum(len(shard.items) for shard in shards), phase=_kind(options))
    reports: dict[str, dict[str, Any]] = {}
    todo = []
    for shard in shards:
        report = _earlier(shard, partial, options)
        if report is None:
            todo.append(shard)
            continue
        reports[shard.name] = {**report, "taken_over": True}
        progress.done += len(shard.items)
        progress.taken_over += len(shard.items)
        progress.skipped += len(report["skipped"])
    tell(progress)

    def add(shard: Shard, report: dict[str, Any]) -> None:
        content = json.dumps({"key": _key(shard, options), **report})
        _write(partial / f"{shard.name}.json", content)
        reports[shard.name] = report
        progress.done += len(shard.items)
        progress.read += report["source_bytes"]
        progress.skipped += len(report["skipped"])
        tell(progress)

    if pool is None:
        for shard in todo:
            add(shard, make(shard, partial / shard.name, options))
    else:
        _in_pool(pool, todo, partial, options, add)
    return [reports[shard.name] for shard in shards]


def _in_pool(
    pool: ProcessPoolExecutor,
    todo: Sequence[Shard],
    partial: Path,
    options: Options,
    add: Callable[[Shard, dict[str, Any]], None],
) -> None:
    running: dict[Future[dict[str, Any]], Shard] = {}
    waiting = list(reversed(todo))
    try:
        while waiting or running:
            # Not all at once: what is handed over is copied, and a failure ends the run soon.
            while waiting and len(running) < 64:
                shard = waiting.pop()
                running[pool.submit(make, shard, partial / shard.name, options)] = shard
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                add(running.pop(future), future.result())
    except BrokenProcessPool as error:
        text = "a worker process was killed, perhaps for lack of memory: try fewer --workers"
        raise RecordsError(text) from error
    finally:
        for future in running:
            future.cancel()


def _earlier(shard: Shard, partial: Path, options: Options) -> dict[str, Any] | None:
    """The report of a file that is there and was made of the same items in the same way."""
    path = partial / shard.name
    try:
        report: dict[str, Any] = json.loads((partial / f"{shard.name}.json").read_text())
        if report.pop("key") != _key(shard, options) or path.stat().st_size != report["bytes"]:
            return None
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == report["sha256"]
    except (OSError, ValueError, KeyError):
        return None
    return report if same else None


def _key(shard: Shard, options: Options) -> str:
    """Of everything that the bytes of a file depend on, and of what it tells."""
    items = [(p.name, p.size, p.version, label) for p, label in shard.items]
    form = options.form
    stored = form.rate if isinstance(form, sounds.Form) else asdict(form or Form())
    return _hash([FORMAT, shard.name, items, stored, options.skip])


def _dataset(
    names: Sequence[str],
    shards: Sequence[Shard],
    reports: Sequence[Mapping[str, Any]],
    options: Options,
    ignored: int,
) -> dict[str, Any]:
    """dataset.json: what is in the folder, for people and for `trainer.input.data`."""
    splits: dict[str, Any] = {}
    total = [0] * 9
    facts: Counter[str] = Counter()
    kind = _kind(options)
    sides: dict[str, list[int]] = {"width": [], "height": []}
    for shard, report in zip(shards, reports, strict=True):
        facts.update(report["facts"])
        sides["width"] += report["widths"]
        sides["height"] += report["heights"]
        total = [one + other for one, other in zip(total, report["pixels"], strict=True)]
        split = splits.setdefault(
            shard.name.split("-")[0], {"records": 0, "classes": Counter(), "files": {}}
        )
        split["records"] += report["records"]
        split["classes"].update(report["classes"])
        told = {key: report[key] for key in ("records", "bytes", "sha256")}
        split["files"][shard.name] = told | ({"jpeg": _jpegs(report)} if kind == PICTURES else {})
    for split in splits.values():
        split["classes"] = {name: split["classes"].get(name, 0) for name in names}
    splits = {name: split for name, split in splits.items() if split["records"]}
    if isinstance(options.form, sounds.Form):
        form, statistics = _of_sounds(options.form, reports)
    else:
        form = asdict(options.form or Form())
        if form["encoding"] not in ("jpeg", "keep"):
            del form["quality"], form["subsampling"]
        statistics = {side: _spread(values) for side, values in sides.items()}
        statistics |= {"channels": _channels(total)}
    return {
        "format": FORMAT,
        "kind": kind,
        "classes": list(names),
        "splits": splits,
        "form": form,
        "statistics": {
            **statistics,
            "source_bytes": sum(report["source_bytes"] for report in reports),
            "bytes": sum(report["bytes"] for report in reports),
            kind: dict(sorted(facts.items())),
            f"not_{kind}": ignored,
        },
        "duplicates": _duplicates(shards, reports, kind),
        "skipped": sorted(problem for report in reports for problem in report["skipped"]),
    }


def _kind(options: Options) -> str:
    return SOUNDS if isinstance(options.form, sounds.Form) else PICTURES


def _of_sounds(
    form: sounds.Form, reports: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What dataset.json says of how sounds are stored and heard, and of how long they are."""
    frames = [count for report in reports for count in report["frames"]]
    longest = math.ceil(1000 * max(frames, default=0) / form.rate) / 1000
    heard = form.seconds or min(longest, sounds.HEARD)
    samples = round(heard * form.rate)
    silent = sorted(name for report in reports for name in report["silent"])
    statistics = {
        "seconds": _spread([count / form.rate for count in frames], 3),
        "hours": round(sum(frames) / form.rate / 3600, 3),
        "longer": sum(count > samples for count in frames),
        "shorter": sum(count < samples for count in frames),
        "silent": {"sounds": len(silent), "named": silent[:NAMED]},
    }
    return {"rate": form.rate, "seconds": heard}, statistics


def _jpegs(report: Mapping[str, Any]) -> tuple[int, int, int]:
    """Least and most of the shorter sides of a file's pictures, and the longest side of all; zeros
    where one is no JPEG.

    With it the reader knows beforehand what it will not meet: another format, a JPEG smaller than
    what it cuts out, one so large that it is to be decoded at half its size, or another size than
    that of all the others.
    """
    if not report["records"] or report["jpegs"] < report["records"]:
        return 0, 0, 0
    shorter = list(map(min, report["widths"], report["heights"]))
    return min(shorter), max(shorter), max(report["widths"] + report["heights"])


def _spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    found = {
        "least": ordered[0],
        "median": ordered[len(values) // 2],
        "mean": sum(values) / len(values),
        "most": ordered[-1],
    }
    return {key: round(value, digits) for key, value in found.items()}


def _channels(total: Sequence[int]) -> dict[str, list[float]]:
    """Mean and standard deviation of red, green and blue over all pixels, 0 to 255."""
    means, deviations = [], []
    for count, first, second in (total[0:3], total[3:6], total[6:9]):
        mean = first / count if count else 0.0
        means.append(round(mean, 3))
        deviations.append(round(math.sqrt(max(0.0, second / count - mean**2)), 3) if count else 0.0)
    return {"mean": means, "std": deviations}


def _duplicates(
    shards: Sequence[Shard], reports: Sequence[Mapping[str, Any]], what: str
) -> dict[str, dict[str, Any]]:
    """Files with the same bytes: how many too many, across splits, and with different labels."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for shard, report in zip(shards, reports, strict=True):
        split = shard.name.split("-")[0]
        for digest, name, label in report["digests"]:
            groups.setdefault(digest, []).append((name, label, split))
    several = [sorted(group) for group in groups.values() if len(group) > 1]
    kinds = {
        "all": several,
        "in_several_splits": [g for g in several if len({split for *_, split in g}) > 1],
        "with_several_labels": [g for g in several if len({label for _, label, _ in g}) > 1],
    }
    return {
        kind: {
            what: sum(len(group) - 1 for group in found),
            "named": sorted([name for name, *_ in group] for group in found)[:NAMED],
        }
        for kind, found in kinds.items()
    }


def _finish(
    partial: Path, out: Path, shards: Sequence[Shard], names: Sequence[str], dataset: Any
) -> None:
    """Leave only what belongs there, and give the folder its name."""
    _write(partial / "labels.txt", "".join(f"{name}\n" for name in names))
    _write(partial / "dataset.json", json.dumps(dataset, indent=1) + "\n")
    keep = {shard.name for shard in shards} | {"labels.txt", "dataset.json"}
    for path in partial.iterdir():
        if path.name not in keep:
            path.unlink()
    try:
        partial.rename(out)
    except OSError as error:
        raise RecordsError(f"{out}: exists; records are written to a new folder") from error


def _result(out: Path, dataset: Mapping[str, Any], taken_over: int, same: bool = False) -> Result:
    warnings = []
    what = dataset.get("kind", PICTURES)
    for kind, text in (
        ("in_several_splits", "{} are copies of one in another split: see --split-by content"),
        ("with_several_labels", "{} are copies of one with another label"),
    ):
        if count := dataset["duplicates"][kind][what]:
            one, other, *_ = dataset["duplicates"][kind]["named"][0]
            warnings.append(f"{text.format(f'{count} {what}')} ({one} and {other}, for one)")
    counts = {name: split["records"] for name, split in dataset["splits"].items()}
    heard = ""
    if what == SOUNDS:
        told = dataset["statistics"]
        heard = f"{dataset['form']['seconds']:g} s of each heard"
        heard += f" ({told['longer']} are longer, {told['shorter']} shorter)"
        if silent := told["silent"]["named"]:
            warnings.append(f"{told['silent']['sounds']} sounds are silent ({silent[0]}, for one)")
    skipped = tuple(dataset["skipped"])
    return Result(out, counts, skipped, tuple(warnings), taken_over, same, heard)


def _there_already(out: Path, whole: str) -> Result:
    try:
        dataset = json.loads((out / "dataset.json").read_text())
        if dataset["made_from"] == whole:
            return _result(out, dataset, 0, same=True)
    except (OSError, ValueError, KeyError):
        pass
    raise RecordsError(f"{out}: exists; records are written to a new folder")


def _class_names(source: Path, items: Sequence[Item], given: tuple[str, ...]) -> tuple[str, ...]:
    found = {item.label for item in items}
    if any("\n" in name for name in found):
        raise RecordsError(f"{source}: a class name has a line break in it")
    if given:
        if unknown := sorted(found - set(given)):
            raise RecordsError(f"{source}: class {unknown[0]!r} is not in --labels")
        return given
    if len(found) < 2:
        raise RecordsError(
            f"{source}: needs two or more classes, a folder each; has {len(found)} "
            f"({', '.join(sorted(found))})"
        )
    numbers = all(name.isdecimal() for name in found)  # Then 2 comes before 10.
    return tuple(sorted(found, key=lambda name: (int(name) if numbers else 0, name)))


def _contents(
    items: Sequence[Item],
    pool: ProcessPoolExecutor | None,
    progress: Progress,
    tell: Tell,
) -> dict[str, str]:
    """SHA-256 of each one's bytes; of its name where it cannot be read."""
    keys = {}
    digests = (
        pool.map(_content_digest, items, chunksize=16) if pool else map(_content_digest, items)
    )
    for item, digest in zip(items, digests, strict=True):
        keys[item.name] = digest
        progress.done += 1
        if progress.done % 256 == 0:
            tell(progress)
    return keys


def _content_digest(item: Item) -> str:
    try:
        return hashlib.sha256(item.read()).hexdigest()
    except OSError:
        return _digest(item.name)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_text(content)
    temporary.rename(path)


@contextlib.contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """The folder of work, for one run at a time. Raises RecordsError where there is another."""
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


def _pool(workers: int) -> ProcessPoolExecutor:
    # Spawned, not forked: whoever calls may have threads, TensorFlow's for one.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_worker, initargs=(os.getpid(),))


def _worker(parent: int) -> None:
    """A worker process: the main one answers Ctrl-C, and none outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Line:
    """Progress on stderr: one line that is written over on a terminal, else one every 10 s."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = -math.inf if sys.stderr.isatty() else self._began
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        finished = progress.total and progress.done == progress.total
        if now - self._last < (0.1 if terminal else 10) and not (finished and terminal):
            return
        self._last = now
        text = progress.phase
        if progress.total:
            made = progress.done - progress.taken_over
            rate = made / max(now - self._began, 1e-9)
            text += f" {progress.done:,} of {progress.total:,}, {rate:,.0f} a second"
            if made and not finished:
                text += f", {(progress.total - progress.done) / rate:,.0f} s left"
            if progress.skipped:
                text += f", {progress.skipped} skipped"
        self._width = max(self._width, len(text))
        sys.stderr.write(f"\r{text:<{self._width}}" if terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._width and sys.stderr.isatty():
            sys.stderr.write("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    line = Line()

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
    try:
        labels: tuple[str, ...] = ()
        if given.labels:
            labels = tuple(given.labels.read_text().splitlines())
            if len(set(labels)) < 2 or not all(labels) or len(set(labels)) < len(labels):
                raise RecordsError(
                    f"{given.labels}: needs two or more names, a line each, no two equal"
                )
        options = Options(
            form=given.form,
            validation=given.validation,
            split_by=given.split_by,
            shard_size=given.shard_size,
            skip=given.on_error == "skip",
            labels=labels,
            workers=given.workers,
        )
        result = convert(given.source, given.out, options, line)
    except (RecordsError, OSError) as error:
        line.end()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: the same command goes on where it was", file=sys.stderr)
        return 130
    line.end()
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
    heard = f": {result.heard}" if result.heard else ""
    print(f"{text} examples in {result.out}{already}{heard}")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.records", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("source", type=Path, help="folder of class folders, CSV file, or archive")
    add("out", type=Path, help="new folder")
    add(
        "--encoding",
        choices=ENCODINGS,
        help="jpeg (small, the default), png (no loss), keep (files as they are where they can "
        "be), uint8 (pixels: 5 to 10 times larger, no decoding; needs --resize)",
    )
    add("--quality", type=int, help="of JPEGs, 1 to 100 (90)")
    add("--subsampling", choices=("4:2:0", "4:2:2", "4:4:4"))
    add(
        "--resize",
        type=int,
        metavar="N",
        help="pixels of the shorter side; never enlarges. With "
        "--square and for uint8: of the square that the whole picture becomes",
    )
    add(
        "--square",
        action="store_true",
        help="squares of --resize pixels, all of the same size: those of "
        "--image-size need no resizing in training",
    )
    add("--background", help="seen through transparency (white)")
    add("--rate", type=int, help="of sounds: samples a second (16000)")
    add(
        "--seconds",
        type=float,
        help="of sounds: what the model hears of each; longer ones are kept whole, and training "
        f"draws another part in each epoch (as long as the longest, but at most {sounds.HEARD:g})",
    )
    add("--validation", type=float, default=0.1, help="share of each class held out (0.1)")
    add(
        "--split-by",
        choices=("name", "content"),
        default="name",
        help="content: copies of a file are on the same side; reads everything twice",
    )
    add("--labels", type=Path, help="file of class names, label 0 first (default: sorted)")
    add("--shard-size", type=int, help=f"most examples a file ({SHARD_SIZE}, fewer for few)")
    add(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="a picture or sound that cannot be read: ends the run, or is named and left out",
    )
    add("--workers", type=int, default=0, help="processes (one a core)")
    given = parser.parse_args(arguments)
    if not 0 < given.validation < 1:
        parser.error("--validation is between 0 and 1")
    for name, least, most in (
        ("shard_size", 1, 10**9),
        ("quality", 1, 100),
        ("resize", 1, 65535),
        ("rate", 1000, 192000),
        ("seconds", 0.01, sounds.LONGEST),
        ("workers", 0, 1024),
    ):
        value = getattr(given, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')} is between {least:g} and {most:g}")
    if (given.encoding == "uint8" or given.square) and not given.resize:
        what = "--square" if given.square else "--encoding uint8"
        parser.error(f"{what} needs --resize: all pictures then have one size")
    asked = {field.name: vars(given).get(field.name) for field in fields(Form)}
    asked = {name: value for name, value in asked.items() if value not in (None, False)}
    heard = {name: vars(given)[name] for name in ("rate", "seconds") if vars(given)[name]}
    if asked and heard:
        text = f"--{next(iter(asked))} is of pictures and --{next(iter(heard))} of sounds"
        parser.error(f"{text}: a source has the ones or the others")
    given.form = Form(**asked) if asked else sounds.Form(**heard) if heard else None
    if given.background:
        _check_colour(parser, given.background)
    return given


def _check_colour(parser: argparse.ArgumentParser, colour: str) -> None:
    try:
        from PIL import ImageColor

        ImageColor.getrgb(colour)
    except ImportError:
        parser.error("--background needs Pillow: pip install pillow")
    except ValueError:
        parser.error(f"--background {colour}: is no colour (white, #ff8800 ...)")


if __name__ == "__main__":
    sys.exit(main())
