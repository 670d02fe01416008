"""From a target's files to a proven image: the order of the rooms, and what need not be done again.

The one place that knows all stages. Each stage stays a function of values; here they are called one
after the other, bases that several targets share are built once, and a target whose image and
receipt still hold is left alone.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from builder import registry
from builder.core import files, project, templates
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, StepProgress, ignore, prefixed, step
from builder.core.network import discover
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import BuildRequest, BuiltImage, Engine, EngineImage
from builder.facts import accelerators
from builder.lock import check, debian, model, osroot, python
from builder.pipeline import plan, push
from builder.prove import receipts
from builder.prove import smoke as smoking
from builder.prove.bench import Subject
from builder.prove.receipts import Receipt
from builder.render import dockerfiles as render
from builder.spec import catalogue, compatibility
from builder.tensorflow import suite as suites

BUILD = project.BUILD
RECORD = "image.json"
BASES_AT_ONCE = 2
"""Bases built side by side: one downloads while the other unpacks."""


@dataclass(frozen=True)
class Prepared:
    """All that is known of a target before anything is built."""

    spec: catalogue.ImageSpec
    stack: compatibility.Stack
    lock: model.Lock
    plan: plan.Plan

    @property
    def target(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class Base:
    """A base on the engine. phases: name -> seconds; origin: "engine", "registry" or "built"."""

    reference: str
    digest: str | None
    image_id: str
    origin: str
    drift: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageRecord:
    """What a build made; `build/<target>/image.json` holds the same. Sizes in bytes, times in s.

    digest: of the manifest, None on an engine whose store makes one only at the push. inputs: hash
    over everything that decided the image's content. packages: the largest downloads in it.
    """

    target: str
    reference: str
    digest: str | None
    image_id: str
    inputs: str
    base: str | None
    base_digest: str | None
    base_origin: str
    root: str
    drift: tuple[str, ...]
    compressed_bytes: int | None
    unpacked_bytes: int | None
    budget_bytes: int
    packages: tuple[tuple[str, int], ...]
    phases: Mapping[str, float]
    engine: str
    tensorflow: str
    prune: str = "off"

    @property
    def over_budget(self) -> bool:
        """Whether a pull transfers more than the budget allows."""
        return (self.compressed_bytes or 0) > self.budget_bytes


# --- preparing ------------------------------------------------------------------------------------


def prepare(root: Path, target: str) -> Prepared:
    """Load, resolve, read the lock, render and plan; pure, nothing is built.

    Raises InputError for what image.yaml cannot mean, CheckFailed where the lock or a Dockerfile no
    longer says what image.yaml does.
    """
    spec = catalogue.load(root, target)
    stack = compatibility.resolve(spec)
    if stale := check.stale(root, spec, stack):
        first = stale[0]
        raise CheckFailed(f"{first.file}: {first.why}", first.fix)
    if drifted := render.check(root, [target]):
        raise CheckFailed(
            f"{drifted[0].file} is not what image.yaml and the templates give",
            f"builder render {target}",
        )
    held = model.read(root, target)
    rendered = render.render(spec, stack, held, templates.folder_of(root))
    return Prepared(spec, stack, held, plan.plan(root, spec, held, rendered))


def folder(root: Path, target: str) -> Path:
    """Where a target's image.json, receipt and logs go."""
    return root / BUILD / target


# --- building -------------------------------------------------------------------------------------


def build(
    root: Path,
    settings: Settings,
    engine: Engine,
    prepared: Sequence[Prepared],
    *,
    no_cache: bool = False,
    locked: bool = False,
    on_event: OnEvent = ignore,
) -> tuple[ImageRecord, ...]:
    """Build these targets' images on the engine; bases that they share are made once.

    no_cache: build every layer anew. locked: refuse a Debian package whose locked version is gone,
    instead of taking its successor and saying so. Raises OutsideError, CheckFailed.
    """
    made = bases(
        root, settings, engine, prepared, no_cache=no_cache, locked=locked, on_event=on_event
    )
    return tuple(
        _image(root, engine, item, made.get(item.plan.base.hash) if item.plan.base else None,
               no_cache, prefixed(item.target, on_event))
        for item in prepared
    )  # fmt: skip


