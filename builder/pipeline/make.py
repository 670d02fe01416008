"""The way of an image, top to bottom: from image.yaml to a proven image on the engine.

    image.yaml -> stack -> lock -> plan -> layers -> image on the engine -> proof -> receipt

What is built and proven already is skipped.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder import registry
from builder.config import device_code, image_yaml, targets
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import Lock
from builder.config.stack import Stack
from builder.config.targets import TargetFiles
from builder.core import files
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent, RunningStep, ignore, prefixed, step
from builder.core.files import hash_of
from builder.core.project import tag_of, templates_of
from builder.core.settings import LOCAL_REPOSITORY, Settings, TrustSettings
from builder.facts import frameworks
from builder.image import content_store, dockerfile, layers_lock, program
from builder.image.layer import Compression
from builder.image.layers_lock import LayersLock
from builder.image.plan import BasePlan
from builder.image.program import AssembledPlan, BuiltPlan, ImagePlan
from builder.pipeline import records
from builder.pipeline.records import ImageRecord

if TYPE_CHECKING:
    from builder.engine import Engine
    from builder.image.layer import AssembledImage
    from builder.image.plan import Availability, Estimate
    from builder.prove.receipts import Receipt


@dataclass(frozen=True)
class Target:
    spec: ImageSpec
    stack: Stack
    lock: Lock
    base: BasePlan | None
    """None where its base is a published image."""
    image: ImagePlan
    layers: LayersLock
    """What images/layers.lock says of the project's bases."""

    @property
    def committed_base(self) -> AssembledImage | None:
        """The base that the target has to have; None where layers.lock lacks one of its layers."""
        from builder.image import base

        return base.committed(self.base, self.layers) if self.base else None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def inputs(self) -> str:
        """A hash over everything that decides the image: equal hashes give equal images."""
        return hash_of(self.base.hash if self.base else "", self.image.hash)


@dataclass(frozen=True)
class ProvenImage:
    record: ImageRecord
    receipt: Receipt
    unchanged: bool
    """It was built and proven before."""


Prove = Callable[[Path, "Engine", Target, ImageRecord, OnEvent], "tuple[Receipt, bool]"]
"""Returns the receipt of an image on the engine, and whether it was written now; proves the image
where no receipt holds (builder/pipeline/proof.py)."""


Signed = Callable[[LayersLock, TrustSettings], LayersLock]
"""Returns the lines with those `unsigned` that too few rebuilders signed
(builder/trust/rebuilders.py)."""


@dataclass(frozen=True)
class BuildOptions:
    settings: Settings
    on_event: OnEvent = ignore
    no_cache: bool = False
    """Make every layer again."""
    signed: Signed | None = None
    """Whoever sets `layers` of [trust] brings it."""

    def known(self, lock: LayersLock) -> LayersLock:
        """Return the lines whose layers may be taken from elsewhere, by [trust]."""
        if not self.settings.trust.layers:
            return lock
        assert self.signed
        return replace(self.signed(lock, self.settings.trust), elsewhere={})


def prepare(root: Path, name: str) -> Target:
    """Load, resolve, read the lock, render and plan a target. Files are read, none is written.

    Raises InputError for what image.yaml cannot mean, CheckFailed where the lock or the Dockerfile
    no longer fits image.yaml.
    """
    return prepared(targets.of(root, name))


def prepared(target: TargetFiles) -> Target:
    """Return what `prepare` does, of a target that is loaded."""
    root, spec, stack = target.root, target.spec, target.stack
    _check_program(root, spec)
    lock, stale = target.checked()
    if lock is None or stale:
        raise CheckFailed(f"{stale[0].file}: {stale[0].why}", stale[0].fix)
    driver = device_code.driver(root, stack, lock)
    rendered = dockerfile.render(spec, stack, lock, templates_of(root), driver)
    committed = [rendered] if target.home == root else ()  # nobody commits a --program's
    if differences := dockerfile.differences(root, dockerfile.texts(root, committed)):
        raise CheckFailed(
            f"{differences[0]} is not what image.yaml and the templates give",
            f"builder render {target.name}",
        )
    context = program.files(root, spec, stack)
    if rendered.base is None:  # BuildKit installs what is locked
        context |= {file: program.File(text.encode()) for file, text in lock.files.items()}
    image: ImagePlan = BuiltPlan(rendered.dockerfile, context, installs=rendered.base is None)
    if rendered.copies_only:
        packed = Compression.of(spec.compression)
        image = AssembledPlan(rendered.dockerfile, context, rendered.config, packed)
    return Target(spec, stack, lock, rendered.base, image, layers_lock.of(target.home))


