"""All that a page of an image says: from the last build of a target, or from a registry.

builder/pipeline/imagehtml.py writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, ignore
from builder.core.settings import Settings
from builder.lock import pins as locked
from builder.lock.model import Lock
from builder.pipeline import advised, bases, prepare, records, repository, tags, verify
from builder.prove import receipts
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry, manifests
from builder.trust import advisories, beside, bundle, policy, sbom, statements
from builder.trust.advisories import Judged, PackageVersion
from builder.trust.policy import Policy


@dataclass(frozen=True)
class PageLayer:
    """A layer. size: packed, in bytes; of what is downloaded for it where it was never packed here.
    packages: `name version` each. downloads: the bytes of a package's download, where they are
    known."""

    name: str
    size: int
    packages: tuple[str, ...]
    downloads: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PageAdvisory:
    """An advisory against a package. state: "open", or until when it is accepted and why."""

    package: str
    id: str
    state: str


@dataclass(frozen=True)
class ImagePage:
    """What the page says.

    facts: what the image is, by name. proof: the receipt that holds for it; problem: why none does.
    said: each statement beside it, and who signed it. not_asked: why no advisory was looked up,
    "" where they were. changed: package -> version before and after, since the image that
    the tag led to before; None where there was none.
    """

    title: str
    facts: Mapping[str, str]
    layers: tuple[PageLayer, ...]
    proof: Receipt | None
    problem: str
    said: tuple[tuple[str, str], ...]
    advisories: tuple[PageAdvisory, ...]
    not_asked: str
    changed: Mapping[str, tuple[str, str]] | None

    @property
    def size(self) -> int:
        """The bytes that a pull transfers."""
        return sum(layer.size for layer in self.layers)


def of_target(root: Path, target: str, address: str, today: date) -> ImagePage:
    """The page of a target's last build. Raises InputError where it was not built, or has changed
    since."""
    record = records.read(root, target)
    if record is None:
        raise InputError(f"{target}: not built yet", f"builder image {target}; or name an image")
    item = prepare.prepare(root, target)
    if item.plan.inputs_hash != record.inputs:
        raise InputError(f"{target}: its files changed since the build", f"builder image {target}")
    receipt = receipts.read(records.folder(root, target) / receipts.FILE)
    valid = receipts.valid_for(receipt, [record.digest or "", record.image_id], {})
    rows = bases.rows(root, target) if item.plan.base else _of_lock(item.lock)
    downloads = _downloads(item.lock)
    layers = [
        PageLayer(
            row["name"],
            row["packed_bytes"] or row["download_bytes"] or 0,
            tuple(row["packages"]),
            {one: downloads[one] for one in row["packages"] if one in downloads},
        )
        for row in rows
    ]
    known, not_asked = _asked(lambda: advised.check(root, [target], address, today).targets[target])
    return ImagePage(
        title=target,
        facts={
            "image": record.reference,
            "digest": record.digest or record.image_id,
            "accelerator": item.spec.accelerator,
            "TensorFlow": record.tensorflow,
            "device code taken out": record.prune,
            "made by": record.engine,
        },
        layers=tuple(layers),
        proof=receipt if valid else None,
        problem=valid.reason,
        said=(),
        advisories=known,
        not_asked=not_asked,
        changed=None,
    )


def of_reference(
    reference: str, settings: Settings, address: str, today: date, on_event: OnEvent = ignore
) -> ImagePage:
    """The page of an image in a registry. What nobody signed whom [trust] names is not believed.

    Raises OutsideError where there is no such image, CheckFailed for a list of images.
    """
    where = repository.resolve(reference, settings)
    trusted = policy.of(settings.trust)
    with repository.opened(where, on_event, f"read {where}") as there:
        image = there.manifest(where.repository, where.target)
        if image is None:
            raise OutsideError(f"{where}: there is no such image", "correct the reference")
        if image.is_index:
            raise CheckFailed(f"{where} is a list of images", "name one image by its digest")
        proof, problem, signer = _proven(there, where, trusted)
        layers = _layers(there, where, image)
        bill, said = _said(there, where, image, trusted)
        labels = there.labels(where.repository, image)
        before = _before(there, where, image)
        changed = _moved(_layers(there, where, before), layers) if before else None
    known, not_asked = _asked(lambda: _judged(bill, address, today))
    facts = {
        "image": str(where),
        "digest": image.digest,
        "accelerator": labels.get(verify.ACCELERATOR, "unknown"),
        "proven by": signer or ("whoever may write there" if proof else "nobody"),
    }
    return ImagePage(
        title=str(where),
        facts=facts | ({"it led before to": before.digest} if before else {}),
        layers=layers,
        proof=proof,
        problem=problem,
        said=said,
        advisories=known,
        not_asked=not_asked,
        changed=changed,
    )


def _downloads(lock: Lock) -> dict[str, int]:
    """`name version` of each locked package whose size is known -> its bytes."""
    wheels = {f"{pin.name} {pin.version}": pin.bytes or 0 for pin in lock.packages.values()}
    debian = {f"{one.name} {one.version}": one.bytes for _, one in sbom.debian_packages(lock)}
    return {name: size for name, size in (wheels | debian).items() if size}


def _of_lock(lock: Lock) -> list[dict[str, Any]]:
    """What the locks add to a published base, as rows of bases.rows."""
    return [
        {
            "name": name,
            "packed_bytes": None,
            "download_bytes": sum(pin.bytes or 0 for pin in pins),
            "packages": [f"{pin.name} {pin.version}" for pin in pins],
        }
        for name, pins in lock.wheels.items()
    ]


def _asked(judged: Callable[[], Judged]) -> tuple[tuple[PageAdvisory, ...], str]:
    """What is known, or why nothing could be looked up."""
    try:
        found = judged()
    except OutsideError as error:
        return (), error.message
    left = [
        PageAdvisory(str(known.package), id_, "open") for known in found.open for id_ in known.ids
    ]
    accepted = [
        PageAdvisory(str(known.package), id_, f"accepted until {by.until}: {by.reason}")
        for known, by in found.accepted
        for id_ in known.ids
    ]
    return (*left, *accepted), ""


def _proven(
    there: Registry, where: Reference, trusted: Policy | None
) -> tuple[Receipt | None, str, str]:
    """The receipt that holds, or why none does; and who signed it."""
    try:
        found, _ = verify.proven(there, where, verify.holds_of(), trusted)
    except CheckFailed as error:
        return None, error.message, ""
    return found.receipt, "", found.signer


def _layers(there: Registry, where: Reference, image: Manifest) -> tuple[PageLayer, ...]:
    """The layers, as the image's own history names them."""
    said = list(manifests.history(there.configuration(where.repository, image)))
    said += [""] * (len(image.layers) - len(said))
    found = []
    for text, layer in zip(said, image.layers, strict=False):
        ours = re.fullmatch(r"builder: (?P<name>[^:]*)(?:: (?P<packages>.*))?", text)
        name = ours["name"] if ours else text[:80] or "a layer"
        packages = (ours["packages"] or "").split(", ") if ours else []
        alone = [name] if re.fullmatch(r"[\w.+-]+ [\w.+!~:-]*\d[\w.+!~:-]*", name) else []
        found.append(PageLayer(name, layer.size, tuple(filter(None, packages)) or tuple(alone)))
    return tuple(found)


