"""What git holds of the targets: choose their locks, and find where committed files disagree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from builder.config import compatibility, image_yaml, listed, locking, network, targets
from builder.config.lockfile import Lock, Staleness
from builder.config.locking import Apt
from builder.config.schema import schema_text
from builder.config.stack import Stack
from builder.config.targets import TargetFiles
from builder.core import git, project
from builder.core.errors import InputError
from builder.core.events import OnEvent, ignore
from builder.facts import frameworks
from builder.image import dockerfile, layers_lock
from builder.image.plan import BasePlan, plan
from builder.pipeline import records
from builder.prove import receipts

MADE_HERE: Final = (f"{project.BUILD}/*/{records.RECORD}", f"{project.BUILD}/*/{receipts.FILE}")
"""What `push` believes: it is of this machine, and comes with no commit."""


def lock(
    root: Path,
    names: Sequence[str],
    apt: Apt,
    upgrade: bool = False,
    on_event: OnEvent = ignore,
    now: Sequence[str] = (),
) -> Iterator[Lock]:
    """Choose and write the locks of these targets, one after the other.

    Refuses a lock that is known to fail on its GPU, before it is written.
    Raises InputError, OutsideError.
    """
    from builder.trust import rebuilders  # and with it what reads signatures

    for target in (targets.of(root, name) for name in names):
        stack = _stack(target, upgrade)
        require = partial(_require, root, stack)
        yield locking.lock(
            root, target.spec, stack, apt, upgrade, on_event, require, now, project.factory()
        )
    with contextlib.suppress(InputError):  # another target has no lock yet
        layers = layers_lock.of(root)
        layers.drop(bases(root).values())
        rebuilders.drop(layers)


def _stack(target: TargetFiles, upgrade: bool) -> Stack:
    """Return the versions to lock: those of a lock that still fits, else what works of the builds
    by CUDA that this machine's indexes list, where they do."""
    if not upgrade:
        with contextlib.suppress(InputError):
            if not target.checked()[1]:
                return target.stack
    framework, offered = frameworks.of(target.spec.framework), target.builds
    if framework.labelled:
        host = network.discover()
        listed_there = (listed.builds(name, host) for name in framework.distributions)
        offered = next(filter(None, listed_there), offered)
    return compatibility.resolve(target.spec, offered)


def _require(root: Path, stack: Stack, lock: Lock) -> None:
    """Refuse a lock that is known to fail on its GPU. Raises InputError."""
    from builder.prove import wheels

    compatibility.require_lock(stack.spec, lock)
    wheels.require(root, stack, lock)


def lock_new(root: Path, names: Sequence[str], apt: Apt, on_event: OnEvent = ignore) -> None:
    """Lock and render the targets that never were. Raises what `lock` raises."""
    new = [target.name for target in targets.all_of(root, names) if not target.is_locked]
    for _ in lock(root, new, apt, on_event=on_event) if new else ():
        pass
    dockerfile.write(root, dockerfile.texts(root, dockerfile.load_all(root, new)))


def bases(root: Path) -> dict[str, BasePlan]:
    """Return the bases of all targets, by the targets' names. Raises InputError."""
    return {
        target.name: plan(target.spec, target.stack, target.lock)
        for target in targets.all_of(root)
        if target.spec.has_own_base
    }


def stale(root: Path, names: Sequence[str]) -> tuple[Staleness, ...]:
    """Return every lock file of targets that does not belong to today's image.yaml and tables.

    Raises InputError.
    """
    return tuple(each for target in targets.all_of(root, names) for each in target.checked()[1])


def problems(root: Path) -> tuple[str, ...]:
    """Return where images/*/image.yaml, the locked wheels and the schema disagree.

    A sentence each. Raises InputError for a target that cannot be loaded or resolved at all.
    """
    from builder.prove import wheels

    problems: list[str] = []
    known = targets.all_of(root)
    for target in known:
        _ = target.stack
        with contextlib.suppress(InputError):  # a lock that is not there is told of by `stale`
            found = compatibility.known_bad_of_lock(target.spec, target.lock)
            problems += [f"{target.name}: {e}; {e.row.fix}" for e in found if e.row.fails]
    for name, gaps in wheels.check(root, [target.name for target in known]).items():
        problems += [f"{name}: {gap}" for gap in gaps]
    layers = layers_lock.of(root)
    with contextlib.suppress(InputError):  # a lock that is not there is told of by `stale`
        for name, base in bases(root).items():
            if missing := layers.missing(base):
                problems.append(
                    f"{layers_lock.FILE}: no line for {missing[0].name} of {name}: builder build "
                    f"{name} --base-only writes it"
                )
    for name in (git.ask(root, "ls-files", "--", *MADE_HERE) or "").splitlines():
        problems.append(f"{name}: what a build made on one machine, in git: git rm --cached {name}")
    schema = root / image_yaml.IMAGES / "schema.json"
    if schema.is_file() and schema.read_text() != schema_text():
        problems.append("images/schema.json: not today's schema; write it with builder schema")
    return tuple(problems)