def _check_program(root: Path, spec: ImageSpec) -> None:
    """Raise InputError for the packaged trainer beside another framework than its own."""
    if spec.program.is_packaged(root) and spec.framework != frameworks.DEFAULT:
        title = frameworks.of(spec.framework).title
        raise InputError(
            f"{image_yaml.where(spec, 'program')}: no program is named, and the packaged trainer "
            f"has no {title}",
            "write `program: FOLDER:MODULE` and `suite: program`; `.` is this folder",
        )


def make(
    root: Path,
    wanted: Sequence[TargetFiles],
    options: BuildOptions,
    connect: Callable[[], Engine],
    prove: Prove,
) -> tuple[ProvenImage, ...]:
    """Build and prove these targets; skip what the last build and its receipt still hold for.

    Of two runs at once, the second waits and finds the targets done. connect: called when every
    target is prepared. prove: writes the receipt. Raises what `prepare` raises, CheckFailed,
    OutsideError.
    """
    targets = [prepared(target) for target in wanted]
    layers = {target.layers.path: target.layers for target in targets}  # what one adds all know
    targets = [replace(target, layers=layers[target.layers.path]) for target in targets]
    engine = connect()
    with contextlib.ExitStack() as locks:
        # in one order, so that two runs do not wait for each other
        for name in sorted({target.name for target in targets}):
            locks.enter_context(files.locked(records.folder(root, name) / ".lock"))
        built = {
            target.name: records.up_to_date(root, engine, target.name, target.inputs)
            for target in targets
        }
        bases: dict[str, Base] = {}
        for lock in layers.values():  # that of the project, or of each --program
            new = [item for item in targets if item.layers is lock and not built[item.name]]
            bases |= load_bases(new, options, engine)
        proven = []
        for target in targets:
            record = built[target.name] or build_image(root, target, bases, options, engine)
            receipt, is_new = prove(root, engine, target, record, options.on_event)
            proven.append(ProvenImage(record, receipt, record == built[target.name] and not is_new))
    return tuple(proven)


def build(
    root: Path, targets: Sequence[Target], options: BuildOptions, engine: Engine
) -> tuple[ImageRecord, ...]:
    """Build the images of these targets on the engine; a base that several share is made once.

    Raises OutsideError, CheckFailed.
    """
    bases = load_bases(targets, options, engine)
    return tuple(build_image(root, target, bases, options, engine) for target in targets)


# --- the base -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    reference: str
    image: AssembledImage
    origin: str
    """"engine" where it was there, "cache" where this machine had all layers, "registry" where some
    came from there, "assembled" where some had to be made."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Name -> seconds."""

    @property
    def row(self) -> dict[str, str]:
        known = {"reference": self.reference, "digest": self.image.digest}
        return {**known, "origin": self.origin}


@dataclass(frozen=True)
class LoadPlan:
    """What it takes to have the bases of some targets on the engine."""

    loaded: Mapping[str, Base]
    """The bases that it has, by hash."""
    plans: Mapping[str, BasePlan]
    """Those that it lacks, by hash."""
    available: Availability
    """Where the layers of these are."""

    @property
    def estimate(self) -> Estimate:
        return self.available.estimate(self.plans.values())


def plan_load(targets: Sequence[Target], options: BuildOptions, engine: Engine) -> LoadPlan:
    """Return where the bases of these targets are, and what it takes to have them on the engine.

    Raises OutsideError, CheckFailed.
    """
    from builder.image import base, loading

    store = content_store.of_this_machine()
    loaded: dict[str, Base] = {}
    plans = {target.base.hash: target.base for target in targets if target.base}
    lock = options.known(targets[0].layers)
    for hash_, plan in list(plans.items()):
        image = None if options.no_cache else base.committed(plan, lock)
        name = f"{LOCAL_REPOSITORY}:{plan.tag}"
        if image and loading.present(engine, image, name):
            loaded[hash_] = Base(name, image, "engine")
            del plans[hash_]
    available = base.look_up(plans.values(), store, options.settings, lock, options.no_cache)
    return LoadPlan(loaded, plans, available)


def load_bases(targets: Sequence[Target], options: BuildOptions, engine: Engine) -> dict[str, Base]:
    """Return the bases of these targets on the engine, by hash; what they share is made once.

    Raises OutsideError, CheckFailed.
    """
    hashes = {target.base.hash for target in targets if target.base}
    if not hashes:
        return {}
    from builder.image import base, loading
    from builder.image.loading import Preload

    on_event = options.on_event
    together = _of_base(next(iter(hashes)), on_event) if len(hashes) == 1 else on_event
    with step("plan", together) as planning:
        planned = plan_load(targets, options, engine)
        report_plan(planning, planned.plans.values(), planned.available)
    bases = {**planned.loaded, **_pulled(planned, options, engine)}
    store, began = content_store.of_this_machine(), time.monotonic()
    plans = [plan for hash_, plan in planned.plans.items() if hash_ not in bases]
    available = planned.available.of(plans)
    origins = {plan.hash: _origin(plan, available) for plan in plans}
    incomplete = [plan for plan in plans if origins[plan.hash] != "cache"]
    with Preload(engine, incomplete, store, LOCAL_REPOSITORY, together) as preload:
        images = base.assemble(
            plans,
            available,
            store,
            options.settings,
            targets[0].layers,
            lambda: engine,
            together,
            preload.add,
        )
        preload.settle()
        assembled = time.monotonic() - began
        for plan, image in zip(plans, images, strict=True):
            began, name = time.monotonic(), f"{LOCAL_REPOSITORY}:{plan.tag}"
            loading.load(engine, image, store, name, _of_base(plan.hash, on_event))
            phases = {"assemble base": assembled, "load base": time.monotonic() - began}
            bases[plan.hash] = Base(name, image, origins[plan.hash], phases)
    return bases