def _said(
    there: Registry, where: Reference, image: Manifest, trusted: Policy | None
) -> tuple[dict[str, Any] | None, tuple[tuple[str, str], ...]]:
    """The signed bill of materials; each statement beside the image, with who signed it."""
    if trusted is None:
        listed = there.referrers(where.repository, image.digest, bundle.MEDIA_TYPE)
        return None, tuple(
            (one.annotations.get(beside.KIND, "unknown"), "not checked: [trust] names no key")
            for one in listed
        )
    found = beside.find(there, where, image.digest, None, (*trusted.prove, *trusted.build))
    bills = [one.statement for one in found.signed if one.statement.kind == statements.BILL]
    said = [(one.statement.kind, one.signer.source) for one in found.signed]
    said += [("refused", problem) for problem in found.problems]
    return (dict(bills[0].predicate) if bills else None), tuple(said)


def _before(there: Registry, where: Reference, image: Manifest) -> Manifest | None:
    """The image that the tag led to before; None for a digest, or a tag without a history."""
    if where.target.startswith("sha256:"):
        return None
    past = [one.digest for one in tags.history(there, where)]
    older = past[past.index(image.digest) + 1 :] if image.digest in past else past
    return there.manifest(where.repository, older[0]) if older else None


def _moved(before: Sequence[PageLayer], after: Sequence[PageLayer]) -> dict[str, tuple[str, str]]:
    return locked.moved(_versions(before), _versions(after))


def _versions(layers: Sequence[PageLayer]) -> dict[str, str]:
    return dict(one.split(" ", 1) for layer in layers for one in layer.packages if " " in one)


def _judged(bill: Mapping[str, Any] | None, address: str, today: date) -> Judged:
    """What is known against a bill. Raises OutsideError where there is none to look up."""
    if bill is None:
        raise OutsideError("no signed bill of materials lies beside it, or [trust] names no key")
    packages = sorted(set(_packages(bill)))
    return advisories.judge(advisories.look_up(packages, address), (), {}, today)


def _packages(bill: Mapping[str, Any]) -> Iterator[PackageVersion]:
    for one in bill.get("components", ()):
        kind, _, asked = str(one.get("purl", "")).partition("?")
        if kind.startswith("pkg:pypi/"):
            yield PackageVersion("PyPI", sbom.normal(str(one["name"])), str(one["version"]))
        elif kind.startswith("pkg:deb/debian/"):
            qualifiers = parse_qs(asked)
            suite, source = (qualifiers.get(name, [""])[0] for name in ("distro", "upstream"))
            yield advisories.debian(suite, unquote(source), str(one["version"]))
