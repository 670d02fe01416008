"""The bases of targets: on the engine, in the registry, or assembled from locked packages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bases import ahead, assembling, forecast, loading, sharing, store
from builder.bases import assembled as images
from builder.bases.assembled import AssembledImage
from builder.bases.assembling import Looked, Workshop
from builder.bases.forecast import Destination, Forecast
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


@dataclass(frozen=True)
class Outlook:
    """Where bases come from, by their hash, before anything starts.

    there: the engine has them. kept: this machine has all of their layers. pulled: the engine pulls
    them from the registry. assembled: the others; looked: where the layers of these are.
    """

    there: Mapping[str, AssembledImage]
    kept: Mapping[str, AssembledImage]
    pulled: Mapping[str, AssembledImage]
    assembled: Mapping[str, Prepared]
    looked: Looked
    forecast: Forecast


def outlook(
    settings: Settings, engine: Engine, items: Mapping[str, Prepared], no_cache: bool = False
) -> Outlook:
    """Where the bases of these targets, by their hash, come from, and what that takes.

    no_cache: make every layer again. Raises OutsideError, CheckFailed.
    """
    store_here = store.of_this_machine()
    there, kept, pulled, rest = {}, {}, {}, {}
    for hash_, item in items.items():
        plan = _plan(item)
        known = None if no_cache else store_here.find_image(plan.tag)
        if known and loading.present(engine, known, f"{LOCAL_REPOSITORY}:{plan.tag}"):
            there[hash_] = known
        elif known and all(map(store_here.has, known.layers)):
            kept[hash_] = known
        elif not no_cache and (found := _to_pull(settings, engine, plan)):
            pulled[hash_] = found
        else:
            rest[hash_] = item
    looked = assembling.look(
        map(_plan, rest.values()), store_here, _repository(settings), fresh=no_cache
    )
    to = Destination("the engine", lambda one: loading.lacked(engine, one, LOCAL_REPOSITORY))
    wanted = [(_plan(item), item.lock) for item in rest.values()]
    said = forecast.of(wanted, looked, to, tuple(kept.values()), tuple(pulled.values()))
    return Outlook(there, kept, pulled, rest, looked, said)


def _to_pull(settings: Settings, engine: Engine, plan: BasePlan) -> AssembledImage | None:
    """The base in the registry; None where it is not there, or the engine could not unpack it.

    Such an engine gets the base assembled from the layers that the registry has.
    """
    return in_registry(settings, plan.tag) if loading.reads_zstd(engine) else None


def by_hash(prepared: Sequence[Prepared]) -> dict[str, Prepared]:
    """A target for each distinct base of these targets, by its hash."""
    return {item.plan.base.hash: item for item in prepared if item.plan.base}


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
    items = by_hash(prepared)
    if not items:
        return {}
    shown = _together(items, on_event)
    with contextlib.ExitStack() as stack:
        for hash_ in sorted(items):  # in one order, so that two runs do not wait for each other
            stack.enter_context(files.locked(root / BUILD / f".base-{hash_}.lock"))
        with step("plan", shown) as planning:
            seen = outlook(settings, engine, items, no_cache)
            planning.detail, planning.cached = str(seen.forecast), seen.forecast.nothing
        names = {hash_: f"{LOCAL_REPOSITORY}:{_plan(item).tag}" for hash_, item in items.items()}
        found = {hash_: Base(names[hash_], base, "engine") for hash_, base in seen.there.items()}
        for hash_, image in seen.kept.items():
            found[hash_] = _loaded(engine, image, names[hash_], _events(hash_, on_event))
        for hash_, image in seen.pulled.items():
            events = _events(hash_, on_event)
            found[hash_] = _pulled(settings, engine, _plan(items[hash_]), image, events)
        if seen.assembled:
            found |= _assembled(settings, engine, seen, no_cache, on_event)
    return found


def _loaded(engine: Engine, image: AssembledImage, name: str, on_event: OnEvent) -> Base:
    """A base whose layers this machine has, on the engine."""
    began = time.monotonic()
    loading.load(engine, image, store.of_this_machine().path, name, on_event)
    return Base(name, image, "cache", {"load base": time.monotonic() - began})


def _pulled(
    settings: Settings, engine: Engine, plan: BasePlan, image: AssembledImage, on_event: OnEvent
) -> Base:
    """A base that the registry has, on the engine."""
    began = time.monotonic()
    name = f"{LOCAL_REPOSITORY}:{plan.tag}"
    with step(f"pull {plan.tag}", on_event) as pulling:
        _pull(engine, repository.of(settings).tagged(plan.tag), name, pulling)
    store.of_this_machine().keep_image(plan.tag, image)
    return Base(name, image, "registry", {"pull base": time.monotonic() - began})


def _assembled(
    settings: Settings, engine: Engine, seen: Outlook, no_cache: bool, on_event: OnEvent
) -> dict[str, Base]:
    """Assemble the bases of an outlook, by hash, and load them into the engine."""
    items, kept = seen.assembled, store.of_this_machine()
    began = time.monotonic()
    shown = _together(items, on_event)
    plans = list(map(_plan, items.values()))
    with ahead.loading(engine, plans, kept.path, LOCAL_REPOSITORY, shown) as lower:
        where = _repository(settings)
        shop = Workshop(settings, kept, lambda: engine, where, fresh=no_cache, told=lower.made)
        images = _made(list(items.values()), shop, seen.looked, shown)
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
    to: Destination,
    on_event: OnEvent = ignore,
) -> tuple[AssembledImage, ...]:
    """The bases of these targets, with all their layers in this machine's store.

    Layers that the project's repository has by their key are taken from there. engine: called where
    an OS root has to be made. to: where the bases will go. Raises OutsideError, CheckFailed.
    """
    shop = Workshop(settings, store.of_this_machine(), engine, _repository(settings))
    with step("plan", on_event) as planning:
        looked = assembling.look(map(_plan, items), shop.store, shop.where)
        said = forecast.of([(_plan(item), item.lock) for item in items], looked, to)
        planning.detail, planning.cached = str(said), said.nothing
    return _made(items, shop, looked, on_event)


def _made(
    items: Sequence[Prepared], shop: Workshop, looked: Looked, on_event: OnEvent
) -> tuple[AssembledImage, ...]:
    wanted = [(_plan(item), item.lock) for item in items]
    made = assembling.bases(wanted, shop, looked, on_event)
    for (plan, _), image in zip(wanted, made, strict=True):
        shop.store.keep_image(plan.tag, image)
    return made


def _repository(settings: Settings) -> Reference | None:
    """The repository that may have layers by their keys."""
    return repository.of(settings) if settings.registry else None


def _plan(item: Prepared) -> BasePlan:
    assert item.plan.base is not None, "only targets with a base of their own come here"
    return item.plan.base


def _events(hash_: str, on_event: OnEvent) -> OnEvent:
    return prefixed(f"base {hash_[:8]}", on_event)


def _together(hashes: Collection[str], on_event: OnEvent) -> OnEvent:
    """For what is done for several bases at once: it names the base if there is only one."""
    return _events(next(iter(hashes)), on_event) if len(hashes) == 1 else on_event


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
