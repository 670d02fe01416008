"""Making a lock: every version and hash of an image, chosen once and written to its folder."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.config import debian_packages, image_yaml, lockfile, requirements, uv
from builder.config.debian_packages import DebianPackage
from builder.config.lockfile import APT, APT_EXTRA, Lock, LockedRootfs
from builder.config.stack import OWN_PYTHON
from builder.core import files, project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore, step

if TYPE_CHECKING:
    from builder.config.image_yaml import ImageSpec
    from builder.config.stack import Stack

WANTED = ("?essential", "?priority(required)", "apt")
"""The packages of a rootfs, as apt patterns."""

PYTHON_PACKAGES = ("python3", "ca-certificates")
"""Debian packages of every own base: the interpreter, and the certificates for gs://."""


class Apt(Protocol):
    """Chooses versions of Debian packages."""

    def __call__(
        self, suite: str, wanted: Sequence[Sequence[str]], installed: tuple[DebianPackage, ...]
    ) -> Sequence[tuple[DebianPackage, ...]]:
        """Return all that apt installs for each list of names, on top of `installed`."""


def lock(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    apt: Apt,
    upgrade: bool = False,
    on_event: OnEvent = ignore,
    require: Callable[[Lock], None] = lambda _: None,
    now: Sequence[str] = (),
    tested: Path | None = None,
) -> Lock:
    """Lock a target and write its files.

    Versions that are locked and still fit are kept, unless `upgrade`. Where nothing is stale,
    nothing is resolved or fetched. A new target starts from its neighbours' versions, so that they
    share a base. The old files stay until every new version is known.

    An upgrade takes Python releases of at least uv.AGE.

    apt: chooses Debian packages where some are not locked yet. now: packages of any age. tested: a
    project whose locks a first target starts from.
    require: is called with a lock of new versions before it is written; may raise InputError.
    Raises InputError for a requirement that contradicts the framework or another requirement,
    OutsideError for an index or a mirror that cannot be reached.
    """
    # Targets share the rootfs's file: one run at a time.
    with (
        step(f"lock {spec.name}", on_event) as locking,
        files.locked(root / project.BUILD / ".lock"),
    ):
        if kept := not (upgrade or lockfile.stale(root, spec, stack)):
            made = lockfile.read(root, spec.name)
        else:
            limits = _limits(now) if upgrade else {}
            made = _make(root, spec, stack, upgrade, apt, locking.log, limits, tested)
            require(made)
        lockfile.write(root, made)
        locking.cached = kept
        locking.detail = "unchanged" if kept else f"{len(made.packages)} Python packages"
    return made


def _limits(now: Sequence[str]) -> dict[str, str]:
    """Return the variables for uv that say how old a release has to be."""
    own = os.environ.get(uv.EXCLUDE_NEWER)
    return {uv.EXCLUDE_NEWER: own or uv.AGE, uv.TAKEN_NOW: " ".join(now)}


def _make(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    upgrade: bool,
    apt: Apt,
    say: Callable[[str], None],
    limits: Mapping[str, str],
    tested: Path | None,
) -> Lock:
    """Return a new lock. limits: variables for uv that say how old a release has to be."""
    from builder.config import network

    host = network.discover()
    locks = _kept_locks(root, spec, upgrade, tested)
    wheels, moved = requirements.wheels(stack, host, locks, limits)
    for library in moved:
        say(f"{library.name} {library.before} -> {library.after}, for image.yaml's requirements")
    own = spec.has_own_base
    suite = OWN_PYTHON.get(stack.python, "")
    rootfs, on_top = _debian(root, spec, suite, locks, upgrade, apt) if own else (None, {})
    return Lock(
        target=spec.name,
        configuration=lockfile.configuration(spec),
        framework=spec.framework,
        release=stack.release,
        python=stack.python,
        cuda=stack.cuda,
        cudnn=stack.cudnn,
        root=rootfs,
        apt=on_top,
        wheels=wheels,
        moved=moved,
    )


