"""Whether the wheels of the locks run on their GPUs, by images/device-code.lock or by reading them.

builder/config/device_code.py reads and writes the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from builder.audit.audited import passes
from builder.config import image_yaml, targets
from builder.config.device_code import COMMAND, FILE, of_known, read, write
from builder.config.lockfile import Lock
from builder.config.pins import Pin
from builder.config.stack import GLIBC, OWN_PYTHON, Stack
from builder.config.targets import TargetFiles
from builder.config.uv import Platform
from builder.core import project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step
from builder.devicecode import gpu_support, inventory
from builder.devicecode.library import Library, Wheel
from builder.devicecode.verdict import Audit, Support
from builder.image import download

# --- what is known --------------------------------------------------------------------------------


def known(library: Library) -> Library | None:
    """Return what an installed library is in its wheel; None where that wheel was never read."""
    wheel = _of(library.package, library.version)
    return next((each for each in wheel if library.path.endswith(f"/{each.path}")), None)


@cache
def _of(package: str, version: str) -> tuple[Library, ...]:
    """Return the libraries of a wheel, from device-code.lock or gpu-support.json."""
    locked = (wheel for wheel in _locked() if (wheel.name, wheel.version) == (package, version))
    of_frameworks = gpu_support.wheels(package, version) if package else ()
    return tuple(library for wheel in (*locked, *of_frameworks) for library in wheel.libraries)


@cache
def _locked() -> tuple[Wheel, ...]:
    return tuple(read(project.factory()).values())


# --- judging --------------------------------------------------------------------------------------


def check(root: Path, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return target -> what the tables, its lock and the wheels that were read say differently.

    It downloads nothing, and looks at locked GPU targets with a base of their own. Raises
    InputError.
    """
    wheels = read(root)
    problems: dict[str, tuple[str, ...]] = {}
    for target in _judged(root, names):
        if not target.is_locked:
            continue
        lock = target.lock
        # the tables have facts about CUDA and the framework alone; what image.yaml's requirements
        # add is judged in the image
        covered = (pin for file in lock.wheel_files[:2] for pin in lock.wheels.get(file, ()))
        if missing := [pin for pin in covered if pin.sha256 not in wheels]:
            first = ", ".join(f"{pin.name} {pin.version}" for pin in missing[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            message = f"what {first}{more} carries was never read: run {COMMAND} {target.name}"
            problems[target.name] = (message,)
        else:
            problems[target.name] = _disagreements(of_known(lock, wheels), target.stack)
    return problems


def require(root: Path, stack: Stack, lock: Lock) -> None:
    """Refuse a lock with a wheel that is known not to run on its GPU, before it is written.

    Raises InputError that names the library and what would run. Wheels that were never read pass
    here: `builder check` asks for them, and the image's receipt needs them to be right.
    """
    if not _is_judged(stack):
        return
    verdict = of_known(lock, read(root)).verdict(stack.compute_capability or "")
    if passes(verdict, stack.spec.allow_ptx) or verdict.status <= Support.NOT_USED:
        return
    assert verdict.spoiler
    raise InputError(
        f"{image_yaml.where(stack.spec, 'cuda' if stack.spec.cuda else stack.spec.framework)}: "
        f"{verdict.spoiler.library.origin} does not run on {stack.accelerator.name}: {verdict}",
        f"take {verdict.instead}" if verdict.instead else f"see builder explain {stack.spec.name}",
    )


def _judged(root: Path, names: Sequence[str]) -> Iterator[TargetFiles]:
    return (target for target in targets.all_of(root, names) if _is_judged(target.stack))


def _is_judged(stack: Stack) -> bool:
    return stack.accelerator.kind == "gpu" and stack.spec.has_own_base


def _disagreements(libraries: Audit, stack: Stack) -> tuple[str, ...]:
    """Return what the tables chose for a GPU and the wheels do not run on."""
    verdict = libraries.verdict(stack.compute_capability or "")
    if passes(verdict, stack.spec.allow_ptx):
        return ()
    name = stack.accelerator.name
    return (f"builder/facts takes these versions for {name}, the wheels say: {verdict}",)


# --- reading --------------------------------------------------------------------------------------


def verify(
    root: Path, names: Sequence[str], on_event: OnEvent = ignore
) -> dict[str, tuple[str, ...]]:
    """Read the wheels of locks, write what they carry, and say where the tables disagree.

    Returns target -> what disagrees, for GPU targets with a base of their own; a committed entry
    that is not what its wheel carries is among it. Wheels that several targets lock are read once;
    wheels that no lock names any more are dropped from the file. Raises InputError, OutsideError.
    """
    known = read(root)
    fresh: dict[str, Wheel] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for target in _judged(root, names):
        lock = target.lock
        if any(pin.sha256 not in fresh for pin in lock.packages.values()):
            platform = Platform(lock.python, GLIBC[OWN_PYTHON[target.stack.python]])
            libraries = of_lock(lock, platform, on_event)
            fresh |= by_wheel(lock.packages.values(), libraries)
        wrong = [
            f"{FILE} does not say what {pin.name} {pin.version} carries"
            for pin in lock.packages.values()
            if pin.sha256 in known and known[pin.sha256] != fresh[pin.sha256]
        ]
        disagreements = _disagreements(of_known(lock, fresh), target.stack)
        problems[target.name] = (*wrong, *disagreements)
    locks = [
        path.read_text(encoding="utf-8") for path in (root / image_yaml.IMAGES).glob("*/*.lock")
    ]
    named = {
        sha256: wheel
        for sha256, wheel in known.items()
        if any(f"sha256:{sha256}" in text for text in locks)
    }
    write(root, named | fresh)
    return problems


def by_wheel(pins: Iterable[Pin], libraries: Iterable[Library]) -> dict[str, Wheel]:
    """Return these libraries by the wheel that they come from."""
    every = tuple(libraries)
    return {
        pin.sha256: Wheel.of(
            pin.name, pin.version, pin.sha256, (item for item in every if item.package == pin.name)
        )
        for pin in pins
    }


def of_lock(lock: Lock, platform: Platform, on_event: OnEvent = ignore) -> tuple[Library, ...]:
    """Return every library in the wheels of a lock, at the paths where they are installed.

    It downloads gigabytes, a wheel at a time. Raises OutsideError.
    """
    pins = tuple(lock.packages.values())
    libraries: list[Library] = []
    with (
        step(f"{lock.target}: read {len(pins)} wheels", on_event) as reading,
        download.wheels_of(pins, platform) as wheels,
    ):
        wheels.folder.mkdir(parents=True, exist_ok=True)
        for pin in pins:
            reading.log(f"{pin.name} {pin.version}")
            with wheels.fetch(pin, lambda _: None) as file:
                libraries += inventory.of_wheel(file, pin.name, pin.version)
            wheels.forget(pin)
    return tuple(libraries)
