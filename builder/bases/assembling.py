"""Assembling bases: each layer from this machine, from the registry, or made.

The OS root is made in a container while the wheels' layers are made beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bases import (
    bytecode,
    debs,
    download,
    environment,
    loading,
    osroot,
    sharing,
    wheel_making,
)
from builder.bases.assembled import AssembledImage, assemble
from builder.bases.bytecode import Compiler
from builder.bases.layer import Layer, LayerPlan
from builder.bases.plan import BasePlan
from builder.bases.store import Store
from builder.bases.wheels import WheelLayer
from builder.core import debian, network
from builder.core.events import OnEvent, ignore, step
from builder.lock.python import Platform
from builder.lock.requirements import GLIBC
from builder.registry import Reference, Registry

if TYPE_CHECKING:
    from builder.core.settings import Settings
    from builder.engine import Engine
    from builder.lock.model import Lock


@dataclass(frozen=True)
class Workshop:
    """What layers are made with.

    where: the project's repository, which may have layers by their key; None without one. engine:
    called where an OS root has to be made. fresh: make every layer, whoever has it. told: gets each
    layer as soon as the store has it, from any thread.
    """

    settings: Settings
    store: Store
    engine: Callable[[], Engine]
    where: Reference | None = None
    fresh: bool = False
    told: Callable[[Layer], None] = lambda _: None


def bases(
    wanted: Sequence[tuple[BasePlan, Lock]], shop: Workshop, on_event: OnEvent = ignore
) -> tuple[AssembledImage, ...]:
    """The bases of these plans, each with the lock of a target that has it.

    Every layer is in the store afterwards; one that several share is made once. Raises OutsideError
    for what cannot be fetched or an engine that refuses, InputError for a lock that cannot be.
    """
    plans = {layer.key: layer for plan, _ in wanted for layer in plan.layers}
    with step("layers", on_event) as looking:
        there = {} if shop.fresh else _there(list(plans.values()), shop, on_event)
        missing = {key: plan for key, plan in plans.items() if key not in there}
        looking.detail = _told(list(plans.values()), list(missing.values()))
        looking.cached = not missing
    for layer in there.values():
        shop.told(layer)
    if shop.fresh:
        for key in missing:
            shop.store.forget(key)
    made = {**there, **_make(wanted, missing, shop, on_event)}
    return tuple(
        assemble([(made[layer.key], layer.said) for layer in plan.layers], plan.settings)
        for plan, _ in wanted
    )


def _there(plans: Sequence[LayerPlan], shop: Workshop, on_event: OnEvent) -> dict[str, Layer]:
    """The layers that the store has, by key; those that only the registry has are fetched."""
    found = {plan.key: layer for plan in plans if (layer := shop.store.find(plan.key))}
    missing = [plan.key for plan in plans if plan.key not in found]
    if shop.where is None or not missing:
        return found
    with Registry(shop.where.host) as there:
        for key in missing:
            if layer := sharing.take(there, shop.where.repository, key):
                found[key] = sharing.fetch(
                    there, shop.where.repository, layer, shop.store, on_event
                )
    return found


def _told(plans: Sequence[LayerPlan], missing: Sequence[LayerPlan]) -> str:
    """What a person should know before it starts: how many layers, how many bytes."""
    if not missing:
        return f"all {len(plans)} are here"
    size = sum(plan.download or 0 for plan in missing)
    return f"{len(missing)} of {len(plans)} to make, {size / 1e6:,.0f} MB to download"


def _make(
    wanted: Sequence[tuple[BasePlan, Lock]],
    missing: Collection[str],
    shop: Workshop,
    on_event: OnEvent,
) -> dict[str, Layer]:
    """Make the layers of these keys. The roots are made beside the wheels' layers."""
    roots = {key: plan for plan, _ in wanted if (key := plan.layers[0].key) in missing}
    found: dict[str, Layer] = {}
    with ThreadPoolExecutor(1) as beside:
        making = {key: beside.submit(_root, plan, shop, on_event) for key, plan in roots.items()}
        for first, lock in {lock.python: (plan, lock) for plan, lock in wanted}.values():
            layers = [
                layer
                for plan, of in wanted
                for layer in plan.wheels
                if of.python == lock.python and layer.plan.key in missing
            ]
            found |= _wheels(layers, first, lock, shop, on_event) if layers else {}
        found |= {key: root.result() for key, root in making.items()}
    for plan, _ in wanted:
        below, *_, top = plan.layers
        if top.key in missing and top.key not in found:
            root = found.get(below.key) or shop.store.find(below.key)
            assert root is not None
            found[top.key] = environment.make(
                plan.environment, shop.store, root, top, plan.compression
            )
    return found


def _root(plan: BasePlan, shop: Workshop, on_event: OnEvent) -> Layer:
    where = debian.archives(shop.settings, network.discover())
    root = osroot.make(plan.root, shop.engine(), where, shop.store, plan.compression, on_event)
    shop.told(root)
    return root


def _wheels(
    layers: Sequence[WheelLayer], plan: BasePlan, lock: Lock, shop: Workshop, on_event: OnEvent
) -> dict[str, Layer]:
    """Make these layers, of one version of Python. plan: of a base with this Python."""
    assert lock.root is not None
    platform = Platform(lock.python, GLIBC[lock.root.suite])
    pins = [pin for layer in layers for pin in layer.pins]
    with (
        _compiler(plan, lock, shop, on_event) as compiler,
        download.wheels_of(pins, platform) as wheels,
    ):
        made = wheel_making.make(layers, shop.store, wheels, compiler, on_event, shop.told)
    return {layer.key: layer for layer in made}


@contextlib.contextmanager
def _compiler(plan: BasePlan, lock: Lock, shop: Workshop, on_event: OnEvent) -> Iterator[Compiler]:
    """The image's own Python: run on this machine where it can, else in containers of the root."""
    if bytecode.runs_here():
        packages = bytecode.packages(lock)
        where = debian.archives(shop.settings, network.discover())
        fetched = debs.fetch(packages, where, on_event)
        with bytecode.unpacked([fetched[one] for one in packages], lock.python) as compiler:
            yield compiler
        return
    root, engine = _root(plan, shop, on_event), shop.engine()
    name = f"{osroot.REPOSITORY}:{root.key[:16]}"
    loading.load(engine, assemble([(root, "the OS root")], {}), shop.store.path, name, on_event)
    yield bytecode.in_container(name, lock.python, ("docker", "--host", engine.host))
