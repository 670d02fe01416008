"""Which targets a build has to make: those that the registry does not hold as they are here.

The comparison is by content, not by history. A target's plan has a hash of everything that decides
its image. The receipt beside the image in the registry names the hash that the image was made from.
So the comparison works in a shallow clone and in a staged folder without git. After a failed build,
the next one makes what is missing. A commit that only touches documents builds nothing.

With `since`, the comparison is with a commit, for projects without a registry. A file of a target's
folder touches that target; a file that no rule knows touches every target. A target counts as
changed where the answer is unknown: no receipt, no answer of the registry, no such commit.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder import registry
from builder.core import git
from builder.core.errors import CheckFailed, FactoryError, InputError
from builder.core.retry import Retry
from builder.pipeline import prepare, verify
from builder.spec import catalogue

if TYPE_CHECKING:
    from builder.core.settings import Settings

NOT_IN_IMAGES = ("docs/", "tests/", "bench/", "scripts/", "requirements/test.txt", ".ci/")
"""Folders and files that are in no image and that no build reads."""

_ENDINGS = (".md", ".txt", ".rst")


@dataclass(frozen=True)
class Change:
    """Whether a target has to be made, and why."""

    target: str
    changed: bool
    why: str


def changed(
    root: Path, settings: Settings, targets: Sequence[str], since: str | None = None
) -> tuple[Change, ...]:
    """A Change for each target (`all`: every one).

    since: compare with this commit instead of with the registry. Raises InputError for a target
    that the project does not have.
    """
    names = known_targets(root, targets)
    if since is not None:
        return _since(root, names, since)
    return tuple(_in_registry(root, settings, name) for name in names)


def known_targets(root: Path, names: Sequence[str]) -> tuple[str, ...]:
    """These targets, each once (`all`: every one). Raises InputError for one that is not there."""
    known = catalogue.targets(root)
    if "all" in names:
        return known
    found = catalogue.named(root, names)
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"write {near[0]}" if near else f"targets: {', '.join(known)}"
            raise InputError(f"there is no target {name!r}", fix)
    return found


# --- compared with the registry -------------------------------------------------------------------


def _in_registry(root: Path, settings: Settings, target: str) -> Change:
    if not settings.registry:
        return Change(target, True, "no registry to compare with")
    try:
        wanted = prepare.prepare(root, target).plan.inputs_hash
    except FactoryError as error:  # the build says what is wrong, and where
        return Change(target, True, f"cannot be prepared: {error.message}")
    where = registry.parse(settings.registry).tagged(target)
    try:
        with registry.Registry(where.host, Retry(attempts=2)) as there:
            if there.head(where.repository, target) is None:
                return Change(target, True, "not in the registry yet")
        receipt = verify.verify(str(where), settings).receipt
    except CheckFailed as error:
        return Change(target, True, f"not proven in the registry: {error.message}")
    except FactoryError as error:
        return Change(target, True, f"the registry cannot say: {error.message}")
    if receipt.inputs != wanted:
        return Change(target, True, "made from other files than these")
    return Change(target, False, f"the registry has it, proven {receipt.made_at}")


# --- compared with a commit -----------------------------------------------------------------------


def _since(root: Path, targets: Sequence[str], since: str) -> tuple[Change, ...]:
    files = _changed_files(root, since)
    if files is None:
        why = f"{since} is not in this clone"
        return tuple(Change(target, True, why) for target in targets)
    packages = {target: _trainer(root, target) for target in targets}
    found = []
    sources = catalogue.sources(root)
    for target in targets:
        folders = {target, sources[target].parent.name}
        touching = [file for file in files if touches(file, folders, packages[target])]
        why = f"{touching[0]} changed since {since}" if touching else f"untouched since {since}"
        found.append(Change(target, bool(touching), why))
    return tuple(found)


def touches(file: str, folders: Collection[str], trainer: str | None) -> bool:
    """Whether a change of this file can change a target's image.

    folders: the folders of images/ that hold its image.yaml and its locks. trainer: the folder of
    its training package; None if that is not known.
    """
    parts = PurePosixPath(file).parts
    if parts[0] == catalogue.IMAGES and len(parts) > 2:
        return parts[1] in folders
    if file.startswith(NOT_IN_IMAGES) or (len(parts) == 1 and file.endswith(_ENDINGS)):
        return False
    other = trainer and trainer != "trainer"
    if other and parts[0] == "trainer" and parts[1:2] != ("guard",):  # every image has the guard
        return file.startswith(f"{trainer}/")
    return True


def _trainer(root: Path, target: str) -> str | None:
    try:
        return catalogue.load(root, target).trainer.package
    except FactoryError:
        return None


def _changed_files(root: Path, since: str) -> tuple[str, ...] | None:
    """Files that differ from a commit, also those not committed. None if git cannot tell.

    In a shallow clone the commit itself is fetched, without its ancestors.
    """
    if since.startswith("-"):
        raise InputError(f"{since!r} is not a commit", "name one: HEAD~1, a tag, a branch")
    if not _is_known(root, since):
        git.ask(root, "fetch", "--quiet", "--depth=1", "origin", since, timeout=120)
        if not _is_known(root, since):
            return None
    differ = ("diff", "--name-only", "--no-renames", "-z", "--relative", since, "--", ".")
    listed = git.ask(root, *differ)
    new = git.ask(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    if listed is None or new is None:
        return None
    return tuple(sorted({name for name in (listed + new).split("\0") if name}))


def _is_known(root: Path, commit: str) -> bool:
    return git.ask(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is not None
