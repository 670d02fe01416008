"""The Python packages of an image: the framework's, then those that a user's requirements add.

The framework, its CUDA libraries and libtpu are chosen first, and a requirement that would move one
of them is refused. Any other library (numpy, setuptools) may move within the range that the
framework accepts; image.lock names those that did (`Lock.moved`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.config import image_yaml, uv
from builder.config.lockfile import CUDA, EXTRA, Lock, Moved
from builder.config.pins import Pin
from builder.config.stack import GLIBC, OWN_PYTHON
from builder.config.uv import NoSolution, Platform
from builder.core.errors import InputError
from builder.facts import frameworks

if TYPE_CHECKING:
    from builder.config.network import BuildNetwork
    from builder.config.stack import Stack

GLIBC_PUBLISHED = 31
"""The 2.x that is assumed of a published base: that of Ubuntu 20.04, the oldest in use there."""


def wheels(
    stack: Stack, host: BuildNetwork, locks: Iterable[Lock], limits: Mapping[str, str]
) -> tuple[dict[str, tuple[Pin, ...]], tuple[Moved, ...]]:
    """Return the pins of each layer, by the layer's file, and what the user's requirements moved.

    locks: those whose versions are kept where no requirement excludes them, the target's own
    first. limits: variables for uv that say how old a release has to be. Raises InputError for
    requirements that cannot be met, OutsideError where the index cannot be reached.
    """
    like = [lock for lock in locks if lock.framework == stack.spec.framework]
    versions = {n: p.version for lock in reversed(like) for n, p in lock.packages.items()}
    before = {library.name: library.before for lock in reversed(like) for library in lock.moved}
    resolver = _Resolver(stack, {**host.host_environment(), **limits})
    base = resolver.framework(versions | before)
    # A library that was moved goes back once no requirement moves it; until then it stays.
    every = resolver.with_requirements(base, versions | before)
    if any(library.name in before for library in _moved(base, every)):
        every = resolver.with_requirements(base, versions)
    known = [pin for lock in locks for pin in lock.packages.values()]
    own = stack.spec.has_own_base
    chosen = every if own else {n: pin for n, pin in every.items() if n not in base}
    pins = uv.with_sizes(chosen, known, host)
    return _layers(pins, base, frameworks.of(stack.spec.framework).lock_file), _moved(base, every)


def _moved(base: Mapping[str, Pin], every: Mapping[str, Pin]) -> tuple[Moved, ...]:
    """Return the libraries that have another version with a user's requirements."""
    return tuple(
        Moved(name, pin.version, every[name].version)
        for name, pin in base.items()
        if name in every and every[name].version != pin.version
    )


def _layers(
    pins: Mapping[str, Pin], base: Mapping[str, Pin], framework: str
) -> dict[str, tuple[Pin, ...]]:
    """Return the pins by the file of their layer. base: what the framework needs; framework: its
    file."""
    layers: dict[str, list[Pin]] = {CUDA: [], framework: [], EXTRA: []}
    for name in sorted(pins):
        layer = EXTRA if name not in base else CUDA if name.startswith("nvidia-") else framework
        layers[layer].append(pins[name])
    return {name: tuple(wheels) for name, wheels in layers.items() if wheels}


