"""Bases and training images on an engine: found there, pulled, or built."""

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
from builder.core.events import OnEvent, RunningStep, ignore, prefixed, step
from builder.core.network import discover
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.devicecode.program import pruning_program
from builder.engine import BuildRequest, BuiltImage, Engine, EngineImage, buildx
from builder.lock import debian, debs, model, osroot, python
from builder.pipeline import plan, records, repository
from builder.pipeline.prepare import Prepared
from builder.pipeline.records import ImageRecord
from builder.registry import Reference

BASES_AT_ONCE = 2
"""Bases that are built side by side: one downloads while the other unpacks."""


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
    """Build the images of these targets on the engine; a base that several share is built once.

    no_cache: build every layer again. locked: refuse a Debian package whose locked version is gone;
    otherwise its successor is installed and noted as drift. Raises OutsideError, CheckFailed.
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
    """The bases of these targets, by their hash; each is found on the engine, pulled, or built.

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
    if not no_cache:
        if found := engine.image(reference):
            return Base(reference, found.digest, found.image_id, "engine")
        began = time.monotonic()
        if found := _pulled(settings, engine, base.tag, reference, on_event):
            phases = {"pull base": time.monotonic() - began}
            return Base(reference, found.digest, found.image_id, "registry", phases=phases)
    began = time.monotonic()
    phases = {}
    contexts = {"uv": str(Path(python.uv_program()).parent)}
    drift: tuple[str, ...] = ()
    if base.root.digest is None:
        base, root, drift = _with_root(engine, item.target, base, locked, on_event)
        contexts |= root
        phases["OS root"] = time.monotonic() - began
        began = time.monotonic()
    network = discover()
    with tempfile.TemporaryDirectory(prefix="base-") as scratch:
        if item.stack.prune:
            contexts["devicecode"] = str(Path(scratch) / "devicecode")
            for name, text in pruning_program().items():
                files.write(Path(scratch) / "devicecode" / name, text)
        dockerfile = plan.stage(base, Path(scratch))
        built = engine.build(
            BuildRequest(
                dockerfile=dockerfile,
                context=dockerfile.parent,
                tags=(reference,),
                contexts=contexts,
                secrets=network.secrets(debian.build_sources(network, base.root.suite)),
                no_cache=no_cache,
            ),
            on_event,
        )
    phases["build base"] = time.monotonic() - began
    return Base(reference, built.digest, built.image_id, "built", drift, phases)


def _with_root(
    engine: Engine, target: str, base: plan.BasePlan, locked: bool, on_event: OnEvent
) -> tuple[plan.BasePlan, dict[str, str], tuple[str, ...]]:
    """Make the OS root from Debian's packages and load it into the engine.

    Returns the plan with the packages that the mirror has, the build context that stands for the
    root, and the drift: what is installed in other versions than the locked ones. Raises
    CheckFailed for drift where `locked`.
    """
    held = base.root
    made = osroot.make(held.suite, debs.versions(held.packages), on_event)
    used, moved = _available(held.suite, base.files, on_event)
    drift = (*(f"{d.name} {d.locked} -> {d.used or 'none'}" for d in made.drift), *moved)
    if drift and locked:
        raise CheckFailed(
            f"{target}: Debian no longer has {len(drift)} locked versions: {drift[0]}",
            f"builder lock --upgrade {target}",
        )
    loaded = osroot.load("docker", made, engine.environment)
    return replace(base, files=used), {held.reference: f"docker-image://{loaded}"}, drift


def _available(
    suite: str, files: Mapping[str, plan.File], on_event: OnEvent
) -> tuple[Mapping[str, plan.File], tuple[str, ...]]:
    """The files of a base, with successors for the Debian packages whose locked version is gone.

    A mirror keeps one version of a package: a security update replaces the locked one. Also returns
    a line for each package that moved.
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
    """Whether the project's repository has this tag. Raises OutsideError."""
    if not settings.registry:
        return False
    there = repository.of(settings)
    with registry.Registry(there.host) as client:
        return client.head(there.repository, tag) is not None


def _pulled(
    settings: Settings, engine: Engine, tag: str, reference: str, on_event: OnEvent
) -> EngineImage | None:
    """The base from the registry, under its local name; None where it is not there."""
    if not in_registry(settings, tag):
        return None
    there = repository.of(settings).tagged(tag)
    with step(f"pull {tag}", on_event) as pulling:
        if check := repository.base_check(settings):
            with registry.Registry(there.host) as client:
                if digest := client.head(there.repository, tag):
                    check(client, digest, tag)
        _pull(engine, there, pulling)
        engine.client.images.get(str(there)).tag(*reference.rsplit(":", 1))
    return engine.image(reference)


def _pull(engine: Engine, image: Reference, pulling: RunningStep) -> None:
    """Pull an image onto the engine, with progress. Raises OutsideError."""
    amounts: dict[str, tuple[int, int]] = {}
    known = registry.credentials_for(image.host)
    answers = engine.client.api.pull(
        image.name,
        image.tag,
        stream=True,
        decode=True,
        auth_config=known.for_engine() if known else None,
        platform=buildx.PLATFORM,
    )
    for message in answers:
        if "error" in message:
            raise OutsideError(f"{image}: the pull failed: {message['error']}", "run it again")
        detail = message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and detail.get("total"):
            amounts[message["id"]] = (detail["current"], detail["total"])
            current, total = (sum(column) for column in zip(*amounts.values(), strict=True))
            pulling.progress(current, total)


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
    built = thin(
        engine, item.plan.image, f"{LOCAL_REPOSITORY}:{item.target}", "engine", no_cache, on_event
    )
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
    image: plan.ImagePlan,
    reference: str,
    destination: Literal["engine", "registry"],
    no_cache: bool,
    on_event: OnEvent,
) -> BuiltImage:
    """The training image on its base, under `reference`."""
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        dockerfile = plan.stage(image, Path(scratch))
        return engine.build(
            BuildRequest(
                dockerfile=dockerfile,
                context=dockerfile.parent,
                tags=(reference,),
                contexts={"uv": str(Path(python.uv_program()).parent)} if image.installs else {},
                build_args={"REPOSITORY": reference.rsplit(":", 1)[0]},
                secrets=discover().secrets() if image.installs else {},
                destination=destination,
                no_cache=no_cache,
                force_compression=False,
            ),
            on_event,
        )
