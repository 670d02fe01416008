"""`builder build --to-layout`: an image as a folder, an OCI image layout, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bases import archive, store
from builder.bases.forecast import Destination
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, prefixed, step
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.pipeline import bases, build, prepare
from builder.pipeline.to_registry import Unproven

if TYPE_CHECKING:
    from builder.engine import Engine


def write(
    root: Path,
    settings: Settings,
    targets: Sequence[str],
    base_only: bool,
    folder: Path,
    engine: Callable[[], Engine],
    on_event: OnEvent = ignore,
) -> tuple[Unproven, ...]:
    """Write the image of one target, or its base, into a new folder.

    engine: called where an OS root has to be made that neither this machine nor the registry has.
    Raises InputError for several targets, a folder with something in it, or an image that a
    Dockerfile has to build; OutsideError, CheckFailed.
    """
    if len(targets) != 1:
        raise InputError("a layout holds one image", "name one target")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already", "name a folder that does not exist")
    item = prepare.prepare(root, targets[0])
    if item.plan.base is None:
        raise InputError(
            f"{item.target}: its base is {item.spec.base}; an engine has to build on it",
            f"builder build {item.target}, then docker save",
        )
    events = prefixed(item.target, on_event)
    to = Destination("the folder", lambda layers: [True] * len(layers))
    (image,) = bases.assembled(settings, [item], engine, to, events)
    name = f"{LOCAL_REPOSITORY}:{item.plan.base.tag}"
    if not base_only:
        whole = build.assembled(item, image)
        if whole is None:
            raise InputError(
                f"{item.target}: its Dockerfile does more than copy; an engine has to build it",
                f"builder build {item.target}, then docker save",
            )
        image, name = whole, f"{LOCAL_REPOSITORY}:{item.target}"
    with step(f"write {folder}", events):
        archive.write_layout(image, store.of_this_machine().path, name, folder)
    return (Unproven(str(folder), image.digest),)