@dataclass(frozen=True)
class _Resolver:
    """Resolves what an image needs. environment: variables for uv."""

    stack: Stack
    environment: Mapping[str, str]

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements of image.yaml and of the trainer's requirements.txt."""
        spec = self.stack.spec
        return tuple(
            dict.fromkeys(
                (*spec.requirements, *(text for _, text in spec.trainer_folder.requirements))
            )
        )

    def resolve(
        self,
        requirements: Iterable[str],
        versions: Mapping[str, str],
        constraints: Mapping[str, str] | None = None,
    ) -> dict[str, Pin]:
        """Return what `uv.resolve` does on the platform of the image. versions: those preferred."""
        own, python = self.stack.spec.has_own_base, self.stack.python
        platform = Platform(python, GLIBC[OWN_PYTHON[python]] if own else GLIBC_PUBLISHED)
        return uv.resolve(requirements, platform, self.environment, constraints, versions)

    def framework(self, versions: Mapping[str, str]) -> dict[str, Pin]:
        """Return the framework and all that it needs."""
        stack, spec = self.stack, self.stack.spec
        try:
            return self.resolve([stack.requirement], versions, stack.constraints)
        except NoSolution as error:
            raise InputError(
                f"{image_yaml.where(spec, spec.framework)}: {stack.requirement} cannot be "
                f"installed for Python {stack.python}: {error}",
                f"see builder explain {spec.name}",
            ) from None

    def fixed(self, base: Mapping[str, Pin]) -> dict[str, str]:
        """Return the versions that no requirement may move: the framework's, NVIDIA's libraries',
        libtpu's."""
        names = {self.stack.distribution, "libtpu", *self.stack.constraints}
        return {
            name: pin.version
            for name, pin in base.items()
            if name in names or name.startswith("nvidia-")
        }

    def with_requirements(
        self, base: dict[str, Pin], versions: Mapping[str, str]
    ) -> dict[str, Pin]:
        """Return all packages with the user's requirements.

        Raises InputError that names the one at fault.
        """
        if not self.requirements:
            return base

        def resolve(*requirements: str) -> dict[str, Pin]:
            wanted = [self.stack.requirement, *requirements]
            return self.resolve(wanted, versions, self.fixed(base))

        spec, distribution = self.stack.spec, self.stack.distribution
        try:
            every = resolve(*self.requirements)
        except NoSolution as together:
            for requirement in self.requirements:
                try:
                    resolve(requirement)
                except NoSolution as alone:
                    raise self.refused(base, requirement, alone) from None
            raise InputError(
                f"{image_yaml.where(spec, 'requirements')}: they contradict each other: {together}",
                "loosen or remove one of them",
            ) from None
        twins = ((name, self.twin(name, base)) for name in every if name not in base)
        for second, twin in twins:
            if twin:  # it installs over the files of the framework or of a CUDA library
                brings = (name for name in self.requirements if second in resolve(name))
                requirement = next(brings, self.requirements[0])
                raise InputError(
                    f'{self.where(requirement)}: "{requirement}" brings {second}, whose files would'
                    f" replace those of {twin}",
                    f"leave it out of {spec.name}, or name a package that works with"
                    f" {distribution}",
                )
        return every

    def twin(self, name: str, base: Mapping[str, Pin]) -> str:
        """Return the package whose files `name` would replace; "" for none."""
        if name in frameworks.of(self.stack.spec.framework).distributions:
            return self.stack.distribution
        stem = re.sub(r"-cu\d+$", "", name)
        same = (package for package in base if re.sub(r"-cu\d+$", "", package) == stem)
        return next(same, "") if stem.startswith("nvidia-") else ""

    def refused(self, base: Mapping[str, Pin], requirement: str, reason: NoSolution) -> InputError:
        """Return the error for a requirement that cannot be met: what it would move, or uv's
        reason."""
        stack, framework = self.stack, self.stack.spec.framework
        versions = {name: pin.version for name, pin in base.items()}
        alone: dict[str, Pin] = {}
        with contextlib.suppress(NoSolution):
            alone = self.resolve([requirement], versions)
        fixed = self.fixed(base)
        moves = [
            f"{name} {versions[name]} to {alone[name].version}"
            for name in sorted(versions, key=lambda name: (name not in fixed, name))
            if name in alone and alone[name].version != versions[name]
        ]
        twin = alone.get(framework)
        if twin and framework not in versions and twin.version != stack.release:
            moves.insert(0, f"{stack.distribution} {stack.release} to {twin.version}")
        what = f"would move {', '.join(moves)}" if moves else f"cannot be met: {reason}"
        return InputError(
            f'{self.where(requirement)}: "{requirement}" {what}',
            f"leave it out or loosen it: {stack.distribution} {stack.release} and what it was "
            f"tested with stay (builder explain {stack.spec.name})"
            + ("; another CUDA library is image.yaml's key cuda" if "nvidia-" in what else ""),
        )

    def where(self, requirement: str) -> str:
        """Return the file, line and field of one requirement."""
        spec = self.stack.spec
        for where, text in spec.trainer_folder.requirements:
            if text == requirement:
                return where
        with contextlib.suppress(OSError):
            for number, line in enumerate(spec.source.read_text(encoding="utf-8").splitlines(), 1):
                if requirement in line:
                    return f"{image_yaml.shown(spec.source)}:{number}: requirements"
        return image_yaml.where(spec, "requirements")
