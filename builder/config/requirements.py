"""The Python packages of an image: the framework's, then those that a user's requirements add.

The framework, its CUDA libraries and libtpu are chosen first, and a requirement that would move one
of them is refused. Any other library (numpy, setuptools) may move within the range that the
framework accepts; image.lock names those that did (`Lock.moved`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from builder.config import image_yaml, uv
from builder.config.lockfile import CUDA, EXTRA, Lock, Moved
from builder.config.pins import Pin
from builder.config.stack import GLIBC, OWN_PYTHON
from builder.config.uv import NoSolution, Platform
from builder.core.errors import InputError
from builder.facts import frameworks

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.network import BuildNetwork
    from builder.config.stack import Stack

GLIBC_PUBLISHED = 31
"""The 2.x that is assumed of a published base: that of Ubuntu 20.04, the oldest in use there."""


def wheels(
    spec: ImageSpec,
    stack: Stack,
    host: BuildNetwork,
    locks: Iterable[Lock],
    limits: Mapping[str, str],
) -> tuple[dict[str, tuple[Pin, ...]], tuple[Moved, ...]]:
    """Return the pins of each layer, by the layer's file, and what the user's requirements moved.

    locks: those whose versions are kept where no requirement excludes them, the target's own
    first. limits: variables for uv that say how old a release has to be. Raises InputError for
    requirements that cannot be met, OutsideError where the index cannot be reached.
    """
    environment = {**host.host_environment(), **limits}
    like = [lock for lock in locks if lock.framework == spec.framework]
    versions = {n: p.version for lock in reversed(like) for n, p in lock.packages.items()}
    before = {library.name: library.before for lock in reversed(like) for library in lock.moved}
    try:
        base = uv.resolve(
            [stack.requirement],
            _platform(stack),
            environment,
            stack.constraints,
            versions | before,
        )
    except NoSolution as error:
        raise InputError(
            f"{image_yaml.where(spec, spec.framework)}: {stack.requirement} cannot be "
            f"installed for Python {stack.python}: {error}",
            f"see builder explain {spec.name}",
        ) from None
    every = base
    if _requirements(spec):
        # A library that was moved goes back once no requirement moves it; until then it stays.
        every = _with_requirements(spec, stack, environment, base, versions | before)
        if any(
            name in every and name in base and every[name].version != base[name].version
            for name in before
        ):
            every = _with_requirements(spec, stack, environment, base, versions)
    moved = tuple(
        Moved(name, pin.version, every[name].version)
        for name, pin in base.items()
        if name in every and every[name].version != pin.version
    )
    known = [pin for lock in locks for pin in lock.packages.values()]
    own = spec.has_own_base
    chosen = every if own else {n: pin for n, pin in every.items() if n not in base}
    pins = uv.with_sizes(chosen, known, host)
    return _layers(pins, base, frameworks.of(spec.framework).lock_file), moved


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


def _requirements(spec: ImageSpec) -> tuple[str, ...]:
    """Return the requirements of image.yaml and of the trainer's requirements.txt."""
    own = (text for _, text in spec.trainer_folder.requirements)
    return tuple(dict.fromkeys((*spec.requirements, *own)))


def _platform(stack: Stack) -> Platform:
    own = stack.spec.has_own_base
    return Platform(stack.python, GLIBC[OWN_PYTHON[stack.python]] if own else GLIBC_PUBLISHED)


def _fixed(stack: Stack, base: Mapping[str, Pin]) -> dict[str, str]:
    """Return the versions that no requirement may move: the framework's, NVIDIA's libraries',
    libtpu's.
    """
    names = {stack.distribution, "libtpu", *stack.constraints}
    return {
        name: pin.version
        for name, pin in base.items()
        if name in names or name.startswith("nvidia-")
    }


def _with_requirements(
    spec: ImageSpec,
    stack: Stack,
    environment: Mapping[str, str],
    base: Mapping[str, Pin],
    versions: Mapping[str, str],
) -> dict[str, Pin]:
    """Return all packages with the user's requirements.

    Raises InputError that names the one at fault.
    """

    def resolve(*requirements: str) -> dict[str, Pin]:
        wanted = [stack.requirement, *requirements]
        return uv.resolve(wanted, _platform(stack), environment, _fixed(stack, base), versions)

    try:
        every = resolve(*_requirements(spec))
    except NoSolution as together:
        for requirement in _requirements(spec):
            try:
                resolve(requirement)
            except NoSolution as alone:
                raise _refused(spec, stack, environment, base, requirement, alone) from None
        raise InputError(
            f"{image_yaml.where(spec, 'requirements')}: they contradict each other: {together}",
            "loosen or remove one of them",
        ) from None
    if second := _second(every, base, stack):
        requirement = next(
            (name for name in _requirements(spec) if second in resolve(name)),
            _requirements(spec)[0],
        )
        raise InputError(
            f'{_where(spec, requirement)}: "{requirement}" brings {second}, whose files would '
            f"replace those of {_twin(second, base, stack)}",
            f"leave it out of {spec.name}, or name a package that works with {stack.distribution}",
        )
    return every


def _second(every: Mapping[str, Pin], base: Mapping[str, Pin], stack: Stack) -> str | None:
    """Return a package that installs over the files of the framework or of a CUDA library."""
    return next((name for name in every if name not in base and _twin(name, base, stack)), None)


def _twin(name: str, base: Mapping[str, Pin], stack: Stack) -> str:
    """Return the package whose files `name` would replace; "" for none."""
    if name in frameworks.of(stack.spec.framework).distributions:
        return stack.distribution
    stem = re.sub(r"-cu\d+$", "", name)
    if stem.startswith("nvidia-"):
        return next((package for package in base if re.sub(r"-cu\d+$", "", package) == stem), "")
    return ""


def _refused(
    spec: ImageSpec,
    stack: Stack,
    environment: Mapping[str, str],
    base: Mapping[str, Pin],
    requirement: str,
    reason: NoSolution,
) -> InputError:
    """Return the error for a requirement that cannot be met: what it would move, or uv's reason."""
    versions = {name: pin.version for name, pin in base.items()}
    try:
        alone = uv.resolve([requirement], _platform(stack), environment, None, versions)
    except NoSolution:
        alone = {}
    fixed = _fixed(stack, base)
    moves = [
        f"{name} {versions[name]} to {alone[name].version}"
        for name in sorted(versions, key=lambda name: (name not in fixed, name))
        if name in alone and alone[name].version != versions[name]
    ]
    twin = alone.get(spec.framework)
    if twin and spec.framework not in versions and twin.version != stack.release:
        moves.insert(0, f"{stack.distribution} {stack.release} to {twin.version}")
    what = f"would move {', '.join(moves)}" if moves else f"cannot be met: {reason}"
    return InputError(
        f'{_where(spec, requirement)}: "{requirement}" {what}',
        f"leave it out or loosen it: {stack.distribution} {stack.release} and what it was "
        f"tested with stay (builder explain {spec.name})"
        + ("; another CUDA library is image.yaml's key cuda" if "nvidia-" in what else ""),
    )


def _where(spec: ImageSpec, requirement: str) -> str:
    """Return the file, line and field of one requirement."""
    location = image_yaml.where(spec, "requirements")
    for where, text in spec.trainer_folder.requirements:
        if text == requirement:
            return where
    with contextlib.suppress(OSError):
        for number, line in enumerate(spec.source.read_text(encoding="utf-8").splitlines(), 1):
            if requirement in line:
                return f"{image_yaml.shown(spec.source)}:{number}: requirements"
    return location
