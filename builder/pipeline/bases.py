"""The bases of targets: on the engine, in the registry, or assembled from locked packages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bases import ahead, assembling, loading, sharing, store
from builder.bases import assembled as images
from builder.bases.assembled import AssembledImage
from builder.bases.assembling import Workshop
from builder.bases.layer import Layer
from builder.bases.plan import BasePlan
from builder.core import files
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, prefixed, step
from builder.core.project import BUILD
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import refusals, transfers
from builder.pipeline import prepare, repository
from builder.pipeline.prepare import Prepared
from builder.registry import Reference, Registry, credentials_for

if TYPE_CHECKING:
    from builder.engine import Engine


@dataclass(frozen=True)
class Base:
    """A base on the engine. phases: name -> seconds.

    origin: "engine" where it was there, "cache" where this machine had its layers, "registry" where
    it was pulled, "assembled" where layers had to be made.
    """

    reference: str
    image: AssembledImage
    origin: str
    phases: Mapping[str, float] = field(default_factory=dict)


def on_engine(
    root: Path,
    settings: Settings,
    engine: Engine,
    prepared: Sequence[Prepared],
    *,
    no_cache: bool = False,
    on_event: OnEvent = ignore,
) -> dict[str, Base]:
    """The bases of these targets on the engine, by their hash; what they share is made once.

    no_cache: make every layer again. Raises OutsideError, CheckFailed.
    """
    by_hash = {item.plan.base.hash: item for item in prepared if item.plan.base}
    with contextlib.ExitStack() as stack:
        for hash_ in sorted(by_hash):  # in one order, so that two runs do not wait for each other
            stack.enter_context(files.locked(root / BUILD / f".base-{hash_}.lock"))
        found = {}
        if not no_cache:
            for hash_, item in by_hash.items():
                if base := _found(settings, engine, _plan(item), _events(hash_, on_event)):
                    found[hash_] = base
        missing = {hash_: item for hash_, item in by_hash.items() if hash_ not in found}
        if missing:
            found |= _assembled(settings, engine, missing, no_cache, on_event)
    return found


def _found(settings: Settings, engine: Engine, plan: BasePlan, on_event: OnEvent) -> Base | None:
    """A base that the engine has, or that it pulls from the registry; None where neither has it.

    None also for an engine that could not unpack what it pulls. It gets the base assembled from the
    layers that the registry has.
    """
    kept = store.of_this_machine()
    name = f"{LOCAL_REPOSITORY}:{plan.tag}"
    known = kept.find_image(plan.tag)
    if known and loading.present(engine, known, name):
        return Base(name, known, "engine")
    began = time.monotonic()
    if known and all(map(kept.has, known.layers)):
        loading.load(engine, known, kept.path, name, on_event)
        return Base(name, known, "cache", {"load base": time.monotonic() - began})
    if loading.reads_zstd(engine) and (found := in_registry(settings, plan.tag)):
        with step(f"pull {plan.tag}", on_event) as pulling:
            _pull(engine, repository.of(settings).tagged(plan.tag), name, pulling)
        kept.keep_image(plan.tag, found)
        return Base(name, found, "registry", {"pull base": time.monotonic() - began})
    return None


def _assembled(
    settings: Settings,
    engine: Engine,
    items: Mapping[str, Prepared],
    no_cache: bool,
    on_event: OnEvent,
) -> dict[str, Base]:
    """Assemble the bases of these targets, by hash, and load them into the engine."""
    kept = store.of_this_machine()
    began = time.monotonic()
    shown = _events(next(iter(items)), on_event) if len(items) == 1 else on_event
    plans = list(map(_plan, items.values()))
    with ahead.loading(engine, plans, kept.path, LOCAL_REPOSITORY, shown) as lower:
        images = assembled(
            settings,
            list(items.values()),
            lambda: engine,
            no_cache=no_cache,
            told=lower.made,
            on_event=shown,
        )
        lower.settle()
        phases = {"assemble base": time.monotonic() - began}
        found = {}
        for hash_, plan, image in zip(items, plans, images, strict=True):
            began = time.monotonic()
            name = f"{LOCAL_REPOSITORY}:{plan.tag}"
            loading.load(engine, image, kept.path, name, _events(hash_, on_event))
            took = {**phases, "load base": time.monotonic() - began}
            found[hash_] = Base(name, image, "assembled", took)
    return found


def assembled(
    settings: Settings,
    items: Sequence[Prepared],
    engine: Callable[[], Engine],
    *,
    no_cache: bool = False,
    told: Callable[[Layer], None] = lambda _: None,
    on_event: OnEvent = ignore,
) -> tuple[AssembledImage, ...]:
    """The bases of these targets, with all their layers in this machine's store.

    Layers that the project's repository has by their key are taken from there. engine: called where
    an OS root has to be made. told: gets each layer as soon as the store has it. Raises
    OutsideError, CheckFailed.
    """
    kept = store.of_this_machine()
    where = repository.of(settings) if settings.registry else None
    shop = Workshop(settings, kept, engine, where, fresh=no_cache, told=told)
    plans = [_plan(item) for item in items]
    locks = [item.lock for item in items]
    made = assembling.bases(list(zip(plans, locks, strict=True)), shop, on_event)
    for plan, image in zip(plans, made, strict=True):
        kept.keep_image(plan.tag, image)
    return made


def _plan(item: Prepared) -> BasePlan:
    assert item.plan.base is not None, "only targets with a base of their own come here"
    return item.plan.base


def _events(hash_: str, on_event: OnEvent) -> OnEvent:
    return prefixed(f"base {hash_[:8]}", on_event)


def rows(root: Path, target: str) -> list[dict[str, Any]]:
    """A row for each layer of a target's base. Raises InputError for a published base."""
    plan, kept = prepare.prepare(root, target).plan.base, store.of_this_machine()
    if plan is None:
        raise InputError(f"{target}: its base is a published image", "skopeo inspect shows it")
    found = []
    for layer in plan.layers:
        made = kept.find(layer.key)
        found.append(
            {
                "name": layer.name,
                "packages": list(layer.packages),
                "why": layer.why,
                "key": layer.key,
                "download_bytes": layer.download,
                "packed_bytes": made.blob.size if made else None,
                "unpacked_bytes": made.unpacked_bytes if made else None,
                "digest": made.blob.digest if made else None,
            }
        )
    return found


