"""Images without an engine: `builder build --to-registry` and `--to-layout`.

A training image goes as one layer onto its base in the registry, and no byte of the base travels.
A base goes there layer by layer, or into a folder, an OCI image layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, prefixed, step
from builder.core.settings import LOCAL_REPOSITORY
from builder.engine import Engine
from builder.image import base, content_store, loading, program, registry_layers
from builder.image.layer import AssembledImage
from builder.image.registry_layers import base_in_registry
from builder.pipeline import repository
from builder.pipeline.make import BuildOptions, Target, report_plan
from builder.registry import Reference, Registry

Connect = Callable[[], Engine]
"""Called where an engine is needed: BuildKit has to run a Dockerfile, or a rootfs has to be made
that neither this machine nor the registry has."""


@dataclass(frozen=True)
class Exported:
    """An image without a receipt, in a registry or in a folder."""

    reference: str
    digest: str
    """Of its manifest."""

    @property
    def row(self) -> dict[str, str]:
        return {"reference": self.reference, "digest": self.digest}


def to_registry(
    targets: Sequence[Target], options: BuildOptions, engine: Connect
) -> tuple[Exported, ...]:
    """Put the training images of these targets onto their bases in the registry.

    The tag is `unproven-<hash>`; the tags that people follow move after a smoke run only. Raises
    InputError without a registry, OutsideError where the registry lacks a base.
    """
    reference = repository.of(options.settings, "build")
    return tuple(_put_onto_base(reference, target, options, engine) for target in targets)


def bases_to_registry(
    targets: Sequence[Target], options: BuildOptions, engine: Connect
) -> tuple[Exported, ...]:
    """Put the bases of these targets into the registry.

    Raises InputError without a registry or for a published base.
    """
    reference = repository.of(options.settings, "build")
    bases: dict[str, Target] = {}
    for target in targets:
        if target.base is None:
            raise InputError(
                f"{target.name}: its base is {target.spec.base}", "there is none to build"
            )
        bases[target.base.tag] = target
    exported = []
    for tag, target in bases.items():
        to = reference.tagged(tag)
        with Registry(reference.host) as client:
            committed = _base_of(target, options)
            image = committed and base_in_registry(client, to, committed)
            blobs = image.layers if image else ()
            if not image or not all(
                client.has_blob(to.repository, layer.blob.digest) for layer in blobs
            ):
                image = _assemble(target, options, engine, options.on_event)
                store = content_store.of_this_machine()
                registry_layers.publish(client, to, image, store, options.on_event)
        exported.append(Exported(str(to), image.digest))
    return tuple(exported)


def to_layout(
    targets: Sequence[Target], options: BuildOptions, engine: Connect, base_only: bool, folder: Path
) -> tuple[Exported, ...]:
    """Write the image of one target, or its base, into a new folder.

    Raises InputError for several targets, a folder with something in it, or an image that BuildKit
    has to build; OutsideError, CheckFailed.
    """
    if len(targets) != 1:
        raise InputError("a layout holds one image", "name one target")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already", "name a folder that does not exist")
    (target,) = targets
    plan = target.image
    if target.base is None or not (base_only or isinstance(plan, program.AssembledPlan)):
        reason = (
            "its Dockerfile does more than copy" if target.base else f"it is {target.spec.base}"
        )
        raise InputError(
            f"{target.name}: an engine has to build on its base: {reason}",
            f"builder build {target.name}, then docker save",
        )
    events = prefixed(target.name, options.on_event)
    image = _assemble(target, options, engine, events)
    store, name = content_store.of_this_machine(), target.base.tag
    if not base_only and isinstance(plan, program.AssembledPlan):
        image, name = program.assemble(plan, image, store), target.name
    with step(f"write {folder}", events):
        loading.write_layout(image, store, f"{LOCAL_REPOSITORY}:{name}", folder)
    return (Exported(str(folder), image.digest),)


def _base_of(target: Target, options: BuildOptions) -> AssembledImage | None:
    """Return the base that may be taken from a registry; None where lines or signatures lack."""
    return base.committed(target.base, options.known(target.layers)) if target.base else None


def _assemble(
    target: Target, options: BuildOptions, engine: Connect, on_event: OnEvent
) -> AssembledImage:
    """Return a target's base with all its layers in this machine's content store."""
    assert target.base
    plans, store, lock = [target.base], content_store.of_this_machine(), target.layers
    with step("plan", on_event) as planning:
        available = base.look_up(plans, store, options.settings, options.known(lock))
        report_plan(planning, plans, available)
    return base.assemble(plans, available, store, options.settings, lock, engine, on_event)[0]


def _put_onto_base(
    reference: Reference, target: Target, options: BuildOptions, engine: Connect
) -> Exported:
    """Put one training image onto its base. Raises OutsideError where the registry lacks that."""
    to, store = reference.tagged(f"unproven-{target.inputs[:16]}"), content_store.of_this_machine()
    events = prefixed(target.name, options.on_event)
    if target.base:
        at = reference.tagged(target.base.tag)
        with Registry(to.host) as client:
            committed = _base_of(target, options)
            image = committed and base_in_registry(client, at, committed)
            if image is None:
                lacks = "images/layers.lock lacks lines or signatures of"
                lacks = "the registry does not have" if committed else lacks
                raise OutsideError(
                    f"{at}: {lacks} the base",
                    f"push it once: builder build {target.name} --base-only --to-registry",
                )
            if isinstance(target.image, program.AssembledPlan):
                with step(f"append to {target.base.tag}", events):
                    appended = program.assemble(target.image, image, store)
                    registry_layers.publish(client, to, appended, store, events)
                return Exported(str(to), appended.digest)
    built = program.build(engine(), target.image, str(to), "registry", False, events)
    assert built.digest
    return Exported(str(to), built.digest)
