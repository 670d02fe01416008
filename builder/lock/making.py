"""Making a lock: every version and hash of an image, chosen once and written to its folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import files, project, templates
from builder.core.errors import FactoryError, InputError
from builder.core.events import OnEvent, ignore, step
from builder.core.retry import Retry
from builder.lock import check, debs, model, requirements
from builder.lock.debs import Deb
from builder.lock.model import APT, APT_EXTRA, Chosen, Lock, OsRoot
from builder.spec import catalogue
from builder.spec.stack import OWN_PYTHON

if TYPE_CHECKING:
    from builder.spec.catalogue import ImageSpec
    from builder.spec.stack import Stack

PYTHON_PACKAGES = ("python3", "ca-certificates")
"""Debian packages of every own base: the interpreter, and the certificates for gs://."""

DIGEST_TIMEOUT = 3.0
"""Seconds to wait for each answer to the requests that resolve a digest."""


def lock(
    root: Path,
    spec: ImageSpec,
    stack: Stack,
    upgrade: bool = False,
    on_event: OnEvent = ignore,
    require: Callable[[Lock], None] = lambda _: None,
) -> Lock:
    """Lock a target and write its files.

    Versions that are locked and still fit are kept, unless `upgrade`. Where nothing is stale,
    nothing is resolved or fetched. A new target starts from its neighbours' versions, so that they
    share a base. The old files stay until every new version is known.

    require: is called with a lock of new versions before it is written; may raise InputError.
    Raises InputError for a requirement that contradicts TensorFlow or another requirement,
    OutsideError for an index or a mirror that cannot be reached.
    """
    # Targets share the OS root's file: one run at a time.
    with (
        step(f"lock {spec.name}", on_event) as locking,
        files.locked(root / project.BUILD / ".lock"),
    ):
        if kept := not upgrade and not any(s.versions for s in check.stale(root, spec, stack)):
            made = model.read(root, spec.name)
        else:
            made = _make(root, spec, stack, upgrade, locking.log)
            require(made)
        made = replace(made, templates=templates.checksum(root))
        model.write(root, made)
        locking.cached = kept
        locking.detail = "unchanged" if kept else f"{len(made.packages)} Python packages"
    return made


def _make(
    root: Path, spec: ImageSpec, stack: Stack, upgrade: bool, say: Callable[[str], None]
) -> Lock:
    from builder.core import network

    host = network.discover()
    held = _held(root, spec, upgrade)
    wheels, moved = requirements.wheels(spec, stack, host, held)
    for one in moved:
        say(f"{one.name} {one.before} -> {one.after}, for image.yaml's requirements")
    own = spec.has_own_base
    os_root = _root(root, spec, held, upgrade, say) if own else None
    return Lock(
        target=spec.name,
        configuration=model.configuration(spec),
        tensorflow=stack.tensorflow,
        python=stack.python,
        cuda=stack.cuda,
        cudnn=stack.cudnn,
        root=os_root,
        apt=_apt(spec, os_root, held) if os_root else {},
        wheels=wheels,
        moved=moved,
        chosen=tuple(Chosen(f.statement, f.value, f.source) for f in stack.facts),
        templates="",
    )


def _held(root: Path, spec: ImageSpec, upgrade: bool) -> tuple[Lock, ...]:
    """The locks whose versions are kept: the target's own, then its neighbours'."""
    found = []
    for name in (spec.name, *(n for n in catalogue.targets(root) if n != spec.name)):
        if not upgrade:
            with contextlib.suppress(InputError):
                found.append(model.read(root, name))
    return tuple(found)


def _root(
    root: Path, spec: ImageSpec, held: Iterable[Lock], upgrade: bool, say: Callable[[str], None]
) -> OsRoot:
    """The OS root of the image's Debian suite: that of another target, else a new one."""
    suite = OWN_PYTHON[spec.python]
    for lock in held:
        if lock.root and lock.root.suite == suite:
            return lock.root
    reference = f"debian:{suite}-slim"
    digest = resolve_digest(reference)
    today = datetime.now(UTC).date().isoformat()
    open_ = "" if digest else f"no reachable registry could resolve {reference} on {today}"
    if open_:
        say(f"{open_}: the root is made from Debian's packages")
    path = model.os_lock(root, suite)
    if path.is_file() and not upgrade:
        packages = debs.parse(path.read_text(encoding="utf-8"))
    else:
        from builder.lock import osroot
        from builder.lock.debian import Packages

        packages = Packages(suite).records(osroot.resolve(suite))
    return OsRoot(suite, reference, digest, open_, packages)


def _apt(spec: ImageSpec, os_root: OsRoot, held: Iterable[Lock]) -> dict[str, tuple[Deb, ...]]:
    """The Debian packages of each apt layer, by its file. Versions that are locked are kept."""
    from builder.lock.debian import Packages

    known = {
        deb.name: deb
        for lock in reversed([one for one in held if one.root == os_root])
        for packages in lock.apt.values()
        for deb in packages
    }
    debian = Packages(os_root.suite)
    there = debs.versions(os_root.packages)
    found = {}
    for file, names in ((APT, PYTHON_PACKAGES), (APT_EXTRA, spec.apt)):
        closure = debian.closure(names, installed=there) if names else {}
        new = {name: version for name, version in closure.items() if there.get(name) != version}
        there |= new
        if new:
            records = debian.records({n: v for n, v in new.items() if n not in known})
            found[file] = (*records, *(known[name] for name in new if name in known))
    return found


@cache
def resolve_digest(reference: str) -> str | None:
    """The digest of a public image, asked of its registry without a login.

    None where the registry cannot be reached or does not have the image. An answer is waited for
    DIGEST_TIMEOUT seconds.
    """
    from builder import registry

    where = registry.parse(reference)
    client = registry.Registry(
        where.host, Retry(attempts=1), anonymous=True, timeout=DIGEST_TIMEOUT
    )
    try:
        with client:
            digest = client.head(where.repository, where.target)
    except FactoryError:
        return None
    return digest if re.fullmatch(r"sha256:[0-9a-f]{64}", digest or "") else None
