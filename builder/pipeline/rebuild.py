"""An image of a registry, built again from the locks: the same digest, or where they differ first.

Nothing comes from a cache or from the registry but packages, which are compared with the locks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from builder.config import image_yaml
from builder.core.errors import InputError
from builder.core.events import OnEvent
from builder.core.settings import Settings
from builder.engine import Engine
from builder.image import base, layers_lock, program
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage
from builder.pipeline import asked, make, repository
from builder.pipeline.asked import Asked
from builder.registry import Manifest


@dataclass(frozen=True)
class Rebuilt:
    reference: str
    target: str
    digest: str
    rebuilt: str
    difference: str
    """Where it differs first; "" where nowhere."""


def rebuild(
    root: Path,
    reference: str,
    name: str | None,
    settings: Settings,
    engine: Callable[[], Engine],
    on_event: OnEvent,
) -> Rebuilt:
    """Build the image of a reference again and compare it. name: of the target, else by the tag.

    Raises InputError for a target that is not assembled here, OutsideError, CheckFailed.
    """
    image = asked.of(root, reference, settings)
    target = make.prepare(root, name or _target_of(root, image))
    if target.base is None or not isinstance(target.image, program.AssembledPlan):
        raise InputError(
            f"{target.name}: BuildKit builds it, and its layers are others each time",
            "name an image that the factory assembles",
        )
    with (
        repository.opened(image.named, on_event, f"rebuild {image.named}") as client,
        tempfile.TemporaryDirectory(prefix="rebuild-") as folder,
    ):
        image.require(client)
        manifest = image.manifest(client)
        store, lock = ContentStore(Path(folder)), layers_lock.read(Path(folder) / "layers.lock")
        available = base.look_up([target.base], store, settings, lock, fresh=True)
        (below,) = base.assemble([target.base], available, store, settings, lock, engine, on_event)
        made = program.assemble(target.image, below, store)
        difference = "" if made.digest == manifest.digest else _difference(manifest, made)
    return Rebuilt(str(image.named), target.name, manifest.digest, made.digest, difference)


def _target_of(root: Path, image: Asked) -> str:
    """Return the target that a tag names. Raises InputError where it names none."""
    if name := asked.longest(image.named.tag or "", image_yaml.targets(root)):
        return name
    raise InputError(
        f"{image.named}: its tag names no target of this project", "name it: --target TARGET"
    )


def _difference(manifest: Manifest, made: AssembledImage) -> str:
    """Return the first layer that differs; that of the configuration where none does."""
    for number, (there, here) in enumerate(zip_longest(manifest.layers, made.layers), 1):
        if there is None or here is None:
            return f"{len(manifest.layers)} layers there, {len(made.layers)} here"
        if there.digest != here.blob.digest:
            return f"layer {number} ({there.digest}, here {here.blob.digest})"
    return "its configuration differs"