def _pulled(planned: LoadPlan, options: BuildOptions, engine: Engine) -> dict[str, Base]:
    """Return the bases that the engine pulled by itself, by hash: those of which the registry has
    all layers and this machine none, where the engine gives layers out as they were packed."""
    from builder.image import loading

    bases = {}
    source = registry.parse(options.settings.repository)
    for hash_, image in planned.available.whole.items() if engine.knows_content else ():
        plan, events = planned.plans[hash_], _of_base(hash_, options.on_event)
        if not planned.available.of([plan]).stored:
            began, name = time.monotonic(), f"{LOCAL_REPOSITORY}:{plan.tag}"
            if loading.pull(engine, image, name, source, events):
                phases = {"pull base": time.monotonic() - began}
                bases[hash_] = Base(name, image, "registry", phases)
    return bases


def report_plan(planning: RunningStep, plans: Iterable[BasePlan], available: Availability) -> None:
    """Show at a step what some bases take, and which entries of the cache do not count."""
    takes = available.estimate(plans)
    planning.detail, planning.cached = str(takes), not (takes.missing or takes.download)
    for name in available.refused:
        planning.log(f"the cache has other bytes of {name} than images/layers.lock says")


def _report_program(root: Path, target: Target, events: OnEvent) -> None:
    """Say how much of the program's folder an image gets, and what it does not."""
    chosen = target.spec.program
    with step("program", events) as copying:
        copying.detail = f"{len(target.image.files)} files of {chosen.folder}"
        program.name_left_out(chosen.home(root) / chosen.folder, copying)


def _origin(plan: BasePlan, available: Availability) -> str:
    keys = {layer.key for layer in plan.layers}
    if keys & available.missing.keys():
        return "assembled"
    return "registry" if keys & available.offered.keys() else "cache"


def _of_base(hash_: str, on_event: OnEvent) -> OnEvent:
    return prefixed(f"base {hash_[:8]}", on_event)


# --- the training image ---------------------------------------------------------------------------


def build_image(
    root: Path, target: Target, bases: Mapping[str, Base], options: BuildOptions, engine: Engine
) -> ImageRecord:
    """Put a target's program onto its base on the engine; return the record, which is written.

    bases: by hash, on the engine. Raises OutsideError.
    """
    from builder.image import loading

    began, store = time.monotonic(), content_store.of_this_machine()
    base = bases[target.base.hash] if target.base else None
    name = f"{LOCAL_REPOSITORY}:{tag_of(root, target.name)}"
    events = prefixed(target.name, options.on_event)
    _report_program(root, target, events)
    if base and isinstance(target.image, AssembledPlan):
        image = program.assemble(target.image, base.image, store)
        loaded = loading.load(engine, image, store, name, events)
        digest: str | None = image.digest
        compressed: int | None = image.compressed_bytes
        image_id, unpacked = loaded.image_id, loaded.unpacked_bytes
    else:
        built = program.build(engine, target.image, name, "engine", options.no_cache, events)
        digest, image_id = built.digest, built.image_id
        compressed, unpacked = built.compressed_bytes, built.unpacked_bytes or 0
    largest = sorted(target.lock.packages.values(), key=lambda pin: -(pin.bytes or 0))[:5]
    record = ImageRecord(
        target=target.name,
        reference=name,
        digest=digest,
        image_id=image_id,
        inputs=target.inputs,
        base=base.reference if base else target.spec.base,
        base_digest=base.image.digest if base else None,
        base_origin=base.origin if base else "published",
        root=target.lock.rootfs.origin if target.lock.rootfs else target.spec.base,
        compressed_bytes=compressed,
        unpacked_bytes=unpacked,
        budget_bytes=target.spec.size_budget,
        packages=tuple((f"{pin.name} {pin.version}", pin.bytes or 0) for pin in largest),
        phases={**(base.phases if base else {}), "build image": time.monotonic() - began},
        engine=f"{engine.origin} {engine.version}",
        framework=target.spec.framework,
        release=target.stack.release,
        prune=target.stack.prune_mode,
    )
    records.write(root, record)
    return record