def bases(
    root: Path,
    settings: Settings,
    engine: Engine,
    prepared: Sequence[Prepared],
    *,
    no_cache: bool = False,
    locked: bool = False,
    on_event: OnEvent = ignore,
) -> dict[str, Base]:
    """The bases of these targets by their hash: on the engine, else pulled, else built; each once.

    Raises what `build` raises.
    """
    by_hash = {p.plan.base.hash: p for p in prepared if p.plan.base}

    def one(item: Prepared) -> Base:
        assert item.plan.base is not None
        events = prefixed(f"base {item.plan.base.hash[:8]}", on_event)
        with files.locked(root / BUILD / f".base-{item.plan.base.hash}.lock"):
            return _base(settings, engine, item, no_cache, locked, events)

    if len(by_hash) > 1:
        with ThreadPoolExecutor(BASES_AT_ONCE) as pool:
            return dict(zip(by_hash, pool.map(one, by_hash.values()), strict=True))
    return {hash_: one(item) for hash_, item in by_hash.items()}


def _base(
    settings: Settings,
    engine: Engine,
    item: Prepared,
    no_cache: bool,
    locked: bool,
    on_event: OnEvent,
) -> Base:
    """The base of a target: on the engine, else from the registry, else built."""
    base = item.plan.base
    assert base is not None
    reference = f"{LOCAL_REPOSITORY}:{base.tag}"
    if not no_cache and (found := engine.image(reference)):
        return Base(reference, found.digest, found.image_id, "engine")
    began = time.monotonic()
    if not no_cache and (found := _pulled(settings, engine, base.tag, reference, on_event)):
        pulled = {"pull base": time.monotonic() - began}
        return Base(reference, found.digest, found.image_id, "registry", phases=pulled)
    held = base.root
    contexts: dict[str, str] = {}
    phases: dict[str, float] = {}
    drift: tuple[str, ...] = ()
    used = base.files
    if held.digest is None:
        made = osroot.make(held.suite, held.packages, on_event)
        used, moved = _available(held.suite, base.files, on_event)
        drift = (*(f"{d.name} {d.locked} -> {d.used or 'none'}" for d in made.drift), *moved)
        if drift and locked:
            raise CheckFailed(
                f"{item.target}: Debian no longer has {len(drift)} locked versions: {drift[0]}",
                f"builder lock --upgrade {item.target}",
            )
        loaded = osroot.load("docker", made, engine.environment)
        contexts[held.reference] = f"docker-image://{loaded}"
        phases["OS root"] = time.monotonic() - began
        began = time.monotonic()
    contexts["uv"] = str(Path(python.uv_program()).parent)
    network = discover()
    with tempfile.TemporaryDirectory(prefix="base-") as scratch:
        if item.stack.prune:
            contexts["devicecode"] = str(Path(scratch) / "devicecode")
            for name, text in render.pruning_program().items():
                files.write(Path(scratch) / "devicecode" / name, text)
        whole = replace(item.plan, base=replace(base, files=used))
        staged = plan.stage(whole, Path(scratch) / "context")
        assert staged.base and staged.base_dockerfile
        built = engine.build(
            BuildRequest(
                dockerfile=staged.base_dockerfile,
                context=staged.base,
                tags=(reference,),
                contexts=contexts,
                secrets=network.secrets(debian.build_sources(network, held.suite)),
                no_cache=no_cache,
            ),
            on_event,
        )
    phases["build base"] = time.monotonic() - began
    return Base(reference, built.digest, built.image_id, "built", drift, phases)


def _available(
    suite: str, files: Mapping[str, plan.File], on_event: OnEvent
) -> tuple[Mapping[str, plan.File], tuple[str, ...]]:
    """The files of a base, with successors for the Debian packages whose locked version is gone.

    A mirror keeps one version of a package: after a security update the locked one cannot be had.
    """
    found, moved = dict(files), []
    for name in sorted({model.APT, model.APT_EXTRA} & files.keys()):
        lines = files[name].content.decode().splitlines()
        pins = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        packages = debian.Packages(suite, on_event=on_event)
        there = packages.versions(pins)
        gone = [
            package for package, version in pins.items() if version not in there.get(package, ())
        ]
        if gone:
            now = packages.candidates(gone)
            moved += [f"{package} {pins[package]} -> {now[package]}" for package in gone]
            text = "".join(f"{package}={version}\n" for package, version in (pins | now).items())
            found[name] = plan.File(text.encode())
    return found, tuple(moved)


def _in_registry(settings: Settings, tag: str) -> bool:
    if not settings.registry:
        return False
    there = registry.parse(settings.registry).tagged(tag)
    with registry.Registry(there.host) as client:
        return client.head(there.repository, tag) is not None


