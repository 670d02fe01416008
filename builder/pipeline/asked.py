"""What a reference asks for: of which target the image has to be, and which one git says it is.

The receipt of another target, or of another accelerator, proves nothing of the image under a tag.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from builder.config import image_yaml
from builder.core.errors import CheckFailed, OutsideError
from builder.core.settings import Settings
from builder.facts import accelerators
from builder.pipeline import repository
from builder.prove import suites
from builder.prove.receipts import Receipt
from builder.prove.suite import Suite
from builder.registry import Manifest, Reference, Registry
from builder.trust import pushed


@dataclass(frozen=True)
class Asked:
    """The image that a reference asks for."""

    named: Reference
    """What a person wrote, in full."""
    digests: tuple[str, ...] = ()
    """Of images/pushed.lock: the image is one of these; () where git has none for it."""
    locked: bool = False
    """The tag stands there itself, and leads to the first."""
    target: str = ""
    accelerator: str = ""
    suite: Suite | None = None
    """`target`, `accelerator` and `suite`: of the project's target that the tag names; "" and None
    for none."""

    @property
    def reference(self) -> Reference:
        """What to look for: by digest where git has it."""
        return self.named.at(self.digests[0]) if self.locked else self.named

    def problem(self, receipt: Receipt) -> str:
        """Return why a receipt is of something else than what was asked for; "" where it is not."""
        if self.target and not self._is_of(receipt.target):
            return f"its receipt is for the target {receipt.target!r}, not for {self.target}"
        if self.accelerator and receipt.accelerator != self.accelerator:
            return f"its receipt is for {receipt.accelerator}, {self.target} for {self.accelerator}"
        return ""

    def suite_of(self, receipt: Receipt) -> Suite | None:
        """Return the suite that the target asks for; None where the image's label decides."""
        return self.suite if receipt.target == self.target else None

    def _is_of(self, target: str) -> bool:
        """Return whether an image of this target may have the tag: also that of a program that was
        put onto the target, which has a longer name (builder/pipeline/package.py)."""
        own = target.startswith(f"{self.target}-") and _is_below(self.named.tag or "", target)
        return target == self.target or own

    def manifest(self, client: Registry) -> Manifest:
        """Return the image's manifest.

        Raises OutsideError for none, CheckFailed for an index, or an image that git does not name.
        """
        image = self.reference
        manifest = client.manifest(image.repository, image.target)
        if manifest is None:
            raise OutsideError(
                f"{image}: {image.host} has no such image",
                "correct the reference, or push it first",
            )
        if manifest.is_index:
            raise CheckFailed(
                f"{image} is a list of images ({manifest.media_type}), and only one can be"
                " verified",
                "name one image by its digest",
            )
        self.check(manifest.digest)
        return manifest

    def check(self, digest: str) -> None:
        """Raise CheckFailed for an image that git does not name."""
        if self.digests and digest not in self.digests:
            raise self._moved(digest)

    def at(self, digest: str) -> Asked:
        return replace(self, digests=(digest,), locked=True)

    def moved(self, client: Registry) -> str:
        """Return where the registry leads a tag that git leads elsewhere; "" for nowhere."""
        if not self.locked:
            return ""
        there = client.head(self.named.repository, self.named.target)
        return "" if there == self.digests[0] else there or "nothing"

    def require(self, client: Registry) -> None:
        """Raise CheckFailed where the registry's tag does not lead where git says."""
        if there := self.moved(client):
            raise self._moved(there)

    def _moved(self, there: str) -> CheckFailed:
        says = f"says {self.digests[0]}" if self.locked else "knows no such image"
        return CheckFailed(
            f"{self.named} leads to {there}, {pushed.FILE} {says}",
            f"look who moved it; builder promote DIGEST {self.named.tag} leads it to the right one,"
            " and writes that into the file, which you commit",
        )


def of(root: Path | None, reference: str, settings: Settings) -> Asked:
    """Return what a reference asks for. root: the project, None outside of one.

    Raises InputError for what is no reference, or a target that cannot be read.
    """
    image = repository.resolve(reference, settings)
    if root is None or image.digest:
        return Asked(image)
    image = image.tagged(image.tag or "latest")
    assert image.tag
    tags, prefix = pushed.of(root), f"{image.name}:"
    if digests := tags.get(str(image)):
        locked = True
    else:  # the tag of a version: one of the images that its target had
        known = {name.removeprefix(prefix) for name in tags if name.startswith(prefix)}
        owner = longest(image.tag, {*known, *image_yaml.targets(root)})
        locked, digests = False, tags.get(f"{prefix}{owner}", ())
    asked = Asked(image, digests, locked)
    target = longest(image.tag, image_yaml.targets(root))
    if not target or not settings.registry or image.name != repository.of(settings).name:
        return asked
    spec = image_yaml.load(root, target)
    accelerator = accelerators.find(spec.accelerator).name
    return replace(asked, target=target, accelerator=accelerator, suite=suites.of_spec(spec))


def longest(tag: str, names: Iterable[str]) -> str:
    """Return the longest of these names that a tag begins with, as a whole; "" for none."""
    return max((name for name in names if _is_below(tag, name)), key=len, default="")


def _is_below(tag: str, name: str) -> bool:
    return tag == name or tag.startswith(f"{name}-")
