"""Tags of images: their names, how they move, and the way back.

A tag that moves leaves `<tag>-previous` at the image that it led to before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core import git
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.pipeline import asked, repository
from builder.pipeline.verify import of_any_version, proven
from builder.registry import Manifest, Reference, Registry
from builder.trust import policy, provenance, pushed
from builder.trust.policy import Policy


@dataclass(frozen=True)
class Promotion:
    """A tag and where it leads now; `previous` is the digest it led to before, None for none."""

    tag: str
    reference: str
    digest: str
    previous: str | None

    @property
    def moved(self) -> bool:
        return self.digest != self.previous


def tags_for(target: str, release: str, root: Path, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tags of a target's image: that of this version first, the target's own last.

    The version's is `<target>-<release>-<git commit>`: with `-dirty` where the tree differs from
    the commit, without a commit where there is no git.
    """
    commit = (git.ask(root, "rev-parse", "--short=12", "HEAD") or "").strip()
    if commit and not provenance.is_clean(root):
        commit += "-dirty"
    version = "-".join(part for part in (target, release.replace("+", "-"), commit) if part)
    return tuple(dict.fromkeys((version, *extra, target)))


def promote(
    reference: str,
    tag: str,
    settings: Settings,
    root: Path | None = None,
    *,
    on_event: OnEvent = ignore,
) -> Promotion:
    """Move a tag of an image's repository to this image, if it is proven.

    root: the project, whose images/pushed.lock gets the tag. Raises what `verify` raises, and
    CheckFailed for a tag of another target.
    """
    image = asked.of(root, reference, settings)
    to = image.named.tagged(tag)
    with repository.opened(to, on_event, f"promote {to}") as client:
        image.require(client)
        verified, manifest = proven(client, image, None, policy.of(settings.trust))
        if problem := asked.of(root, str(to), settings).problem(verified.receipt):
            raise CheckFailed(
                f"{verified.reference} cannot become {to}: {problem}", "name another tag"
            )
        return _led(client, to, manifest, root)


def rollback(
    tag: str, settings: Settings, root: Path | None = None, *, on_event: OnEvent = ignore
) -> Promotion:
    """Move a tag to the image that it led to before; the next call undoes that.

    The image is the one that images/pushed.lock has, else that of `<tag>-previous`. It must have
    its receipt. A receipt with older versions of the checks is enough, so that newer checks do not
    close the way back; nor does its age, where git has the image.
    """
    to = repository.resolve(tag, settings)
    if to.digest or not to.tag:
        raise InputError(f"{tag!r} is not a tag, and only a tag goes back", "name the tag alone")
    wanted, rules = asked.of(root, str(to), settings), policy.of(settings.trust)
    rules = Policy(rules.trusted, rules.max_age)
    with repository.opened(to, on_event, f"back {to}") as client:
        before = pushed.of(root).get(str(to), ()) if root else ()
        if before:
            rules = Policy(rules.trusted)
            now, previous = before[0], next(iter(before[1:]), None)
        else:
            now = client.head(to.repository, to.tag) or ""
            previous = client.head(to.repository, previous_tag(to.tag))
        if previous in (None, now):
            raise OutsideError(
                f"{to}: nothing says where it led before",
                f"name the image that it should lead to: builder promote DIGEST {to.tag}",
            )
        image = wanted.at(str(previous))
        return _led(client, to, proven(client, image, of_any_version, rules)[1], root)


def _led(client: Registry, to: Reference, manifest: Manifest, root: Path | None) -> Promotion:
    """Move a tag, and write that down."""
    promotion = move(client, to, manifest)
    if root is not None:
        pushed.record(root, to, manifest.digest)
    return promotion


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
    return f"{tag[:119]}-previous"
