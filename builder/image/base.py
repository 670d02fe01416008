"""Assembling bases: each layer comes from this machine, from the registry, or is made.

The rootfs is made in a container while the wheel layers are made beside it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from builder import registry
from builder.config import debian
from builder.config.stack import GLIBC
from builder.config.uv import Platform
from builder.core import parallel
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.engine import Engine
from builder.image import bytecode, download, layers_lock, loading, registry_layers, rootfs
from builder.image.bytecode import BytecodeCompiler
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage, Layer
from builder.image.layer import assemble as image_of
from builder.image.layers_lock import LayersLock
from builder.image.plan import APP, VENV, Availability, BasePlan, Environment
from builder.image.tarball import LayerWriter, folders_above
from builder.image.wheel_layers import Making, OnLayer
from builder.registry import Reference

USER: Final = "trainer"


def look_up(
    plans: Collection[BasePlan],
    store: ContentStore,
    settings: Settings,
    lock: LayersLock,
    fresh: bool = False,
) -> Availability:
    """Return where the layers of these bases are. Nothing is fetched.

    A layer counts only if it is the one that `lock` has for its key, or that this machine is known
    to have made. The store's entries of other keys stay as they are, for the projects that use
    them. fresh: make every layer, whoever has it.
    Raises OutsideError.
    """
    missing = {layer.key: layer for plan in plans for layer in plan.layers}
    if fresh:
        return Availability({}, {}, missing, remake=frozenset(missing))
    known = {key: layer for key in missing if (layer := lock.found(key))}
    stored = {key: layer for key, layer in known.items() if store.find(key) == layer}
    remake = frozenset(key for key in missing if key not in stored and store.knows(key))
    refused = tuple(missing[key].name for key in known if key in remake)
    offered, whole = dict[str, Layer](), dict[str, AssembledImage]()
    if settings.registry and len(stored) < len(known):
        lacking = {key: layer for key, layer in known.items() if key not in stored}
        offered, whole = _offered(registry.parse(settings.registry), plans, lock, lacking)
    left = {key: plan for key, plan in missing.items() if key not in {**stored, **offered}}
    return Availability(stored, offered, left, refused, remake, whole)


def _offered(
    reference: Reference, plans: Iterable[BasePlan], lock: LayersLock, layers: Mapping[str, Layer]
) -> tuple[dict[str, Layer], dict[str, AssembledImage]]:
    """Return which of these layers a repository has, by key, and which bases it has whole, by hash:
    one request for such a base, else one for each layer."""
    with registry.Registry(reference.host) as client:
        whole = {
            plan.hash: image
            for plan in plans
            if (image := committed(plan, lock))
            and client.head(reference.repository, image.digest) == image.digest
        }
        there = {layer.key for image in whole.values() for layer in image.layers}

        def has(layer: Layer) -> bool:
            return layer.key in there or client.has_blob(reference.repository, layer.blob.digest)

        answers = zip(layers, parallel.each(has, layers.values()), strict=True)
    return {key: layers[key] for key, found in answers if found}, whole


def committed(plan: BasePlan, lock: LayersLock) -> AssembledImage | None:
    """Return the base that a plan has to give; None where `lock` lacks one of its layers."""
    if (layers := lock.whole(plan)) is None:
        return None
    history = [(layer, made.history) for layer, made in zip(layers, plan.layers, strict=True)]
    return image_of(history, plan.config)


def assemble(
    plans: Sequence[BasePlan],
    available: Availability,
    store: ContentStore,
    settings: Settings,
    lock: LayersLock,
    engine: Callable[[], Engine],
    on_event: OnEvent = ignore,
    on_layer: OnLayer = lambda _: None,
) -> tuple[AssembledImage, ...]:
    """Return the bases of these plans; every layer is in the store afterwards.

    A layer that several share is made once. available: where the layers are. lock: what they have
    to be; a new layer is added to it. engine: called where a rootfs has to be made. Raises
    OutsideError for what cannot be fetched or an engine that refuses, InputError for a lock that
    cannot be, CheckFailed for a layer that is made differently.
    """
    planned = {layer.key: layer for plan in plans for layer in plan.layers}

    def on_taken(layer: Layer) -> None:
        if layer.key not in lock.layers:
            lock.check(layer, planned[layer.key].name)
        on_layer(layer)

    layers = _taken(available, store, settings, on_event, on_taken)
    missing = planned.keys() - layers.keys()
    store = store.ignoring(available.remake)  # nothing else: another run may make it meanwhile

    def on_made(layer: Layer) -> None:
        lock.check(layer, planned[layer.key].name)
        layers_lock.remember(layer, planned[layer.key].name)
        on_layer(layer)

    maker = _Maker(store, settings, engine, on_event, on_made)
    roots = {key: plan for plan in plans if (key := plan.layers[0].key) in missing}
    with ThreadPoolExecutor(1) as thread, contextlib.ExitStack() as end:
        end.callback(maker.stop.set)  # whatever ends this, no rootfs is made any longer
        making = [thread.submit(maker.rootfs, plan) for plan in roots.values()]
        for platform, same in _by_platform(plans).items():
            wheel_plans = [layer for plan in same for layer in plan.wheels]
            if group := [layer for layer in wheel_plans if layer.plan.key in missing]:
                pins = [pin for layer in group for pin in layer.pins]
                with (
                    maker.compiler(same[0]) as compiler,
                    download.wheels_of(pins, platform) as wheels,
                ):
                    run = Making(store, wheels, compiler, on_event, on_made, maker.stop)
                    made = run.make(group)
                layers |= {layer.key: layer for layer in made}
        layers |= {(layer := future.result()).key: layer for future in making}
    images = []
    for plan in plans:
        name = plan.layers[-1].name
        if (key := plan.layers[-1].key) not in layers:
            layers[key] = lock.check(maker.environment(plan, layers[plan.layers[0].key]), name)
            layers_lock.remember(layers[key], name)
        history = [(layers[layer.key], layer.history) for layer in plan.layers]
        images.append(image_of(history, plan.config))
        store.keep_image(plan.tag, images[-1])
    return tuple(images)


def _taken(
    available: Availability,
    store: ContentStore,
    settings: Settings,
    on_event: OnEvent,
    on_taken: OnLayer,
) -> dict[str, Layer]:
    """Return the layers that need not be made, by key; those that the registry has are fetched.
    What it has lost, or has with other bytes, is not among them. on_taken: gets each of them as
    soon as the store has it: an engine unpacks the lower ones while those above come."""
    for layer in available.stored.values():
        on_taken(layer)
    lost = frozenset[str]()
    if offered := list(available.offered.values()):
        reference = registry.parse(settings.repository)
        with registry.Registry(reference.host) as client:
            lost = registry_layers.fetch(
                client, reference.repository, offered, store, on_event, on_taken
            )
    every = {**available.stored, **available.offered}
    return {key: layer for key, layer in every.items() if key not in lost}


def _by_platform(plans: Sequence[BasePlan]) -> dict[Platform, list[BasePlan]]:
    platforms: dict[Platform, list[BasePlan]] = {}
    for plan in plans:
        platform = Platform(plan.python, GLIBC[plan.rootfs.suite])
        platforms.setdefault(platform, []).append(plan)
    return platforms


@dataclass(frozen=True)
class _Maker:
    """Makes what stands below and above the wheel layers."""

    store: ContentStore
    settings: Settings
    engine: Callable[[], Engine]
    on_event: OnEvent
    on_layer: OnLayer
    stop: threading.Event = field(default_factory=threading.Event)

    def rootfs(self, plan: BasePlan) -> Layer:
        layer = rootfs.make(
            plan.rootfs,
            self.engine(),
            debian.archives(self.settings),
            self.store,
            plan.compression,
            self.on_event,
            self.stop,
        )
        self.on_layer(layer)
        return layer

    def environment(self, plan: BasePlan, below: Layer) -> Layer:
        """Return the top layer of a base. below: the layer of its rootfs."""
        top = plan.layers[-1]
        with self.store.lock(top.key):
            if layer := self.store.find(top.key):
                return layer
            accounts = rootfs.texts(self.store.path(below), ("etc/passwd", "etc/group"))
            with self.store.writing() as out:
                writer = LayerWriter(out, plan.compression)
                write_environment(
                    plan.environment, writer, accounts["etc/passwd"], accounts["etc/group"]
                )
                return self.store.keep(out, writer.close(top.key))

    @contextlib.contextmanager
    def compiler(self, plan: BasePlan) -> Iterator[BytecodeCompiler]:
        """Yield the base's Python: run on this machine, else in containers of its rootfs."""
        if bytecode.runs_here():
            archives = debian.archives(self.settings)
            paths = download.fetch_debs(plan.compiler, archives, self.on_event)
            with bytecode.unpacked(paths.values(), plan.python) as compiler:
                yield compiler
            return
        root, engine = self.rootfs(plan), self.engine()
        name = f"{rootfs.REPOSITORY}:{root.key[:16]}"
        loading.load(engine, image_of([(root, "the rootfs")], {}), self.store, name, self.on_event)
        yield bytecode.in_container(name, plan.python, ("docker", "--host", engine.host))


def write_environment(
    environment: Environment, writer: LayerWriter, passwd: str, group: str
) -> None:
    """Write the top layer's entries: the program's user and folder, the Python environment.

    The accounts are written here and not by useradd, which would leave today's date in /etc/shadow.
    passwd, group: the accounts of the rootfs.
    """
    user, home = environment.user, f"home/{USER}"
    files = environment.files | {
        "etc/passwd": f"{passwd}{USER}:x:{user}:{user}::/{home}:/usr/sbin/nologin\n",
        "etc/group": f"{group}{USER}:x:{user}:\n",
    }
    venv = VENV.lstrip("/")
    links = {
        f"{venv}/bin/python": "python3",
        f"{venv}/bin/python3": "/usr/bin/python3",
        f"{venv}/bin/python{environment.python}": "python3",
        f"{venv}/lib64": "lib",
    }
    entries = {*files, *links, home}
    for name in sorted({*entries, APP.lstrip("/"), *folders_above(entries)}):
        if name in files:
            writer.file(name, files[name].encode())
        elif name in links:
            writer.link(name, links[name])
        else:
            writer.folder(name, owner=(user, user) if name == home else (0, 0))