def _pulled(
    settings: Settings, engine: Engine, tag: str, reference: str, on_event: OnEvent
) -> EngineImage | None:
    """The base from the registry, under its local name; None where no registry has it."""
    if not settings.registry or not _in_registry(settings, tag):
        return None
    there = registry.parse(settings.registry).tagged(tag)
    with step(f"pull {tag}", on_event) as pulling:
        pull(engine, there.name, tag, pulling.name, on_event)
        image = engine.client.images.get(f"{there.name}:{tag}")
        image.tag(*reference.rsplit(":", 1))
    return engine.image(reference)


def pull(engine: Engine, repository: str, tag: str, step: str, on_event: OnEvent) -> None:
    """Pull an image onto the engine, with progress. Raises OutsideError."""
    amounts: dict[str, tuple[int, int]] = {}
    known = registry.credentials_for(registry.parse(repository).host)
    answers = engine.client.api.pull(
        repository, tag, stream=True, decode=True, auth_config=known.for_engine() if known else None
    )
    for message in answers:
        if "error" in message:
            raise OutsideError(
                f"{repository}:{tag}: the pull failed: {message['error']}", "run it again"
            )
        detail = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and detail.get("total"):
            amounts[message["id"]] = (detail["current"], detail["total"])
            current, total = (sum(column) for column in zip(*amounts.values(), strict=True))
            on_event(StepProgress(step, current, total))


def _image(
    root: Path,
    engine: Engine,
    item: Prepared,
    base: Base | None,
    no_cache: bool,
    on_event: OnEvent,
) -> ImageRecord:
    """The training image of a target on its base, and its record."""
    began = time.monotonic()
    built = thin(engine, item, f"{LOCAL_REPOSITORY}:{item.target}", "engine", no_cache, on_event)
    pins = sorted(item.lock.packages.values(), key=lambda pin: -(pin.bytes or 0))
    record = ImageRecord(
        target=item.target,
        reference=built.reference,
        digest=built.digest,
        image_id=built.image_id,
        inputs=item.plan.inputs_hash,
        base=base.reference if base else item.spec.base,
        base_digest=base.digest if base else None,
        base_origin=base.origin if base else "published",
        root=item.lock.root.origin if item.lock.root else item.spec.base,
        drift=base.drift if base else (),
        compressed_bytes=built.compressed_bytes,
        unpacked_bytes=built.unpacked_bytes,
        budget_bytes=item.spec.size_budget,
        packages=tuple((f"{pin.name} {pin.version}", pin.bytes or 0) for pin in pins[:5]),
        phases={**(base.phases if base else {}), "build image": time.monotonic() - began},
        engine=f"{engine.origin} {engine.version}",
        tensorflow=item.stack.tensorflow,
        prune=item.stack.prune.only if item.stack.prune else "off",
    )
    files.write(
        folder(root, item.target) / RECORD,
        json.dumps({**asdict(record), "over_budget": record.over_budget}, indent=2) + "\n",
    )
    return record


def thin(
    engine: Engine,
    item: Prepared,
    reference: str,
    destination: Literal["engine", "registry"],
    no_cache: bool,
    on_event: OnEvent,
) -> BuiltImage:
    """The training image of a target on its base, under `reference`."""
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        staged = plan.stage(replace(item.plan, base=None), Path(scratch) / "context")
        return engine.build(
            BuildRequest(
                dockerfile=staged.dockerfile,
                context=staged.image,
                tags=(reference,),
                contexts={} if item.plan.base else {"uv": str(Path(python.uv_program()).parent)},
                build_args={"REPOSITORY": reference.rsplit(":", 1)[0]},
                secrets={} if item.plan.base else discover().secrets(),
                destination=destination,
                no_cache=no_cache,
                force_compression=False,
            ),
            on_event,
        )


# --- proving and pushing --------------------------------------------------------------------------


def record_of(root: Path, target: str) -> ImageRecord | None:
    """What the last build of a target made; None where there was none, or its file is torn."""
    try:
        content = json.loads((folder(root, target) / RECORD).read_text(encoding="utf-8"))
        content.pop("over_budget")
        content["packages"] = tuple((name, size) for name, size in content["packages"])
        content["drift"] = tuple(content["drift"])
        return ImageRecord(**content)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def up_to_date(root: Path, engine: Engine, item: Prepared) -> ImageRecord | None:
    """The record of an image that was made from these very inputs and is still on the engine."""
    record = record_of(root, item.target)
    if record is None or record.inputs != item.plan.inputs_hash:
        return None
    found = engine.image(record.reference)
    return record if found and found.image_id == record.image_id else None


