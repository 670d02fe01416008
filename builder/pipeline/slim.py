"""`builder slim`: another image of anybody's, without what it can be without.

builder/prove/slimming.py says what goes, slim_layers.py makes the new image. The source stays as it
is, and nothing is written before the new image has passed the checks that the old one passed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import registry
from builder.audit import sources
from builder.audit.audited import gpu_named
from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.devicecode import reader
from builder.devicecode.dynamic import Dynamic
from builder.devicecode.pruning.elf import LIBRARY_NAME, MAGIC
from builder.devicecode.pruning.prune import EULA
from builder.engine import Engine
from builder.engine.discovery import connect
from builder.image import content_store, loading, opened, registry_layers, rewriting
from builder.image.content_store import ContentStore
from builder.image.opened import OpenedImage
from builder.image.tarball import pieces
from builder.pipeline import slim_layers
from builder.prove import slimming, suites
from builder.prove.checks import compile as compiling
from builder.prove.checks import start
from builder.prove.image import Image
from builder.prove.receipts import CheckResult
from builder.prove.session import JOB
from builder.prove.slimming import SlimmingPlan
from builder.reading import tars
from builder.reading.images import ImageContent
from builder.registry import Reference, Registry

Place = Path | Reference | str
"""An archive, a tag in a registry, or a name in the engine."""


@dataclass(frozen=True)
class SlimRequest:
    """An image that somebody wants to have without what it can be without."""

    image: str
    """In a registry, in the engine, an archive or an OCI layout."""
    settings: Settings
    gpu: str | None = None
    output: str | None = None
    """What `_place_of` says; by default beside the source, with `-slim`."""
    command: str | None = None
    """Runs in both images, in the engine, and has to end the same."""
    nvidia: bool = False
    """Prune NVIDIA's own libraries, too."""
    dry_run: bool = False


def slim(request: SlimRequest, on_event: OnEvent = ignore) -> dict[str, Any]:
    """Write another image without what it can be without; return its receipt, with a `reference`
    and a `digest` where one was written (slim_layers.py).

    Raises InputError for a GPU that is not known, for one that is not named for an image with
    device code, and for a place that is taken; CheckFailed where the image has nothing that its GPU
    runs, where a check says more of the new image than of the old one, and where the command ends
    otherwise; OutsideError.
    """
    gpu = gpu_named(request.gpu) if request.gpu else None
    engine = functools.cache(lambda: connect(request.settings, False, on_event))
    home = content_store.of_this_machine()
    home.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=home.unfinished, dir=home.folder) as folder:
        store = ContentStore(Path(folder))
        with step(f"read {request.image}", on_event), opened.refusals(request.image):
            source = sources.found(
                request.image,
                functools.partial(opened.of_archive, store),
                lambda: functools.partial(opened.of_engine, store, engine()),
                functools.partial(opened.of_registry, store, on_event),
                request.settings.registry,
            )
            image = Image(source.content(), gpu)
            programs = _programs(source, image.content) if slimming.doubled(image) else {}
        place = _place_of(request, source)
        plan = slimming.plan(image, request.nvidia, programs)
        more = {"notes": _notes(request, image, plan), "reference": "", "digest": ""}
        if request.dry_run or not plan.changes:
            return slim_layers.receipt(request.image, gpu, plan) | more
        if isinstance(place, Reference):
            with Registry(place.host) as client:
                client.check_write(place.repository)
        if isinstance(place, str) or request.command is not None:
            engine()  # before the work
        with step("write the layers anew", on_event), opened.refusals(request.image):
            made, plan = slim_layers.make(request.image, source, image, plan)
        _compare(request, (source, image), (made, Image(made.content(), gpu)), engine, on_event)
        _write(source, made, place, engine, on_event)
        more |= {"reference": str(place), "digest": made.image.digest}
        layers = source.image.layers, made.image.layers
        return slim_layers.receipt(request.image, gpu, plan, *layers) | more


