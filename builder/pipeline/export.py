"""Images without an engine: `builder build --to-registry` and `--to-layout`.

A training image goes as one layer onto its base in the registry, and no byte of the base travels.
A base goes there layer by layer, or into a folder, an OCI image layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore, prefixed, step
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.image import base, content_store, loading, program, registry_layers
from builder.image.assembled import AssembledImage, CheckBase, base_in_registry
from builder.image.estimate import Lacks, estimate
from builder.image.plan import BasePlan
from builder.pipeline import repository
from builder.pipeline.make import Target, prepare
from builder.registry import Reference, Registry

if TYPE_CHECKING:
    from builder.engine import Engine


@dataclass(frozen=True)
class Exported:
    """An image without a receipt, in a registry or in a folder. digest: of its manifest."""

    reference: str
    digest: str


def to_registry(
    root: Path,
    settings: Settings,
    names: Sequence[str],
    engine: Callable[[], Engine],
    check_base: CheckBase | None = None,
    on_event: OnEvent = ignore,
) -> tuple[Exported, ...]:
    """Put the training images of these targets onto their bases in the registry.

    The tag is `unproven-<hash>`; the tags that people follow move after a smoke run only. All
    targets are prepared before anything is sent. engine: called where BuildKit has to run a
    Dockerfile. Raises what `prepare` raises, InputError without a registry, OutsideError where the
    registry lacks a base.
    """
    targets = [prepare(root, name) for name in names]
    where = repository.of(settings, "build")
    return tuple(_put_onto_base(where, target, engine, check_base, on_event) for target in targets)


def bases_to_registry(
    root: Path,
    settings: Settings,
    names: Sequence[str],
    engine: Callable[[], Engine],
    check_base: CheckBase | None = None,
    on_event: OnEvent = ignore,
) -> tuple[Exported, ...]:
    """Put the bases of these targets into the registry, and offer their layers by their keys.

    engine: called where a rootfs has to be made that neither this machine nor the registry has.
    Raises what `prepare` raises, InputError without a registry or for a published base.
    """
    where = repository.of(settings, "build")
    plans: dict[str, BasePlan] = {}
    for target in [prepare(root, name) for name in names]:
        if target.base is None:
            raise InputError(
                f"{target.name}: its base is {target.spec.base}", "there is none to build"
            )
        plans[target.base.tag] = target.base
    exported = []
    for tag, plan in plans.items():
        with Registry(where.host) as client:
            image = whole_base(client, where.tagged(tag), check_base)

            if image is None:
                lacks = partial(registry_layers.lacks, client, where.repository)
                image = _assemble(
                    settings, plan, engine, check_base, "the registry", lacks, on_event
                )
                put_base(client, where.tagged(tag), image, on_event)
        exported.append(Exported(str(where.tagged(tag)), image.digest))
    return tuple(exported)


def to_layout(
    root: Path,
    settings: Settings,
    names: Sequence[str],
    base_only: bool,
    folder: Path,
    engine: Callable[[], Engine],
    check_base: CheckBase | None = None,
    on_event: OnEvent = ignore,
) -> tuple[Exported, ...]:
    """Write the image of one target, or its base, into a new folder.

    engine: called where a rootfs has to be made that neither this machine nor the registry has.
    Raises InputError for several targets, a folder with something in it, or an image that BuildKit
    has to build; OutsideError, CheckFailed.
    """
    if len(names) != 1:
        raise InputError("a layout holds one image", "name one target")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already", "name a folder that does not exist")
    target = prepare(root, names[0])
    if target.base is None or not (base_only or target.image.config):
        why = "its Dockerfile does more than copy" if target.base else f"it is {target.spec.base}"
        raise InputError(
            f"{target.name}: an engine has to build on its base: {why}",
            f"builder build {target.name}, then docker save",
        )
    events = prefixed(target.name, on_event)
    image = _assemble(
        settings, target.base, engine, check_base, "the folder", lambda all_: [True] * len(all_),
        events,
    )  # fmt: skip
    store, name = content_store.of_this_machine(), target.base.tag
    if not base_only:
        image, name = program.assemble(target.image, image, store), target.name
    with step(f"write {folder}", events):
        loading.write_layout(image, store, f"{LOCAL_REPOSITORY}:{name}", folder)
    return (Exported(str(folder), image.digest),)


def whole_base(
    client: Registry, reference: Reference, check_base: CheckBase | None = None
) -> AssembledImage | None:
    """Return the base under a tag of the registry; None where it is not there with every layer.

    Raises OutsideError, and CheckFailed for a base that [trust] of builder.toml refuses.
    """
    image = base_in_registry(client, reference, check_base)
    if image and any(registry_layers.lacks(client, reference.repository, image.layers)):
        return None
    return image


def put_base(
    client: Registry, reference: Reference, image: AssembledImage, on_event: OnEvent
) -> int:
    """Put a base into the registry under its tag, and offer its layers by their keys.

    Return the bytes that were sent.
    """
    store = content_store.of_this_machine()
    sent = registry_layers.publish(client, reference, image, store, on_event)
    registry_layers.offer(client, reference.repository, image.layers, store, on_event)
    return sent


def _assemble(
    settings: Settings,
    plan: BasePlan,
    engine: Callable[[], Engine],
    check_base: CheckBase | None,
    to: str,
    lacks: Lacks,
    on_event: OnEvent,
) -> AssembledImage:
    """Return a base with all its layers in this machine's content store."""
    store = content_store.of_this_machine()
    with step("plan", on_event) as planning:
        available = base.look_up([plan], store, settings, check_base=check_base)
        takes = estimate([plan], available, to, lacks)
        planning.detail, planning.cached = str(takes), takes.nothing
    return base.assemble([plan], available, store, settings, engine, on_event)[0]


def _put_onto_base(
    where: Reference,
    target: Target,
    engine: Callable[[], Engine],
    check_base: CheckBase | None,
    on_event: OnEvent,
) -> Exported:
    """Put one training image onto its base. Raises OutsideError where the registry lacks that."""
    to, store = where.tagged(f"unproven-{target.inputs[:16]}"), content_store.of_this_machine()
    events = prefixed(target.name, on_event)
    with Registry(to.host) as client:
        image = None
        if target.base:
            base_tag = where.tagged(target.base.tag)
            image = base_in_registry(client, base_tag, check_base)
            if image is None:
                raise OutsideError(
                    f"{base_tag}: the registry does not have the base",
                    f"push it once: builder build {target.name} --base-only --to-registry",
                )
        if image and target.image.config:
            with step(f"append to {target.base.tag}", events):  # type: ignore[union-attr]
                appended = program.assemble(target.image, image, store)
                registry_layers.publish(client, to, appended, store, events)
            return Exported(str(to), appended.digest)
    built = program.build(engine(), target.image, str(to), "registry", False, events)
    assert built.digest
    return Exported(str(to), built.digest)
