"""Whether a committed lock still fits its image.yaml and the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.config import image_yaml, lockfile
from builder.config.lockfile import TRAINER_REQUIREMENTS
from builder.core.errors import InputError

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.lockfile import Lock
    from builder.config.stack import Stack


@dataclass(frozen=True)
class Staleness:
    """A committed file that no longer fits, and why; `fix` names the command that mends it."""

    file: str
    why: str
    fix: str


def stale(root: Path, spec: ImageSpec, stack: Stack) -> tuple[Staleness, ...]:
    """Return every file of a target's lock that is stale. Nothing is resolved or fetched."""
    return read(root, spec, stack)[1]


def read(root: Path, spec: ImageSpec, stack: Stack) -> tuple[Lock | None, tuple[Staleness, ...]]:
    """Return a target's lock, and every file of it that is stale; each file is read once.

    The lock is None where a file is missing or differs from its checksum.
    """
    folder = root / image_yaml.IMAGES / spec.name
    fix = f"run builder lock {spec.name}"
    path = image_yaml.shown(folder / lockfile.FILE)
    try:
        content = json.loads((folder / lockfile.FILE).read_text(encoding="utf-8"))
        locked, files = content["configuration"], content["files"]
        texts = _texts(folder, files)
        changed = _changed_files(folder, files, texts)
        lock = None if changed else lockfile.parse(root, spec.name, content, texts)
    except FileNotFoundError:
        return None, (Staleness(path, "is missing: never locked", fix),)
    except (ValueError, KeyError, TypeError, InputError) as error:
        why = getattr(error, "message", None) or f"is not what `builder lock` writes ({error})"
        return None, (Staleness(path, str(why), fix),)
    outdated = [Staleness(path, why, fix) for why in _changed_fields(spec, locked)]
    outdated += [Staleness(image_yaml.shown(folder / name), why, fix) for name, why in changed]
    if lock is None:
        return None, tuple(outdated)
    if not outdated:
        if lock.python != stack.python:
            why = f"the tables choose Python {stack.python}, locked is {lock.python}"
            outdated.append(Staleness(path, why, fix))
        moved = _moved_tables(lock, stack)
        outdated += [Staleness(image_yaml.shown(folder / name), why, fix) for name, why in moved]
    if lock.root and lock.root.packages_checksum != content["root"]["packages"]:
        file = lockfile.os_lock(root, lock.root.suite).name
        outdated.append(Staleness(path, f"{file} has changed since", fix))
    return lock, tuple(outdated)


def _changed_fields(spec: ImageSpec, locked: Mapping[str, object]) -> list[str]:
    """Return the fields of the configuration that differ, with both values."""
    now = lockfile.configuration(spec)
    return [
        f"{_key(spec, name)} is {_text(now.get(name))}, locked is {_text(locked.get(name))}"
        for name in {**now, **locked}
        if locked.get(name) != now.get(name)
    ]


def _key(spec: ImageSpec, name: str) -> str:
    if name == TRAINER_REQUIREMENTS:
        return f"{spec.program.folder}/{image_yaml.REQUIREMENTS}"
    return f"image.yaml's {name}"


def _texts(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return file name -> text, without the files that are missing."""
    paths = {name: folder / name for name in names}
    return {
        name: path.read_text(encoding="utf-8", errors="replace")
        for name, path in paths.items()
        if path.is_file()
    }


def _changed_files(
    folder: Path, files: Mapping[str, str], texts: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the files that differ from their checksums, and why.

    texts: of those that are there.
    """
    changed = []
    for name, checksum in files.items():
        if name not in texts:
            changed.append((name, "is missing"))
        elif lockfile.checksum(texts[name]) != checksum:
            changed.append((name, "was edited: it is not what was locked"))
    changed += [
        (name, "belongs to no lock")
        for name in lockfile.FILES
        if name not in files and (folder / name).exists()
    ]
    return changed


def _moved_tables(lock: Lock, stack: Stack) -> list[tuple[str, str]]:
    """Return the pins that the compatibility tables no longer choose, by file, and why."""
    packages, own = lock.packages, lock.root is not None
    file = {pin.name: name for name, wheels in lock.wheels.items() for pin in wheels}
    wanted = {**stack.constraints, stack.distribution: stack.release} if own else {}
    return [
        (
            file.get(name, lock.wheel_files[1]),
            f"the tables choose {name} {version}, locked is "
            f"{packages[name].version if name in packages else 'none'}",
        )
        for name, version in wanted.items()
        if name not in packages or packages[name].version != version
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
