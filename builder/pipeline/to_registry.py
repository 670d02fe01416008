"""`builder build --to-registry`: a training image onto its base in the registry, from files alone.

What a code change needs, and nothing else: a target that was checked before (checked.py) costs
neither the libraries of the check nor an engine. Every other one goes the whole way first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, prefixed, step
from builder.core.project import IMAGES
from builder.core.settings import Settings
from builder.core.templates import DOCKERFILE
from builder.pipeline import append, checked, plan
from builder.pipeline.checked import Program
from builder.pipeline.plan import ImagePlan

if TYPE_CHECKING:
    from builder.engine import Engine


@dataclass(frozen=True)
class Unproven:
    """An image in the registry that nothing has proven yet. digest: of its manifest."""

    reference: str
    digest: str


@dataclass(frozen=True)
class Thin:
    """A training image to be put onto its base. inputs: as Plan.inputs_hash."""

    target: str
    image: ImagePlan
    inputs: str


def build(
    root: Path,
    settings: Settings,
    targets: Sequence[str],
    engine: Callable[[], Engine],
    on_event: OnEvent = ignore,
) -> tuple[Unproven, ...]:
    """Put these targets' training images onto their bases in the registry: kilobytes each way.

    An engine is only asked for where a Dockerfile does more than copy the trainer. The tag is
    `unproven-<hash>`: no tag that people follow moves before a smoke run. Nothing is sent before
    all targets are checked. Raises what a check raises (prepare.prepare), InputError without a
    registry, OutsideError where that lacks a base.
    """
    found = [recalled(root, target) or prepared(root, target) for target in targets]
    if not settings.registry:
        raise InputError(
            "no registry is set: there is nowhere to build to",
            'use --registry HOST/PATH, or write registry = "HOST/PATH" in builder.toml',
        )
    return tuple(_send(root, settings.registry, one, engine, on_event) for one in found)


def recalled(root: Path, target: str) -> Thin | None:
    """A target that was checked as it lies there; None where a check has to be made."""
    program = checked.recall(root, target)
    if program is None:
        return None
    dockerfile = (root / IMAGES / target / DOCKERFILE).read_text(encoding="utf-8")
    reading = append.read(dockerfile)
    if reading is None:
        return None
    files = plan.trainer(root, program.package, program.flat)
    image = ImagePlan(plan.content_hash(dockerfile, files), dockerfile, files)
    return Thin(target, image, plan.inputs_hash(reading.base.removeprefix("base-"), image.hash))


def prepared(root: Path, target: str) -> Thin:
    """A target, checked as a whole; what that found is kept for the next time."""
    from builder.pipeline import prepare
    from builder.spec import catalogue

    spec = catalogue.load(root, target)
    program = Program(spec.trainer.package, spec.trainer.module, spec.trainer_folder.flat)
    seen = checked.inputs(root, target, program)
    item = prepare.prepare(root, target, spec)
    checked.keep(root, target, program, seen)
    return Thin(target, item.plan.image, item.plan.inputs_hash)


def _send(
    root: Path, repository: str, one: Thin, engine: Callable[[], Engine], on_event: OnEvent
) -> Unproven:
    to = registry.parse(repository).tagged(f"unproven-{one.inputs[:16]}")
    events = prefixed(one.target, on_event)
    if reading := append.read(one.image.dockerfile):
        with step(f"append to {reading.base}", events) as appending:
            sent = append.append(one.image, reading, to, appending.log)
        if sent:
            return Unproven(str(to), sent.digest)
    from builder.pipeline import build as building
    from builder.pipeline import prepare

    reference, item = f"{repository}:{to.tag}", prepare.prepare(root, one.target)
    built = building.thin(engine(), item, reference, "registry", False, events)
    assert built.digest
    return Unproven(reference, built.digest)