def _kept_locks(
    root: Path, spec: ImageSpec, upgrade: bool, tested: Path | None
) -> tuple[Lock, ...]:
    """Return the locks whose versions are kept: the target's own, then its neighbours', else those
    of the project `tested`, the one of the same accelerator first."""
    if upgrade:
        return ()
    own = _locks(root, spec.name)
    return own or (_locks(tested, spec.accelerator.lower()) if tested else ())


def _locks(root: Path, first: str) -> tuple[Lock, ...]:
    """Return the locks of a project's targets that have one; `first` comes first."""
    locks = []
    for name in (first, *(name for name in image_yaml.targets(root) if name != first)):
        with contextlib.suppress(InputError):
            locks.append(lockfile.read(root, name))
    return tuple(locks)


def _debian(
    root: Path,
    spec: ImageSpec,
    suite: str,
    locks: Sequence[Lock],
    upgrade: bool,
    apt: Apt,
) -> tuple[LockedRootfs, dict[str, tuple[DebianPackage, ...]]]:
    """Return the OS root of a Debian release, and the packages on top of it by their file.

    What is locked is kept.
    """
    rootfs = next((lock.root for lock in locks if lock.root and lock.root.suite == suite), None)
    if rootfs is None:
        rootfs = _root(root, suite, upgrade)
    names = lockfile.configuration(spec)["apt"]
    near = [lock for lock in locks if lock.root == rootfs]
    python = next((lock.apt[APT] for lock in near if APT in lock.apt), ())
    extra = next(
        (lock.apt.get(APT_EXTRA, ()) for lock in near if lock.configuration["apt"] == names), ()
    )
    steps = [(WANTED, rootfs.packages), (PYTHON_PACKAGES, python), (tuple(names), extra)]
    chosen = _chosen(suite, [(what, kept) for what, kept in steps if what], apt)
    new = [tuple(sorted(packages)) for packages in chosen]
    by_file = dict(zip((APT, APT_EXTRA), new[1:], strict=False))
    return replace(rootfs, packages=new[0]), {
        name: packages for name, packages in by_file.items() if packages
    }


def _chosen(
    suite: str, steps: Sequence[tuple[tuple[str, ...], tuple[DebianPackage, ...]]], apt: Apt
) -> list[tuple[DebianPackage, ...]]:
    """Return the packages of each step, on top of those before it: the kept ones, else apt's."""
    chosen = [kept for _, kept in itertools.takewhile(lambda step: step[1], steps)]
    ask = [names for names, _ in steps[len(chosen) :]]
    there = tuple(deb for packages in chosen for deb in packages)
    if ask:
        answer = apt(suite, ask, there)
        if not there and any(deb.name == "usrmerge" for deb in answer[0]):
            # Debian 12 has two packages for a merged /usr. The root is made with one:
            # usr-is-merged, which only checks it, is enough.
            answer = apt(suite, [(*ask[0], "usr-is-merged"), *ask[1:]], there)
        for packages in answer:
            chosen.append(tuple(deb for deb in packages if deb not in there))
            there += chosen[-1]
    return chosen


def _root(root: Path, suite: str, upgrade: bool) -> LockedRootfs:
    """Return the rootfs of a Debian suite; without packages where they have to be chosen."""
    path = lockfile.os_lock(root, suite)
    keep = path.is_file() and not upgrade
    packages = debian_packages.parse(path.read_text(encoding="utf-8")) if keep else ()
    return LockedRootfs(suite, packages)


def rootfs(root: Path, suite: str, apt: Apt) -> LockedRootfs:
    """Return the locked rootfs of a suite; where there is none, `apt` chooses it and it is
    written.
    """
    with files.locked(root / project.BUILD / ".lock"):
        kept = _root(root, suite, upgrade=False)
        if kept.packages:
            return kept
        (packages,) = _chosen(suite, [(WANTED, ())], apt)
        made = replace(kept, packages=tuple(sorted(packages)))
        lockfile.write_root(root, made)
        return made
