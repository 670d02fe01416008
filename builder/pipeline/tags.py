"""Where tags lead: their names, how they move, and their history, which leads back.

A tag that moves keeps a list of the digests it led to, in the registry itself: `<tag>-history`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from builder import registry
from builder.core import git
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.core.settings import Settings
from builder.pipeline import copying, repository
from builder.pipeline.verify import holds_of, of_any_version, proven
from builder.registry import Descriptor, Manifest, Reference, Registry
from builder.trust import policy
from builder.trust.provenance import GitSource

MOVED: Final = "training-image-factory.moved"
"""Annotation in a tag's history: when the tag came to this digest (UTC, ISO 8601)."""
HISTORY_LENGTH: Final = 50
"""The number of digests that a tag's history keeps."""


@dataclass(frozen=True)
class Promotion:
    """A tag and where it leads now; `previous` is the digest it led to before, None for none."""

    tag: str
    reference: str
    digest: str
    previous: str | None

    @property
    def moved(self) -> bool:
        """Whether the tag led elsewhere before."""
        return self.digest != self.previous


def tags_for(
    target: str, tensorflow: str, root: Path, extra: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The tags of a target's image: the tag of this version first, the target's own tag last.

    The version's is `<target>-<tensorflow>-<git commit>`: with `-dirty` where the tree differs from
    the commit, without a commit where there is no git.
    """
    version = "-".join(part for part in (target, tensorflow, _commit(root)) if part)
    return tuple(dict.fromkeys((version, *extra, target)))


def _commit(root: Path) -> str:
    """`1a2b3c4d5e6f`, `1a2b3c4d5e6f-dirty`, or "" outside of git."""
    head = git.ask(root, "rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return head.strip() if _clean(root) else f"{head.strip()}-dirty"


def source(root: Path) -> GitSource | None:
    """The commit that the project's files are of; None outside of git."""
    commit = git.ask(root, "rev-parse", "HEAD")
    if not commit:
        return None
    origin = git.ask(root, "config", "remote.origin.url") or ""
    return GitSource(origin.strip(), commit.strip(), _clean(root))


def _clean(root: Path) -> bool:
    return git.ask(root, "status", "--porcelain", "--", ".") == ""


def promote(
    reference: str,
    tag: str,
    settings: Settings,
    *,
    on_event: OnEvent = ignore,
) -> Promotion:
    """Move a tag to a proven image. Raises what `verify` raises.

    tag: of the same repository; or HOST/PATH:TAG of another one, which the image is copied to with
    all that lies beside it, and where it has to be proven, too.
    """
    where = repository.resolve(reference, settings)
    to, trusted = _destination(where, tag), policy.of(settings.trust)
    with repository.opened(where, on_event, f"promote {to}") as there:
        _, manifest = proven(there, where, holds_of(), trusted)
        if to.name == where.name:
            return move(there, to, manifest)
        with (
            step(f"copy {manifest.digest[:19]} to {to.name}", on_event) as copied,
            Registry(to.host, said=copied.log) as other,
        ):
            sent = copying.copy(there, where, other, to, manifest, copied)
            copied.detail = f"{sent / 1e6:.1f} MB"
            proven(other, to.at(manifest.digest), holds_of(), trusted)
            return move(other, to, manifest)


def _destination(where: Reference, tag: str) -> Reference:
    """The tag that a promotion moves. Raises InputError for a repository without a tag."""
    if not re.search("[/:@]", tag):
        return where.tagged(tag)
    to = registry.parse(tag)
    if to.digest or not to.tag:
        raise InputError(
            f"{tag}: a promotion moves a tag, and this names none", f"write {to.name}:TAG"
        )
    return to


def rollback(tag: str, settings: Settings, *, on_event: OnEvent = ignore) -> Promotion:
    """Move a tag to the image that it led to before; the next call goes one further back.

    The image must have its receipt. A receipt with older versions of the checks is enough, so that
    newer checks do not close the way back; for the same reason the proof may have any age.
    """
    where = repository.resolve(tag, settings)
    if where.digest or not where.tag:
        raise InputError(f"{tag!r} is not a tag, and only a tag goes back", "name the tag alone")
    trusted = policy.of(replace(settings.trust, age=None))
    with repository.opened(where, on_event, f"back {where}") as there:
        present = there.head(where.repository, where.tag)
        past = [one.digest for one in history(there, where)]
        if present in past:
            past = past[past.index(present) + 1 :]
        if present is None or not past:
            raise OutsideError(
                f"{where}: {'it never moved' if present else 'there is no such tag'},"
                " so there is no way back",
                f"name the image that it should lead to: builder promote DIGEST {where.tag}",
            )
        _, manifest = proven(there, where.at(past[0]), of_any_version, trusted)
        there.lead(where, manifest)
        return Promotion(where.tag, str(where.at(manifest.digest)), manifest.digest, present)


def move(there: Registry, to: Reference, manifest: Manifest) -> Promotion:
    """Make a tag lead to a manifest that the repository has, and read that back.

    The history of a tag that led elsewhere is written first. Interrupted after that, the tag still
    leads where it did, and its history leads back to the same place.
    """
    assert to.tag is not None
    before = there.head(to.repository, to.tag)
    if before != manifest.digest:
        if before is not None and not to.tag.endswith("-dirty"):
            _remember(there, to, before, manifest)
        there.lead(to, manifest)
    return Promotion(to.tag, str(to.at(manifest.digest)), manifest.digest, before)


def history_tag(tag: str) -> str:
    """The tag of a tag's history: an OCI index of the digests that it led to, the newest first."""
    return f"{tag[:120]}-history"


def history(there: Registry, tag: Reference) -> tuple[Descriptor, ...]:
    """The images that a tag led to, the newest first; empty for a tag that never moved."""
    found = there.manifest(tag.repository, history_tag(tag.target))
    return found.manifests if found else ()


def _remember(there: Registry, tag: Reference, before: str, new: Manifest) -> None:
    """Write the history for the moment when the tag leads to `new`.

    It works as a browser's does: after going back, the entries above the present one are dropped.
    """
    past = history(there, tag)
    place = next((number for number, one in enumerate(past) if one.digest == before), None)
    if place is not None:
        older = past[place:]
    else:  # a first push or another program set the tag, without a history
        present = there.manifest(tag.repository, before)
        older = ((present.descriptor,) if present else ()) + past
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = replace(new.descriptor, annotations={MOVED: now})
    kept = [entry, *(one for one in older if one.digest != new.digest)][:HISTORY_LENGTH]
    there.put_manifest(tag.repository, history_tag(tag.target), registry.index(tuple(kept)))
