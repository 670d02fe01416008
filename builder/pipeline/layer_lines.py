"""The lines of images/layers.lock: compared with other commits, and their layers made again.

A line says which bytes count for a key, so a changed one lets other bytes into every image. What a
line says never changes: another layer has another key. So a line that another commit has is
compared with it, and the layer of a new line is made again, from packages alone.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from builder.core import git
from builder.core.errors import CheckFailed, InputError
from builder.core.events import OnEvent
from builder.core.settings import Settings, TrustSettings
from builder.engine import Engine
from builder.image import base, layers_lock
from builder.image.content_store import ContentStore
from builder.image.layer import Layer
from builder.image.layers_lock import FILE, LayersLock
from builder.image.plan import Availability, BasePlan
from builder.pipeline import committed
from builder.trust import rebuilders

BRANCHES: Final = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""The branch that a change goes into, where nobody names it."""


def others(root: Path, against: str | None) -> tuple[str, ...]:
    """Return the commits that a project's lines are compared with; () outside of git.

    They are the tip of the branch that a change goes into, and where the change began; on that
    branch itself the commit before. against: the branch. Raises CheckFailed where it has nothing in
    common with this commit, as in a clone without its history.
    """
    head, before = _commit(root, "HEAD"), _commit(root, "HEAD~1")
    for name in (against,) if against else BRANCHES:
        tip = _commit(root, name)
        start = (git.ask(root, "merge-base", "HEAD", name) or "").strip()
        if tip and start:
            commits = (tip, start, before if start == head else "")
            return tuple(dict.fromkeys(filter(None, commits)))
    if against:
        raise CheckFailed(
            f"{FILE}: {against} and this commit have no commit in common here",
            "fetch the branch with its whole history (actions/checkout: fetch-depth: 0)",
        )
    return tuple(filter(None, (head, before)))


def problems(root: Path, trust: TrustSettings, against: str | None = None) -> Iterator[str]:
    """Yield what is wrong with the lines of a project, a sentence each.

    against: the branch that they are compared with. Raises what `others` raises, and InputError.
    """
    lock = layers_lock.of(root)
    for commit in others(root, against):
        before = _lines_in(root, commit).layers
        for key, layer in lock.layers.items():
            if (known := before.get(key, layer)) != layer:
                yield (
                    f"{FILE}: {lock.names[key]}: the key {key} has {layer.blob.digest}, and"
                    f" {known.blob.digest} in {commit[:12]}: what a line says never changes"
                )
    with contextlib.suppress(InputError):  # a lock that is not there: builder lock --check
        yield from _misnamed(root, lock)
    if unsigned := rebuilders.required(lock, trust).unsigned:
        first = min(lock.names[key] for key in unsigned)
        yield (
            f"{FILE}: {len(unsigned)} lines, such as that of {first}, are signed by fewer than"
            f" {trust.layers} rebuilders: builder rebuild --sign, on another machine"
        )


def _misnamed(root: Path, lock: LayersLock) -> Iterator[str]:
    """Yield the lines that no target needs, or that have the name of another layer."""
    names = defaultdict[str, set[str]](set)
    for plan in committed.bases(root).values():
        for planned in plan.layers:
            names[planned.key].add(planned.name)
    for key, name in lock.names.items():
        if key not in names:
            yield f"{FILE}: {name}: no target needs the key {key}: builder lock drops its line"
        elif name not in names[key]:
            yield f"{FILE}: the key {key} is of {min(names[key])}, not of {name}"


def new(root: Path, against: str | None = None) -> frozenset[str]:
    """Return the keys of a project's lines that the commits of `others` lack."""
    lock = layers_lock.of(root)
    known = [_lines_in(root, commit).layers for commit in others(root, against)]
    return frozenset(key for key in lock.layers if not all(key in lines for lines in known))


def make(
    root: Path,
    keys: Collection[str],
    settings: Settings,
    engine: Callable[[], Engine],
    on_event: OnEvent,
) -> tuple[Layer, ...]:
    """Make the layers of these keys again, and compare them with their lines; return them.

    Nothing comes from a cache or a registry but packages, which are compared with the locks. Raises
    CheckFailed for the first that differs, or that no target needs.
    """
    lock, made = layers_lock.of(root), dict[str, Layer]()
    with tempfile.TemporaryDirectory(prefix="rebuild-") as folder:
        store = ContentStore(Path(folder))
        for plan in committed.bases(root).values():
            if available := _missing(plan, keys - made.keys(), lock, store):
                base.assemble([plan], available, store, settings, lock, engine, on_event)
                made |= {key: lock.layers[key] for key in available.missing}
                for layer in made.values():  # all of them together are larger than many disks
                    if layer.key != plan.layers[0].key:
                        store.path(layer).unlink(missing_ok=True)
    if lacking := keys - made.keys():
        name = min(lock.names.get(key, key) for key in lacking)
        raise CheckFailed(f"{FILE}: {name}: no target needs it", "builder lock drops its line")
    return tuple(made[key] for key in sorted(keys))


def _missing(
    plan: BasePlan, keys: Collection[str], lock: LayersLock, store: ContentStore
) -> Availability | None:
    """Return what to make of a base for these keys; None for nothing.

    The environment is made above the rootfs, so that is made, too. The other layers count as there:
    nothing reads them.
    """
    planned = {layer.key: layer for layer in plan.layers}
    bottom, *_, top = planned
    wanted = planned.keys() & keys
    if top in wanted and store.find(bottom) is None:
        wanted.add(bottom)
    there = {key: lock.layers[key] for key in planned if key not in wanted and key in lock.layers}
    missing = {key: layer for key, layer in planned.items() if key not in there}
    return Availability(there, {}, missing, remake=frozenset(missing)) if wanted else None


def _commit(root: Path, name: str) -> str:
    words = ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return (git.ask(root, *words) or "").strip()


def _lines_in(root: Path, commit: str) -> LayersLock:
    """Return the lines of a commit; none where it has no such file."""
    text = git.ask(root, "show", f"{commit}:./{FILE}") or ""
    return layers_lock.parse(text, Path(f"{commit[:12]}:{FILE}"))
