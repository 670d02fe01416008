"""What to build, under which hash, from which bytes.

Two build contexts a target, and nothing in them that the images do not hold: the base's lock files,
and the trainer. A hash is over content alone, so that one line changed in the trainer is one new
training image on the same base, and no change at all is nothing to do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.core.errors import InputError
from builder.core.files import hash_of
from builder.core.templates import BASE_DOCKERFILE, DOCKERFILE, EPOCH

if TYPE_CHECKING:
    from builder.lock.model import Lock, OsRoot
    from builder.render.dockerfiles import Rendered
    from builder.spec.catalogue import ImageSpec

APP = "app"
"""The folder of a training image's context that becomes /app."""

LEFT_OUT = frozenset({"__pycache__", "tests", "test", "node_modules"})
"""Folders of a trainer that no training run reads; neither does it read hidden ones."""

_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", "~", ".swp")


@dataclass(frozen=True)
class File:
    """The content of one file, and whether it may be executed."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class BasePlan:
    """The base image. `hash` is 16 hex digits over all it is made of; `files` its context."""

    hash: str
    dockerfile: str
    files: Mapping[str, File]
    root: OsRoot

    @property
    def tag(self) -> str:
        """The tag under which every target that shares this base finds it."""
        return f"base-{self.hash}"


@dataclass(frozen=True)
class ImagePlan:
    """The training image. `hash` is over its Dockerfile (which names the base) and its context."""

    hash: str
    dockerfile: str
    files: Mapping[str, File]

    @property
    def bytes(self) -> int:
        """Size of what it adds to the base, uncompressed."""
        return sum(len(file.content) for file in self.files.values())


@dataclass(frozen=True)
class Plan:
    """All that a target's images are made of. A published base has no BasePlan."""

    target: str
    base: BasePlan | None
    image: ImagePlan

    @property
    def inputs_hash(self) -> str:
        """Over everything: equal hashes are equal images."""
        return inputs_hash(self.base.hash if self.base else "", self.image.hash)


@dataclass(frozen=True)
class Staged:
    """Where the contexts lie; each holds its own Dockerfile."""

    base: Path | None
    image: Path

    @property
    def base_dockerfile(self) -> Path | None:
        """The Dockerfile in the base's context."""
        return self.base / BASE_DOCKERFILE if self.base else None

    @property
    def dockerfile(self) -> Path:
        """The Dockerfile in the training image's context."""
        return self.image / DOCKERFILE


def plan(root: Path, spec: ImageSpec, lock: Lock, rendered: Rendered) -> Plan:
    """The plan of a target. Raises InputError for a file that is not the project's own."""
    base = None
    if rendered.base_dockerfile and rendered.base_hash and lock.root:
        files = {name: File(text.encode()) for name, text in sorted(lock.files.items())}
        base = BasePlan(rendered.base_hash, rendered.base_dockerfile, files, lock.root)
    files = trainer(root, spec.trainer.package, spec.trainer_folder.flat)
    if base is None:
        files |= {name: File(text.encode()) for name, text in sorted(lock.files.items())}
    return Plan(
        spec.name,
        base,
        ImagePlan(content_hash(rendered.dockerfile, files), rendered.dockerfile, files),
    )


def inputs_hash(base: str, image: str) -> str:
    """Over the hashes of both images; `base` is "" on a published one."""
    return hash_of(base, image)


def content_hash(dockerfile: str, files: Mapping[str, File]) -> str:
    """16 hex digits over a Dockerfile and its context."""
    parts = [dockerfile]
    for name, file in sorted(files.items()):
        parts += [name, str(file.executable), hashlib.sha256(file.content).hexdigest()]
    return hash_of(*parts)[:16]


# --- the trainer ---------------------------------------------------------------------------------


def trainer(root: Path, package: str, flat: bool) -> dict[str, File]:
    """The trainer's files by their name in the context, sorted. The catalogue has seen it there.

    package, flat: its folder, and whether the module lies in that and not in a package.
    """
    source = root / package
    # `python -m` starts in /app
    to = PurePosixPath(APP) if flat else PurePosixPath(APP, source.name)
    return {
        str(to / path.relative_to(source).as_posix()): _file(root, path) for path in walk(source)
    }


def walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name.endswith(_LEFT_OUT_ENDINGS):
            continue
        if path.is_dir():
            if path.name not in LEFT_OUT:
                yield from walk(path)
        elif path.is_file():
            yield path


def _file(root: Path, path: Path) -> File:
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{path.relative_to(root)}: is a link to a file outside of the project",
            "copy the file into the project: what is not in it cannot be rebuilt from it",
        )
    return File(path.read_bytes(), bool(path.stat().st_mode & 0o100))


# --- build contexts ------------------------------------------------------------------------------


def stage(plan: Plan, folder: Path) -> Staged:
    """Write the build contexts to `folder`, whole or not at all, in place of what was there.

    The same plan is the same contexts: contents, names, modes and dates. Each is named by its hash:
    BuildKit brings a context of the same name as an earlier one up to date file by file, and a
    folder in which a file changed then has today's date.
    """
    base, image = f"base-{plan.base.hash}" if plan.base else "", f"image-{plan.image.hash}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        if plan.base:
            _write(new / base, plan.base.files, BASE_DOCKERFILE, plan.base.dockerfile)
        _write(new / image, plan.image.files, DOCKERFILE, plan.image.dockerfile)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            folder.replace(old)
            shutil.rmtree(old)
        new.replace(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return Staged(folder / base if plan.base else None, folder / image)


def _write(context: Path, files: Mapping[str, File], dockerfile: str, text: str) -> None:
    for name, file in {**files, dockerfile: File(text.encode())}.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(0o755 if file.executable else 0o644)
    # Leaves first: writing into a folder would set its date again.
    for path in sorted([context, *context.rglob("*")], reverse=True):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (EPOCH, EPOCH))
