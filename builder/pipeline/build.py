"""Bases and training images on an engine: what is there already, pulled, or built."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from builder import registry
from builder.core import files, project
from builder.core.errors import CheckFailed, OutsideError
from builder.core.events import OnEvent, StepProgress, ignore, prefixed, step
from builder.core.network import discover
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import BuildRequest, BuiltImage, Engine, EngineImage
from builder.lock import debian, model, osroot, python
from builder.pipeline import plan, records
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord
from builder.render import dockerfiles as render

BASES_AT_ONCE = 2
"""Bases built side by side: one downloads while the other unpacks."""


@dataclass(frozen=True)
class Base:
    """A base on the engine. phases: name -> seconds; origin: "engine", "registry" or "built"."""

    reference: str
    digest: str | None
    image_id: str
    origin: str
    drift: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)


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
        with files.locked(root / project.BUILD / f".base-{item.plan.base.hash}.lock"):
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


def in_registry(settings: Settings, tag: str) -> bool:
    if not settings.registry:
        return False
    there = registry.parse(settings.registry).tagged(tag)
    with registry.Registry(there.host) as client:
        return client.head(there.repository, tag) is not None


def _pulled(
    settings: Settings, engine: Engine, tag: str, reference: str, on_event: OnEvent
) -> EngineImage | None:
    """The base from the registry, under its local name; None where no registry has it."""
    if not settings.registry or not in_registry(settings, tag):
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
        prune=item.stack.prune_mode,
    )
    records.write(root, record)
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