def lines(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield a receipt for people: what goes, the layers, what is left alone."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for each in said["files"]:
        kinds.setdefault(each["why"], []).append((each["before"] - each["after"], each["path"]))
    sums = {why: sum(size for size, _ in rows) for why, rows in kinds.items()}
    for why, rows in sorted(kinds.items(), key=lambda kind: -sums[kind[0]]):
        yield f"{sums[why] / 1e6:>9,.1f} MB  {why}: {len(rows)} files such as {max(rows)[1]}"
    for path, why in said["left_alone"].items():
        yield f"left alone: {path}: {why}"
    for at in said["layers"]:
        if at["before"] != at["after"]:
            name = at["before"][7:19] or "new"
            yield f"layer {name:<12}  {_sizes(at)}"
    yield from said["notes"]
    if said["reference"]:
        yield f"{said['reference']}: {_sizes(said)}; {said['digest']}"
    else:
        yield f"{sum(sums.values()) / 1e6:,.1f} MB of its files can go; nothing was written"


def _sizes(at: Mapping[str, Any]) -> str:
    return f"{at['bytes_before'] / 1e6:,.1f} MB -> {at['bytes_after'] / 1e6:,.1f} MB packed"


def _place_of(request: SlimRequest, source: OpenedImage) -> Place:
    """Return where the new image goes.

    A path or a name that ends with .tar is an archive, HOST/REPOSITORY:TAG a registry's, any other
    a name in the engine; nothing is a place beside the source. Raises InputError where the source,
    or another archive, lies there.
    """
    name, output = request.image, request.output
    in_engine = bool(source.image_id)
    here = source.reference or (registry.parse(name) if in_engine else None)
    if output is None and here is None:
        output = str(Path(name).absolute().with_name(f"{Path(name).stem}-slim.tar"))
    elif output is None and here:
        if here.digest or re.fullmatch("[0-9a-f]{12,64}|sha256:.*", name):
            raise InputError(f"{name}: has no tag to name another image by", "name it with -o")
        beside = here.tagged(f"{here.tag or 'latest'}-slim")
        output = f"{_repository(name)}:{beside.tag}" if in_engine else str(beside)
    assert output is not None
    if output.endswith(".tar") or output.startswith(("/", "./", "../")):
        if Path(output).exists():
            raise InputError(f"{output}: is there already", "name another place with -o")
        return Path(output)
    named = registry.parse(output)
    named = named.tagged(named.tag or "latest")
    is_host = re.match(r"(localhost|[^/]*[.:][^/]*)/", output)
    to_engine = not is_host or (request.output is None and in_engine)
    tagged = here and not here.digest and in_engine == to_engine
    if here and tagged and here.tagged(here.tag or "latest") == named:
        raise InputError(f"{output}: is there already", "name another place with -o")
    return f"{_repository(output)}:{named.tag}" if to_engine else named


def _repository(name: str) -> str:
    return re.sub(r":[^/:]*$", "", name)


def _programs(source: OpenedImage, content: ImageContent) -> dict[str, Dynamic]:
    found: dict[str, Dynamic] = {}
    for layer, read in zip(source.image.layers, content.layers, strict=True):
        executable = {
            path
            for path, at in read.files.items()
            if at.mode & 0o111 and at.size and not LIBRARY_NAME.search(path)
        }
        for path, file in rewriting.files(source.path(layer), executable):
            if (head := file.read(len(MAGIC))) == MAGIC:
                whole = tars.stream(itertools.chain([head], pieces(file)))
                if linked := reader.read_stream(whole, path).dynamic:
                    found[path] = linked
    return found


def _notes(request: SlimRequest, image: Image, plan: SlimmingPlan) -> Sequence[str]:
    notes = ["signatures, receipts and attestations are of the old image: none holds for the new"]
    if any(".dist-info/RECORD." in path for path in image.tree.files):
        notes.append("a wheel's signature of its RECORD (RECORD.jws) no longer holds")
    if request.nvidia and any(change.action == "prune" for change in plan.changes):
        notes.append(EULA.replace("`all`", "--nvidia"))
    return notes


# --- proving and writing it -----------------------------------------------------------------------


def _compare(
    request: SlimRequest,
    old: tuple[OpenedImage, Image],
    new: tuple[OpenedImage, Image],
    engine: Callable[[], Engine],
    on_event: OnEvent,
) -> None:
    """Ask the checks of `builder prove` about both images, and start both where the old one is in
    the engine, or a command is named. Raises CheckFailed where the new one is worse."""
    name, command = request.image, request.command
    with step("prove both", on_event):
        _no_worse(name, suites.IMAGE.judge(old[1]), suites.IMAGE.judge(new[1]))
    if not old[0].image_id and command is None:
        return
    runs = []
    for source, image in (old, new):
        with _in_engine(engine(), source, on_event) as image_id:
            more = compiling.arguments_of(JOB) if image.is_ours else ()
            runs.append(start.start(engine(), image_id, name, command, on_event, None, more))
    ends = [(run.run.exit_code, run.run.timed_out) for run in runs if run]
    if command is not None and len({*ends}) > 1:
        raise CheckFailed(
            f"{command}: ends with {ends[0][0]} in {name}, and with {ends[1][0]} without what would"
            f" go; it said last: {runs[1].run.last if runs[1] else ''}",
            "builder slim --dry-run lists what would go; nothing was written",
        )
    started = [
        replace(image, started=run) for (_, image), run in zip((old, new), runs, strict=True)
    ]
    before, after = map(start.CHECK.judge, started)
    _no_worse(name, [before], [after])


def _no_worse(name: str, before: Iterable[CheckResult], after: Iterable[CheckResult]) -> None:
    """Raise CheckFailed where a check says of the new image what it does not say of the old one.

    A check that refuses the old one names the largest reason, which may be another one then.
    """
    for old, new in zip(before, after, strict=True):
        known = {defect.message for defect in (*old.problems, *old.findings)}
        fresh = [each for each in new.problems if each.message not in known]
        fresh = fresh if len(new.problems) > len(old.problems) else []
        fresh += [each for each in new.findings if each.message not in known]
        if fresh or (new.not_followed and not old.not_followed):
            what = fresh[0].message if fresh else f"could not follow {new.not_followed}"
            raise CheckFailed(
                f"{name}: after what would go, the check {new.name} says: {what}",
                "builder slim --dry-run lists what would go; nothing was written",
            )


@contextlib.contextmanager
def _in_engine(engine: Engine, image: OpenedImage, on_event: OnEvent) -> Iterator[str]:
    """Give the engine's ID of an image, which goes in for that time if it is not there."""
    if image.image_id:
        yield image.image_id
        return
    image.fetch(image.image.layers)
    name = f"{LOCAL_REPOSITORY}:slim-{image.image.digest[7:19]}"
    try:
        yield loading.load(engine, image.image, image.store, name, on_event).image_id
    finally:
        with contextlib.suppress(Exception):  # the engine may be gone
            engine.client.images.remove(name, noprune=True)


def _write(
    source: OpenedImage,
    made: OpenedImage,
    place: Place,
    engine: Callable[[], Engine],
    on_event: OnEvent,
) -> None:
    """Write the new image. What its registry has of the source's layers does not travel."""
    image, store = made.image, made.store
    there = source.reference.name if source.reference else None
    if not (isinstance(place, Reference) and place.name == there):
        made.fetch(image.layers)
    if isinstance(place, Reference):
        with Registry(place.host) as client:
            registry_layers.publish(client, place, image, store, on_event)
    elif isinstance(place, str):
        loading.load(engine(), image, store, place, on_event)
    else:
        tag = re.sub(r"[^\w.-]", "-", place.stem, flags=re.ASCII).lstrip(".-")[:128]
        archive = loading.Archive(image, store, f"{LOCAL_REPOSITORY}:{tag or 'slim'}")
        with step(f"write {place}", on_event) as writing, files.replacing(place) as file:
            file.writelines(archive.stream(lambda count: writing.progress(count, archive.size)))
