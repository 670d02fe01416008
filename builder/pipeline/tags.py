"""Tags of images: their names, how they move, and the way back.

A tag that moves leaves `<tag>-previous` at the image that it led to before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core import git
from builder.core.errors import InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.pipeline import repository
from builder.pipeline.verify import judge_of, of_any_version, proven
from builder.registry import Manifest, Reference, Registry
from builder.trust import policy, provenance


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


def tags_for(target: str, release: str, root: Path, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tags of a target's image: that of this version first, the target's own last.

    The version's is `<target>-<release>-<git commit>`: with `-dirty` where the tree differs from
    the commit, without a commit where there is no git.
    """
    commit = (git.ask(root, "rev-parse", "--short=12", "HEAD") or "").strip()
    if commit and not provenance.is_clean(root):
        commit += "-dirty"
    version = "-".join(part for part in (target, release, commit) if part)
    return tuple(dict.fromkeys((version, *extra, target)))


def promote(
    reference: str, tag: str, settings: Settings, *, on_event: OnEvent = ignore
) -> Promotion:
    """Move a tag of an image's repository to this image, if it is proven.

    Raises what `verify` raises.
    """
    image = repository.resolve(reference, settings)
    to, trusted = image.tagged(tag), policy.of(settings.trust)
    with repository.opened(image, on_event, f"promote {to}") as client:
        _, manifest = proven(client, image, judge_of(), trusted)
        return move(client, to, manifest)


def rollback(tag: str, settings: Settings, *, on_event: OnEvent = ignore) -> Promotion:
    """Move a tag to the image that it led to before; the next call undoes that.

    The image must have its receipt. A receipt with older versions of the checks is enough, so that
    newer checks do not close the way back.
    """
    to = repository.resolve(tag, settings)
    if to.digest or not to.tag:
        raise InputError(f"{tag!r} is not a tag, and only a tag goes back", "name the tag alone")
    trusted = policy.of(settings.trust)
    with repository.opened(to, on_event, f"back {to}") as client:
        previous = client.head(to.repository, previous_tag(to.tag))
        if previous in (None, client.head(to.repository, to.tag)):
            raise OutsideError(
                f"{to}: nothing says where it led before",
                f"name the image that it should lead to: builder promote DIGEST {to.tag}",
            )
        _, manifest = proven(client, to.at(str(previous)), of_any_version, trusted)
        return move(client, to, manifest)


def move(client: Registry, to: Reference, manifest: Manifest) -> Promotion:
    """Make a tag lead to a manifest that the repository has, and read that back.

    `<tag>-previous` is written first: interrupted after that, the tag still leads where it did.
    """
    assert to.tag is not None
    before = client.head(to.repository, to.tag)
    if before != manifest.digest:
        left = client.manifest(to.repository, before) if before else None
        if left and not to.tag.endswith("-dirty"):
            client.lead(to.tagged(previous_tag(to.tag)), left)
        client.lead(to, manifest)
    return Promotion(to.tag, str(to.at(manifest.digest)), manifest.digest, before)


def previous_tag(tag: str) -> str:
    """Return the tag of the image that a tag led to before it moved."""
    return f"{tag[:119]}-previous"
