"""An image of a registry, built again from the locks: the same digest, or where they differ first.

Nothing comes from a cache or from the registry but packages, which are compared with the locks.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from builder.config import image_yaml
from builder.core.errors import InputError
from builder.core.settings import Settings
from builder.devicecode import tars
from builder.image import base, layers_lock, program
from builder.image.content_store import ContentStore
from builder.image.tarball import pieces
from builder.pipeline import make, repository
from builder.pipeline.verify import single
from builder.trust import attestations, dsse, provenance

if TYPE_CHECKING:
    from builder.core.events import OnEvent
    from builder.engine import Engine
    from builder.image.layer import AssembledImage
    from builder.registry import Manifest, Reference, Registry
    from builder.trust.keys import SigningKey


_MORE: Final = 1 << 30
"""Bytes that a layer with the same content may have more, packed in another way."""


@dataclass(frozen=True)
class Rebuilt:
    """An image that was built again. difference: where it differs first; "" where nowhere."""

    reference: str
    target: str
    digest: str
    rebuilt: str
    difference: str


def rebuild(
    root: Path,
    reference: str,
    name: str | None,
    settings: Settings,
    engine: Callable[[], Engine],
    on_event: OnEvent,
    key: SigningKey | None = None,
) -> Rebuilt:
    """Build the image of a reference again and compare it. name: of the target, else by the tag.

    key: attests that the digest is the same. Raises InputError for a target that is not assembled
    here, OutsideError, CheckFailed.
    """
    image = repository.resolve(reference, settings)
    target = make.prepare(root, name or _target_of(root, image))
    if target.base is None or not target.image.config:
        raise InputError(
            f"{target.name}: BuildKit builds it, and its layers are others each time",
            "name an image that the factory assembles",
        )
    with (
        repository.opened(image, on_event, f"rebuild {image}") as client,
        tempfile.TemporaryDirectory(prefix="rebuild-") as folder,
    ):
        manifest = single(client, image)
        store, lock = ContentStore(Path(folder)), layers_lock.read(Path(folder) / "layers.lock")
        available = base.look_up([target.base], store, settings, lock, fresh=True)
        (below,) = base.assemble([target.base], available, store, settings, lock, engine, on_event)
        made = program.assemble(target.image, below, store)
        difference = "" if made.digest == manifest.digest else "its configuration differs"
        if difference:
            difference = _difference(client, image, manifest, made, store) or difference
        elif key:
            source = provenance.source_of(root)
            predicate = {
                "target": target.name,
                "inputs": target.inputs,
                "source": source.json() if source else None,
            }
            statement = dsse.Statement(made.digest, dsse.REBUILD, predicate)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            attestations.attach(client, image.repository, manifest, [statement], key, created)
    return Rebuilt(str(image), target.name, manifest.digest, made.digest, difference)


def _target_of(root: Path, image: Reference) -> str:
    """Return the target that a tag names. Raises InputError where it names none."""
    names = sorted(image_yaml.targets(root), key=len, reverse=True)
    for name in names:
        if image.tag == name or (image.tag or "").startswith(f"{name}-"):
            return name
    raise InputError(
        f"{image}: its tag names no target of this project", "name it: --target TARGET"
    )


def _difference(
    client: Registry,
    image: Reference,
    manifest: Manifest,
    made: AssembledImage,
    store: ContentStore,
) -> str:
    """Return the first layer that differs, and the first file in it; "" where none does."""
    for number, (there, here) in enumerate(zip_longest(manifest.layers, made.layers), 1):
        if there is None or here is None:
            return f"{len(manifest.layers)} layers there, {len(made.layers)} here"
        if there.digest != here.blob.digest:
            where = f"layer {number} ({there.digest}, here {here.blob.digest})"
            if there.size > 2 * here.blob.size + _MORE:
                return f"{where}: {there.size} bytes there, {here.blob.size} here"
            with tempfile.TemporaryFile() as file, store.path(here).open("rb") as own:
                client.fetch(image.repository, there, file, lambda _: None)
                file.seek(0)
                try:
                    for theirs, ours in zip_longest(_entries(file), _entries(own)):
                        if theirs != ours:
                            return f"{where}: /{(theirs or ours)[0]}"
                except tars.BROKEN as error:
                    return f"{where}: it cannot be read: {error}"
            return f"layer {number} is packed in another way"
    return ""


def _entries(layer: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    """Yield what a layer says of each entry, with a hash of its content."""
    with tars.members(layer) as members:
        for info, content in members:
            digest = hashlib.sha256()
            for piece in pieces(content) if content else ():
                digest.update(piece)
            owner = (info.uid, info.gid, info.mode, info.mtime)
            yield (info.name, info.type, info.size, info.linkname, owner, digest.digest())