@dataclass(frozen=True)
class Made:
    """A proven image; `unchanged` where it was there already."""

    record: ImageRecord
    receipt: Receipt
    unchanged: bool


def make(
    root: Path,
    settings: Settings,
    engine: Engine,
    item: Prepared,
    *,
    locked: bool = False,
    on_event: OnEvent = ignore,
) -> Made:
    """Build and prove one target, as far as it is not built and proven already.

    A second run at the same time waits, and finds it done. Raises CheckFailed, OutsideError.
    """
    with files.locked(folder(root, item.target) / ".lock"):
        record = up_to_date(root, engine, item)
        unchanged = record is not None
        if record is None:
            (record,) = build(root, settings, engine, [item], locked=locked, on_event=on_event)
        receipt = receipts.read(folder(root, item.target) / receipts.FILE)
        if receipt is None or not proof(root, record, item.spec):
            receipt, unchanged = prove(root, engine, item, record, on_event), False
        return Made(record, receipt, unchanged)


def prove_built(root: Path, engine: Engine, item: Prepared, on_event: OnEvent = ignore) -> Receipt:
    """Prove the image that the last build made. Raises InputError where it is not of
    today's files."""
    record = up_to_date(root, engine, item)
    if record is None:
        raise InputError(
            f"{item.target}: no image on the engine is built from today's files",
            f"builder build {item.target}",
        )
    with files.locked(folder(root, item.target) / ".lock"):
        return prove(root, engine, item, record, on_event)


def built_targets(root: Path) -> tuple[str, ...]:
    """Every target that was built here. Raises InputError for none."""
    found = tuple(target for target in catalogue.targets(root) if record_of(root, target))
    if not found:
        raise InputError("nothing is built yet", "builder image v100")
    return found


def overview(root: Path) -> list[dict[str, Any]]:
    """A row for each target: what it is for, and what the last build and smoke run left."""
    rows = []
    for spec in catalogue.load_all(root):
        record = record_of(root, spec.name)
        state = "not built"
        if record:
            valid = proof(root, record, spec)
            state = "built and proven" if valid else "built, not proven"
        rows.append(
            {
                "target": spec.name,
                "accelerator": spec.accelerator,
                "tensorflow": spec.tensorflow,
                "state": state,
                "digest": record.digest if record else None,
                "compressed_bytes": record.compressed_bytes if record else None,
            }
        )
    return rows


def proof(root: Path, record: ImageRecord, spec: catalogue.ImageSpec) -> receipts.Validity:
    """Whether the receipt in build/<target>/ proves this very image."""
    held = receipts.read(folder(root, record.target) / receipts.FILE)
    names = (record.digest or record.image_id, record.image_id)
    return suites.of_image(spec.labels).holds(held, names)


def prove(
    root: Path, engine: Engine, item: Prepared, record: ImageRecord, on_event: OnEvent = ignore
) -> Receipt:
    """Smoke-test the image of this record and write its receipt.

    Raises CheckFailed, OutsideError.
    """
    subject = Subject(
        record.image_id,
        item.spec,
        item.stack,
        {pin.name: pin.version for pin in item.lock.packages.values()},
        smoking.RECORDS,
        digest=record.digest,
        inputs=record.inputs,
        sizes=record,
    )
    suite = suites.of_image(item.spec.labels)
    return smoking.smoke(engine, subject, suite, folder(root, item.target), on_event)


def push_target(
    root: Path,
    settings: Settings,
    engine: Engine,
    target: str,
    tags: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> push.PushedImage:
    """Push the image that the last build of a target made, with its base and its receipt.

    Raises InputError where nothing was built, CheckFailed without a receipt for that very image.
    """
    record = record_of(root, target)
    image = engine.image(record.image_id) if record else None
    if record is None or image is None:
        raise InputError(
            f"{target}: there is no image on the engine to push", f"builder image {target}"
        )
    capability = accelerators.find(catalogue.load(root, target).accelerator).compute_capability
    compatibility.check_runs_on(image.labels, capability, target)
    base = None
    if record.base_digest and record.base:
        base = engine.image(record.base)
        if base is None and not _in_registry(settings, record.base.rpartition(":")[2]):
            raise OutsideError(
                f"{record.base}: neither the engine nor the registry has it any more",
                f"builder build {target}",
            )
    return push.push(
        engine,
        replace(image, reference=record.reference),
        receipts.read(folder(root, target) / receipts.FILE),
        settings,
        push.tags_for(target, record.tensorflow, root, tuple(tags)),
        base=base,
        on_event=prefixed(target, on_event),
    )
