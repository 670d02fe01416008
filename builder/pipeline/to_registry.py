"""`builder build --to-registry`: put a training image onto its base in the registry.

For a code change; with `--base-only`, for the base itself. A target that was checked before
(checked.py) needs neither the libraries of the check nor an engine. Every other target is prepared
as a whole first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bases import assembled, sharing, store
from builder.bases.layer import Compression, Layer
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore, prefixed, step
from builder.core.project import IMAGES
from builder.core.settings import Settings
from builder.core.templates import DOCKERFILE
from builder.pipeline import append, checked, plan, repository
from builder.pipeline.append import CopyOnly
from builder.pipeline.checked import CheckedProgram
from builder.pipeline.plan import ImagePlan
from builder.pipeline.repository import CheckBase
from builder.registry import Reference, Registry

if TYPE_CHECKING:
    from builder.engine import Engine


_BASE = re.compile(r"^FROM \$\{REPOSITORY\}:(base-[0-9a-f]+)", re.MULTILINE)


@dataclass(frozen=True)
class Unproven:
    """An image in the registry without a receipt. digest: of its manifest."""

    reference: str
    digest: str


@dataclass(frozen=True)
class Thin:
    """A training image that is put onto its base. inputs: as Plan.inputs_hash."""

    target: str
    image: ImagePlan
    inputs: str
    compression: Compression


def build(
    root: Path,
    settings: Settings,
    targets: Sequence[str],
    engine: Callable[[], Engine],
    on_event: OnEvent = ignore,
) -> tuple[Unproven, ...]:
    """Put the training images of these targets onto their bases in the registry.

    The tag is `unproven-<hash>`; the tags that people follow move after a smoke run only. All
    targets are checked before anything is sent. engine: called where a Dockerfile does more than
    copy the trainer. Raises what prepare.prepare raises,
    InputError without a registry, OutsideError where the registry lacks a base.
    """
    found = [recalled(root, target) or prepared(root, target) for target in targets]
    where = repository.of(settings, "build")
    check = repository.base_check(settings)
    return tuple(_send(where, one, engine, check, on_event) for one in found)


def build_bases(
    root: Path,
    settings: Settings,
    targets: Sequence[str],
    engine: Callable[[], Engine],
    on_event: OnEvent = ignore,
) -> tuple[Unproven, ...]:
    """Put the bases of these targets into the registry, and offer their layers by their keys.

    engine: called where an OS root has to be made that neither this machine nor the registry has.
    Raises what prepare.prepare raises, InputError without a registry or for a published base.
    """
    from builder.bases.forecast import Destination
    from builder.pipeline import bases, prepare

    where = repository.of(settings, "build")
    to = Destination("the registry", partial(_lacked, where))
    items: dict[str, prepare.Prepared] = {}
    for target in targets:
        item = prepare.prepare(root, target)
        if item.plan.base is None:
            raise InputError(f"{target}: its base is {item.spec.base}", "there is none to build")
        items.setdefault(item.plan.base.tag, item)
    made = []
    for tag, item in items.items():
        image = bases.in_registry(settings, tag)
        if image is None:
            (image,) = bases.assembled(settings, [item], engine, to, on_event)
            bases.upload(where, tag, image, on_event)
        made.append(Unproven(str(where.tagged(tag)), image.digest))
    return tuple(made)


def _lacked(where: Reference, layers: Sequence[Layer | None]) -> tuple[bool, ...]:
    with Registry(where.host) as there:
        return sharing.lacked(there, where.repository, layers)


def recalled(root: Path, target: str) -> Thin | None:
    """A target that was checked before and has not changed; None where it has to be checked."""
    program = checked.recall(root, target)
    if program is None:
        return None
    dockerfile = (root / IMAGES / target / DOCKERFILE).read_text(encoding="utf-8")
    reading = append.read(dockerfile)
    if reading is None:
        return None
    files = plan.program_files(root, program.package, program.flat, dockerfile)
    image = ImagePlan(plan.content_hash(dockerfile, files), dockerfile, files)
    inputs = plan.inputs_hash(reading.base.removeprefix("base-"), image.hash)
    return Thin(target, image, inputs, Compression.of(program.compression))


def prepared(root: Path, target: str) -> Thin:
    """A target, prepared as a whole; the result of the check is kept for the next time."""
    from builder.pipeline import prepare
    from builder.spec import catalogue

    spec = catalogue.load(root, target)
    program = CheckedProgram(
        spec.trainer.package, spec.trainer.module, spec.trainer_folder.flat, spec.compression
    )
    seen = checked.inputs(root, target, program)
    item = prepare.prepare(root, target, spec)
    checked.keep(root, target, program, seen)
    return Thin(target, item.plan.image, item.plan.inputs_hash, Compression.of(spec.compression))


def _send(
    where: Reference,
    one: Thin,
    engine: Callable[[], Engine],
    check: CheckBase | None,
    on_event: OnEvent,
) -> Unproven:
    to = where.tagged(f"unproven-{one.inputs[:16]}")
    events = prefixed(one.target, on_event)
    if copied := append.read(one.image.dockerfile):
        with (
            step(f"append to {copied.base}", events) as appending,
            Registry(to.host, said=appending.log) as there,
        ):
            return Unproven(str(to), _append(there, to, one, copied, check, events))
    if check and (base := _BASE.search(one.image.dockerfile)):
        with Registry(where.host) as there:
            if digest := there.head(where.repository, base[1]):
                check(there, digest, base[1])
    from builder.pipeline import build as building

    built = building.with_buildkit(engine(), one.image, str(to), "registry", False, events)
    assert built.digest
    return Unproven(str(to), built.digest)


def _append(
    there: Registry,
    to: Reference,
    one: Thin,
    copied: CopyOnly,
    check: CheckBase | None,
    on_event: OnEvent,
) -> str:
    """Put the image onto its base in the registry. Returns its digest. Raises OutsideError."""
    base = assembled.in_registry(there, to.tagged(copied.base))
    if base is None:
        raise OutsideError(
            f"{to.tagged(copied.base)}: the registry does not have the base",
            f"push it once: builder build {one.target} --base-only --to-registry",
        )
    if check:
        check(there, base.digest, copied.base)
    kept = store.of_this_machine()
    image = append.image(kept, base, copied, one.image.files, one.compression)
    sharing.publish(there, to, image, kept.path, on_event)
    return image.digest
