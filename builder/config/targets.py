"""A target as git has it: its image.yaml, the versions that follow from it, and its lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from builder.config import compatibility, device_code, image_yaml, lockfile
from builder.config.image_yaml import ImageSpec
from builder.config.lockfile import Lock, Staleness
from builder.config.stack import Fact, Stack
from builder.core.errors import InputError
from builder.facts import frameworks
from builder.facts.cuda import OldestDriver


@dataclass(frozen=True)
class TargetFiles:
    """The files of a target; what follows from image.yaml is read when it is asked for, once."""

    root: Path
    """The project's folder."""
    spec: ImageSpec
    home: Path
    """The folder whose images/ holds its locks: the project, but for a `--program`
    (builder/pipeline/package.py)."""

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def stack(self) -> Stack:
        """The versions that work together. Raises InputError where none do."""
        return compatibility.resolve(self.spec, self.builds)

    @property
    def builds(self) -> frozenset[str]:
        """The framework's version that its lock has, where that is a build for one CUDA of an index
        that was in use then."""
        if frameworks.of(self.spec.framework).labelled and self.is_locked:
            with contextlib.suppress(InputError):
                if self.lock.framework == self.spec.framework and "+" in self.lock.release:
                    return frozenset({self.lock.release})
        return frozenset()

    @cached_property
    def lock(self) -> Lock:
        """Its lock. Raises InputError where a file is missing or damaged."""
        return lockfile.read(self.home, self.name)

    @property
    def is_locked(self) -> bool:
        """Whether it has a lock, be it damaged."""
        return (self.home / image_yaml.IMAGES / self.name / lockfile.FILE).is_file()

    @property
    def driver(self) -> OldestDriver | None:
        """The oldest driver for what it locks; where it is not locked, for its CUDA."""
        return device_code.driver(self.root, self.stack, self.lock if self.is_locked else None)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Why each version is what it is; of a locked GPU target also the oldest driver, and the
        PTX that asks for it."""
        oldest = self.driver
        if oldest is None or not self.is_locked:
            return self.stack.facts
        libraries = device_code.locked(self.root, self.lock)
        verdict = libraries.verdict(self.stack.compute_capability or "")
        isa = f" (PTX {verdict.ptx_version})" if verdict.ptx_version else ""
        source = f"what the locked wheels carry: {image_yaml.IMAGES}/{device_code.FILE}"
        name = f"oldest driver for the libraries{isa}"
        return (*self.stack.facts, Fact(name, oldest.driver, source, True))

    def checked(self) -> tuple[Lock | None, tuple[Staleness, ...]]:
        return lockfile.check(self.home, self.spec, self.stack)


def of(root: Path, name: str) -> TargetFiles:
    """Return a target of a project. Raises InputError: no such target, or each problem of its
    image.yaml."""
    return TargetFiles(root, image_yaml.load(root, name), root)


def all_of(root: Path, names: Iterable[str] | None = None) -> tuple[TargetFiles, ...]:
    """Return these targets, by default each one of the project. Raises InputError, of all targets
    with the problems of all files."""
    if names is not None:
        return tuple(of(root, name) for name in names)
    return tuple(TargetFiles(root, spec, root) for spec in image_yaml.load_all(root))
