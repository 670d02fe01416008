"""What to build: a base, and the bytes of the build context on top of it, with their hash.

A base is planned by builder/bases/. The training image has a build context, which holds the
trainer. A hash is over content alone. So one changed line of the trainer makes a new training image
on the same base, and where nothing changed, there is nothing to build.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.core.files import hash_of
from builder.core.templates import DOCKERFILE, EPOCH
from builder.pipeline import program
from builder.render import start

if TYPE_CHECKING:
    from builder.bases.plan import BasePlan
    from builder.lock.model import Lock
    from builder.render.dockerfiles import Rendered
    from builder.spec.catalogue import ImageSpec

APP = "app"
"""The folder of a training image's context that becomes /app."""


@dataclass(frozen=True)
class File:
    """The content of one file, and whether it may be executed."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class ImagePlan:
    """The training image. hash: over its Dockerfile, which names the base, and its context.

    installs: whether its Dockerfile installs packages, because its base is a published image.
    """

    hash: str
    dockerfile: str
    files: Mapping[str, File]
    installs: bool = False


@dataclass(frozen=True)
class Plan:
    """What a target's images are made of. base: None where the base is a published image."""

    target: str
    base: BasePlan | None
    image: ImagePlan

    @property
    def inputs_hash(self) -> str:
        """Hash over everything: equal hashes give equal images."""
        return inputs_hash(self.base.hash if self.base else "", self.image.hash)


def plan(root: Path, spec: ImageSpec, lock: Lock, rendered: Rendered) -> Plan:
    """The plan of a target. Raises InputError for a file that is not the project's own."""
    base = rendered.base
    files = program_files(root, spec.trainer.package, spec.trainer_folder.flat, rendered.dockerfile)
    if base is None:
        files |= {name: File(text.encode()) for name, text in sorted(lock.files.items())}
    hash_ = content_hash(rendered.dockerfile, files)
    return Plan(
        spec.name, base, ImagePlan(hash_, rendered.dockerfile, files, installs=base is None)
    )


def inputs_hash(base: str, image: str) -> str:
    """Hash over the hashes of both images; `base` is "" where the base is a published image."""
    return hash_of(base, image)


def content_hash(dockerfile: str, files: Mapping[str, File]) -> str:
    """16 hex digits over a Dockerfile and its context."""
    parts = [dockerfile]
    for name, file in sorted(files.items()):
        parts += [name, str(file.executable), hashlib.sha256(file.content).hexdigest()]
    return hash_of(*parts)[:16]


# --- the trainer ---------------------------------------------------------------------------------


def program_files(root: Path, package: str, flat: bool, dockerfile: str) -> dict[str, File]:
    """The trainer's files by their name in the context, sorted, and the start hook where the
    Dockerfile names it.

    package: the trainer's folder, which the catalogue has checked. flat: whether the module lies in
    the folder itself, not in a package of the folder's name.
    """
    source = root / package
    # `python -m` starts in /app
    to = PurePosixPath(APP) if flat else PurePosixPath(APP, source.name)
    hook = {f"{APP}/{name}": File(content) for name, content in start.files(dockerfile).items()}
    return {
        str(to / path.relative_to(source).as_posix()): _file(root, path)
        for path in program.walk(source)
    } | hook


def _file(root: Path, path: Path) -> File:
    program.check(root, path)
    return File(path.read_bytes(), bool(path.stat().st_mode & 0o100))


# --- build contexts ------------------------------------------------------------------------------


def stage(one: ImagePlan, folder: Path) -> Path:
    """Write the build context of an image below `folder`; the path of the Dockerfile in it.

    The same plan gives the same context: contents, names, modes and dates. The context's own folder
    is named by its hash. BuildKit updates a context of the same name as an earlier one file by
    file, and a folder in which a file changed would then have today's date.
    """
    context = folder / f"image-{one.hash}"
    for name, file in {**one.files, DOCKERFILE: File(one.dockerfile.encode())}.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    # Leaves first: writing into a folder would set its date again.
    for path in sorted([context, *context.rglob("*")], reverse=True):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (EPOCH, EPOCH))
    return context / DOCKERFILE
