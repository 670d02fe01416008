"""Assembling bases: each layer from this machine, from the registry, or made.

The OS root is made in a container while the wheels' layers are made beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from builder.core.events import OnEvent, ignore
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


@dataclass(frozen=True)
class Looked:
    """The layers of some bases, by their keys. here: in the store. offered: in the registry, which
    `bases` fetches. missing: in neither, so they have to be made."""

    here: Mapping[str, Layer]
    offered: Mapping[str, Layer]
    missing: Mapping[str, LayerPlan]

    def layer(self, key: str) -> Layer | None:
        """A layer that was made before, wherever it is."""
        return self.here.get(key) or self.offered.get(key)


def look(
    plans: Iterable[BasePlan], store: Store, where: Reference | None = None, fresh: bool = False
) -> Looked:
    """Where the layers of these bases are. Nothing is fetched.

    where: the project's repository; None without one. fresh: take none from anywhere. Raises
    OutsideError.
    """
    missing = {layer.key: layer for plan in plans for layer in plan.layers}
    if fresh:
        return Looked({}, {}, missing)
    here = {key: layer for key in missing if (layer := store.find(key))}
    missing = {key: plan for key, plan in missing.items() if key not in here}
    offered: dict[str, Layer] = {}
    if where is not None and missing:
        with Registry(where.host) as there:
            found = ((key, sharing.take(there, where.repository, key)) for key in missing)
            offered = {key: layer for key, layer in found if layer}
    return Looked(here, offered, {key: missing[key] for key in missing if key not in offered})


def bases(
    wanted: Sequence[tuple[BasePlan, Lock]],
    shop: Workshop,
    looked: Looked,
    on_event: OnEvent = ignore,
) -> tuple[AssembledImage, ...]:
    """The bases of these plans, each with the lock of a target that has it.

    Every layer is in the store afterwards; one that several share is made once. looked: where their
    layers are. Raises OutsideError for what cannot be fetched or an engine that refuses, InputError
    for a lock that cannot be.
    """
    there = {**looked.here, **_fetched(looked.offered, shop, on_event)}
    for layer in there.values():
        shop.told(layer)
    if shop.fresh:
        for key in looked.missing:
            shop.store.forget(key)
    made = {**there, **_make(wanted, looked.missing, shop, on_event)}
    return tuple(
        assemble([(made[layer.key], layer.said) for layer in plan.layers], plan.settings)
        for plan, _ in wanted
    )


def _fetched(offered: Mapping[str, Layer], shop: Workshop, on_event: OnEvent) -> dict[str, Layer]:
    """Layers of the registry, brought into the store."""
    if not offered:
        return {}
    assert shop.where is not None, "the registry was asked"
    with Registry(shop.where.host) as there:
        return {
            key: sharing.fetch(there, shop.where.repository, layer, shop.store, on_event)
            for key, layer in offered.items()
        }


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