def in_registry(settings: Settings, tag: str) -> AssembledImage | None:
    """The base under this tag in the project's repository; None where it is not there whole.

    Its layers have no key, and no size unpacked. Raises OutsideError, and CheckFailed for a base
    that [trust] of builder.toml refuses.
    """
    if not settings.registry:
        return None
    there = repository.of(settings)
    with Registry(there.host) as client:
        found = images.in_registry(client, there.tagged(tag))
        if found and (check := repository.base_check(settings)):
            check(client, found.digest, tag)
        if found and not all(
            client.has_blob(there.repository, layer.blob.digest) for layer in found.layers
        ):
            return None  # the registry has lost a layer; whoever assembles the base brings it again
    return found


def upload(where: Reference, tag: str, image: AssembledImage, on_event: OnEvent) -> None:
    """Put a base into the registry under its tag, and offer its layers by their keys."""
    kept = store.of_this_machine()
    with (
        step(f"push {tag}", on_event) as pushing,
        Registry(where.host, said=pushing.log) as there,
    ):
        sharing.publish(there, where.tagged(tag), image, kept.path, on_event)
        sharing.offer(there, where.repository, image.layers, kept.path, on_event)


def _pull(engine: Engine, image: Reference, name: str, pulling: RunningStep) -> None:
    """Pull an image onto the engine under `name`, with progress. Raises OutsideError."""
    known = credentials_for(image.host)
    with refusals(str(image), "run it again"):
        answers = engine.client.api.pull(
            image.name,
            image.tag,
            stream=True,
            decode=True,
            auth_config=known.for_engine() if known else None,
            platform="linux/amd64",
        )
        try:
            for _ in transfers.told(answers, pulling.progress):
                pass
        except transfers.Refused as error:
            raise OutsideError(f"{image}: the pull failed: {error}", "run it again") from None
        engine.client.images.get(str(image)).tag(*name.rsplit(":", 1))
