"""From an engine to a registry: by digest, with its receipt, and only then under its tags.

The order is what makes an interrupted push harmless. The base goes first, so that other engines can
build on it; then the image, under a tag that names its content and that nobody waits for; its
digest is read back and compared; the receipt is put beside it; last of all the tags move. A tag
that moves keeps a list of where it stood before, in the registry itself (`<tag>-history`), which is
the way back.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from builder import registry
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, step
from builder.core.files import cache_home, locked
from builder.core.retry import Passing, Retry
from builder.core.settings import Settings
from builder.prove import receipts
from builder.prove.receipts import Receipt, Validity
from builder.prove.suite import Suite
from builder.registry import Descriptor, Manifest, Reference, Registry
from builder.tensorflow import suite as suites

if TYPE_CHECKING:
    import docker

RECEIPT_TYPE: Final = "application/vnd.training-image-factory.receipt.v1+json"
MOVED: Final = "training-image-factory.moved"
"""Annotation in a tag's history: when the tag came to this digest (UTC, ISO 8601)."""
ACCELERATOR: Final = "training-image-factory.accelerator"
"""The label of an image that names what it was made for."""
HISTORY_LENGTH: Final = 50
"""How many digests a tag's history keeps."""

ENGINE_RETRY: Final = Retry(attempts=4, first=1.0)
"""The engine's own push tries each layer several times before it gives up."""

T = TypeVar("T")
Holds = Callable[[Receipt, Sequence[str], Mapping[str, str]], Validity]
"""Whether a receipt proves the image of these names (digest, id) and with these labels."""


class Built(Protocol):
    """What is pushed: an image on an engine.

    digest: of its manifest, None where the engine's store makes one only at the push; image_id:
    what the engine calls Id; labels: of its configuration.
    """

    @property
    def reference(self) -> str: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def image_id(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class Pusher(Protocol):
    """The part of an engine that a push needs."""

    @property
    def client(self) -> docker.DockerClient: ...


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, read back from there.

    reference: repository@digest; tags: all that lead to it now; moved: those that did not before;
    receipt: digest of the receipt's manifest; base: the base's reference, None for none of our own;
    sent: bytes that went over the wire.
    """

    reference: str
    repository: str
    digest: str
    image_id: str
    tags: tuple[str, ...]
    moved: tuple[str, ...]
    receipt: str
    base: str | None
    sent: int
    seconds: float

    @property
    def unchanged(self) -> bool:
        """Whether the registry held all of it already."""
        return not self.moved and not self.sent


@dataclass(frozen=True)
class Verification:
    """An image in a registry that its receipt proves. `image_id`: digest of its config."""

    reference: str
    digest: str
    image_id: str
    labels: Mapping[str, str]
    receipt: Receipt
    receipt_digest: str


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


# Push -------------------------------------------------------------------------------------------


def push(
    engine: Pusher,
    image: Built,
    receipt: Receipt | None,
    settings: Settings,
    tags: tuple[str, ...],
    *,
    base: Built | None = None,
    retry: Retry = ENGINE_RETRY,
    on_event: OnEvent = ignore,
) -> PushedImage:
    """Push a proven image and move `tags` to it; does nothing where the registry has it all.

    Raises CheckFailed (and moves no tag) without a receipt that holds for this very image, or where
    the registry has other bytes than the engine; OutsideError for what the registry refuses.
    """
    proof = _proof(receipt, image)
    where = _repository(settings)
    for tag in tags:
        where.tagged(tag)  # raises for what is no tag, before anything is sent
    with step(f"push {where.name}", on_event) as pushing:
        with Registry(where.host, said=pushing.log) as there:
            send = _Sender(engine, there, where, retry, pushing)
            if base is not None:
                send.base(base)
            manifest = send.image(image)
            receipt_digest = _attach(there, where, manifest, proof)
            moved = tuple(tag for tag in tags if _move(there, where.tagged(tag), manifest).moved)
        result = PushedImage(
            reference=str(where.at(manifest.digest)),
            repository=where.name,
            digest=manifest.digest,
            image_id=_config(manifest).digest,
            tags=tags,
            moved=moved,
            receipt=receipt_digest,
            base=str(where.tagged(_tag_of(base))) if base is not None else None,
            sent=send.sent,
            seconds=pushing.seconds,
        )
        pushing.cached = result.unchanged
        pushing.detail = "already there" if result.unchanged else f"{manifest.digest[:19]}"
    return result


def tags_for(
    target: str, tensorflow: str, root: Path, extra: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The tags of a target's image: its own version's first, the one that people follow last.

    `<target>-<tensorflow>-<git commit>`, with `-dirty` where the tree differs from the commit and
    without a commit where there is no git.
    """
    version = "-".join(part for part in (target, tensorflow, _commit(root)) if part)
    return tuple(dict.fromkeys((version, *extra, target)))


def _commit(root: Path) -> str:
    """`1a2b3c4d5e6f`, `1a2b3c4d5e6f-dirty`, or "" outside of git."""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    changed = _git(root, "status", "--porcelain", "--", ".")
    return head if changed == "" else f"{head}-dirty"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def _proof(receipt: Receipt | None, image: Built) -> Receipt:
    """The receipt, if it holds for this very image. Raises CheckFailed."""
    target = receipt.target if receipt else "TARGET"
    held = suites.of_image(image.labels).holds(receipt, image.digest or image.image_id)
    if receipt is None or not held:
        raise CheckFailed(
            f"{image.reference} is not proven: {held.reason}", f"run: builder smoke {target}"
        )
    return receipt


def _repository(settings: Settings) -> Reference:
    if not settings.registry:
        raise InputError(
            "no registry is set: there is nowhere to push to",
            'use --registry HOST/PATH, or write registry = "HOST/PATH" in builder.toml',
        )
    return registry.parse(settings.registry)


def _tag_of(image: Built) -> str:
    return registry.parse(image.reference).target


def _config(manifest: Manifest) -> Descriptor:
    return Descriptor.read(manifest.content.get("config") or {})


@dataclass
class _Sender:
    """Brings images from the engine to one repository, unless they lie there already."""

    engine: Pusher
    there: Registry
    where: Reference
    retry: Retry
    step: RunningStep
    sent: int = 0

    def base(self, base: Built) -> None:
        """The base under its own tag, which names all that it was made from."""
        tag = _tag_of(base)
        self._bring(base, tag, lambda: self.there.head(self.where.repository, tag))

    def image(self, image: Built) -> Manifest:
        """The image's manifest as the registry has it. Raises CheckFailed where it is another."""
        tag = f"image-{(image.digest or image.image_id).removeprefix('sha256:')[:16]}"
        look = functools.partial(self.there.manifest, self.where.repository)
        found = self._bring(image, tag, lambda: look(image.digest or tag)) or look(tag)
        if found is None or not _is(found, image):
            raise CheckFailed(
                f"{self.where.tagged(tag)}: the registry has"
                f" {found.digest if found else 'nothing'}, the engine has"
                f" {image.digest or image.image_id}; no tag was moved",
                "push again; if it stays so, look into the registry's storage",
            )
        return found

    def _bring(self, image: Built, tag: str, look: Callable[[], T | None]) -> T | None:
        """What lies there already (`look`), else None after a push of the image under `tag`.

        Two pushes of one image from this machine: the second waits, and finds it there.
        """
        if found := look():
            return found
        name = hashlib.sha256(f"{self.where.name}:{tag}".encode()).hexdigest()[:16]
        with locked(cache_home() / "locks" / f"push-{name}"):
            if found := look():
                return found
            self.there.check_write(self.where.repository)
            self.retry.run(lambda: self._once(image, tag), self.there.said)
        return None

    def _once(self, image: Built, tag: str) -> None:
        """One push by the engine; its failures are read from the stream (docker-py#3277)."""
        import requests
        from docker.errors import APIError, ImageNotFound

        api = self.engine.client.api
        target = self.where.tagged(tag)
        known = self.there.credentials
        amounts: dict[str, tuple[int, int]] = {}
        pushed: set[str] = set()
        own = str(registry.parse(image.reference)) == str(target)
        try:
            if not own:
                api.tag(image.digest or image.image_id, target.name, tag)
            for message in api.push(
                target.name,
                tag=tag,
                stream=True,
                decode=True,
                auth_config=known.for_engine() if known else {},
            ):
                self._read(message, amounts)
                if message.get("status") == "Pushed":
                    pushed.add(str(message.get("id")))
        except ImageNotFound:
            raise OutsideError(
                f"the engine has no image {image.reference} ({image.image_id})", "build it again"
            ) from None
        except APIError as error:
            raise self._failed(str(error.explanation or error)) from None
        except requests.RequestException as error:
            raise Passing(f"the engine broke off the push of {target}: {error}") from None
        finally:
            if not own:
                with contextlib.suppress(APIError, requests.RequestException):
                    api.remove_image(str(target), noprune=True)
        self.sent += self._weight(pushed, amounts, tag)

    def _weight(self, pushed: set[str], amounts: Mapping[str, tuple[int, int]], tag: str) -> int:
        """Bytes that were pushed: the engine tells of large layers, the registry of all."""
        there = self.there.manifest(self.where.repository, tag)
        sizes = {
            layer["digest"].removeprefix("sha256:")[:12]: int(layer["size"])
            for layer in (there.content.get("layers") or [] if there else [])
        }
        return sum(amounts[name][1] if name in amounts else sizes.get(name, 0) for name in pushed)

    def _read(self, message: Mapping[str, Any], amounts: dict[str, tuple[int, int]]) -> None:
        if error := message.get("error") or message.get("errorDetail"):
            text = error.get("message", "") if isinstance(error, Mapping) else error
            raise self._failed(str(text))
        layer, progress = message.get("id"), message.get("progressDetail") or {}
        if layer and message.get("status") == "Pushing" and progress.get("total"):
            amounts[layer] = (int(progress.get("current", 0)), int(progress["total"]))
            current, total = (sum(column) for column in zip(*amounts.values(), strict=True))
            self.step.progress(min(current, total), total)

    def _failed(self, text: str) -> Exception:
        """What the engine said went wrong: to be tried again unless the words are final."""
        line = " ".join(text.split())[:300]
        words = re.sub(r"https?://\S+", "", line)  # an address may contain anything
        if re.search(_FINAL, words, re.IGNORECASE):
            status = 401 if re.search("auth", words, re.IGNORECASE) else 0
            return registry.refused(self.where, status, line, "write", self.there.credentials)
        return Passing(f"{self.where.host}: the push broke off: {line}")


_FINAL: Final = (
    r"denied|unauthorized|authentication required|no basic auth|forbidden|insufficient.scope"
    r"|quota|immutab|name unknown|x509|certificate|HTTP response to HTTPS|: 4(?:05|13)\b"
)
"""What an engine says where waiting changes nothing; it gives no status, so its words are read."""


def _is(manifest: Manifest, image: Built) -> bool:
    """Whether this manifest is the image: by its digest, else (unknown before) by its config's."""
    if image.digest:
        return manifest.digest == image.digest
    return _config(manifest).digest == image.image_id


# Receipt and tags -------------------------------------------------------------------------------


def _attach(there: Registry, where: Reference, image: Manifest, receipt: Receipt) -> str:
    """Put the receipt beside the image, unless it lies there; the digest of its manifest."""
    data = receipts.dump(receipt)
    made = registry.artifact(
        RECEIPT_TYPE,
        data,
        RECEIPT_TYPE,
        image.descriptor,
        {
            "org.opencontainers.image.created": receipt.made_at,
            "training-image-factory.target": receipt.target,
        },
    )
    listed = there.referrers(where.repository, image.digest, RECEIPT_TYPE)
    if all(one.digest != made.digest for one in listed):
        there.put_blob(where.repository, registry.EMPTY)
        there.put_blob(where.repository, data)
        there.attach(where.repository, made)
    return made.digest


def _move(there: Registry, to: Reference, manifest: Manifest) -> Promotion:
    """Make a tag lead to a manifest that lies in the repository, and read that back.

    Where it led elsewhere, its history is written first: torn in between, the tag still stands
    where it stood, and the way back is the same.
    """
    assert to.tag is not None
    before = there.head(to.repository, to.tag)
    if before != manifest.digest:
        if before is not None and not to.tag.endswith("-dirty"):
            _remember(there, to, before, manifest)
        there.put_manifest(to.repository, to.tag, manifest)
        after = there.head(to.repository, to.tag)
        if after != manifest.digest:
            raise CheckFailed(
                f"{to}: moved to {manifest.digest}, but the registry says {after}",
                "someone else moved it at the same time: look who, and run this again",
            )
    return Promotion(to.tag, str(to.at(manifest.digest)), manifest.digest, before)


def history_tag(tag: str) -> str:
    """Where a tag's history lies: an OCI index of the digests it led to, the newest first."""
    return f"{tag[:120]}-history"


def history(there: Registry, tag: Reference) -> tuple[Descriptor, ...]:
    """Where a tag led, the newest first; empty for one that never moved."""
    found = there.manifest(tag.repository, history_tag(tag.target))
    return tuple(Descriptor.read(one) for one in (found.content["manifests"] if found else ()))


def _remember(there: Registry, tag: Reference, before: str, new: Manifest) -> None:
    """Write the history as it is once the tag leads to `new`.

    As a browser does: what lies above the present place was gone back from, and falls away.
    """
    past = history(there, tag)
    place = next((number for number, one in enumerate(past) if one.digest == before), None)
    if place is not None:
        older = past[place:]
    else:  # the tag was set without a history: by a first push, or with another program
        present = there.manifest(tag.repository, before)
        older = ((present.descriptor,) if present else ()) + past
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = replace(new.descriptor, annotations={MOVED: now})
    kept = [entry, *(one for one in older if one.digest != new.digest)][:HISTORY_LENGTH]
    there.put_manifest(tag.repository, history_tag(tag.target), registry.index(tuple(kept)))


# Verify, promote, and back ----------------------------------------------------------------------


def verify(
    reference: str,
    settings: Settings,
    *,
    suite: Suite | None = None,
    on_event: OnEvent = ignore,
) -> Verification:
    """Check an image in a registry against the receipt that lies beside it.

    reference: a whole one, or a tag or digest of the project's own repository. suite: what the
    receipt has to be of; by default the suite that the image's own label names. Raises CheckFailed
    where the image is not proven, OutsideError where it is not there.
    """
    where = _resolve(reference, settings)
    with _open(where, on_event, f"verify {where}") as there:
        return _verify(there, where, _holds_of(suite))[0]


def promote(
    reference: str,
    tag: str,
    settings: Settings,
    *,
    on_event: OnEvent = ignore,
) -> Promotion:
    """Move a tag of the same repository to a proven image. Raises what `verify` raises."""
    where = _resolve(reference, settings)
    to = where.tagged(tag)
    with _open(where, on_event, f"promote {to}") as there:
        _, manifest = _verify(there, where, _holds_of())
        return _move(there, to, manifest)


def rollback(tag: str, settings: Settings, *, on_event: OnEvent = ignore) -> Promotion:
    """Move a tag back to where it led before its last move; again, and it goes one further back.

    The image must have its receipt, but one of an older factory is enough: the way back stays open.
    """
    where = _resolve(tag, settings)
    if where.digest or not where.tag:
        raise InputError(f"{tag!r} is no tag: only a tag goes back", "name the tag alone")
    with _open(where, on_event, f"back {where}") as there:
        present = there.head(where.repository, where.tag)
        past = [one.digest for one in history(there, where)]
        if present in past:
            past = past[past.index(present) + 1 :]
        if present is None or not past:
            raise OutsideError(
                f"{where}: {'it never moved' if present else 'there is no such tag'},"
                " so there is no way back",
                f"name the image that it shall lead to: builder promote DIGEST {where.tag}",
            )
        _, manifest = _verify(there, where.at(past[0]), _of_any_version)
        there.put_manifest(where.repository, where.tag, manifest)
        return Promotion(where.tag, str(where.at(manifest.digest)), manifest.digest, present)


def _resolve(reference: str, settings: Settings) -> Reference:
    """A whole reference, or a tag or digest of the project's own repository."""
    if not re.search("[/:]", reference) and settings.registry:
        return _repository(settings).tagged(reference)
    if reference.startswith("sha256:"):
        return registry.parse(f"{_repository(settings)}@{reference}")
    return registry.parse(reference)


@contextlib.contextmanager
def _open(where: Reference, on_event: OnEvent, name: str) -> Iterator[Registry]:
    with step(name, on_event) as asking, Registry(where.host, said=asking.log) as there:
        yield there


def _holds_of(suite: Suite | None = None) -> Holds:
    """By this suite, else by the one that the image itself needs."""

    def holds(receipt: Receipt, names: Sequence[str], labels: Mapping[str, str]) -> Validity:
        return (suite or suites.of_image(labels)).holds(receipt, names)

    return holds


def _of_any_version(receipt: Receipt, names: Sequence[str], _: Mapping[str, str]) -> Validity:
    """By the checks that the receipt holds, of whatever version."""
    return receipts.valid_for(receipt, names, {})


def _verify(there: Registry, where: Reference, holds: Holds) -> tuple[Verification, Manifest]:
    image = there.manifest(where.repository, where.target)
    if image is None:
        raise OutsideError(
            f"{where}: {where.host} has no such image", "correct the reference, or push it first"
        )
    if image.is_index:
        raise CheckFailed(
            f"{where} is a list of images ({image.media_type}), and the factory proves single ones",
            "name one image by its digest",
        )
    config = _config(image)
    labels = _labels(there, where, config)
    reason = "no receipt lies beside it"
    listed = there.referrers(where.repository, image.digest, RECEIPT_TYPE)
    by_age = sorted(
        listed, key=lambda one: one.annotations.get("org.opencontainers.image.created", "")
    )
    for one in reversed(by_age):  # the newest that holds; the reason of the newest if none does
        receipt, problem = _receipt(there, where, one, image)
        if receipt is not None:
            names = [image.digest] if receipt.digest else [config.digest]
            held = holds(receipt, names, labels)
            problem = held.reason
            said = labels.get(ACCELERATOR, receipt.accelerator)
            if held and said != receipt.accelerator:
                problem = f"its label says {said}, its receipt {receipt.accelerator}"
            elif held:
                verification = Verification(
                    reference=str(where.at(image.digest)),
                    digest=image.digest,
                    image_id=config.digest,
                    labels=labels,
                    receipt=receipt,
                    receipt_digest=one.digest,
                )
                return verification, image
        reason = problem if one is by_age[-1] else reason
    raise CheckFailed(
        f"{where} ({image.digest}) is not proven: {reason}",
        "do not use it; prove and push it again: builder smoke TARGET, builder push TARGET",
    )


def _receipt(
    there: Registry, where: Reference, one: Descriptor, image: Manifest
) -> tuple[Receipt | None, str]:
    """A receipt that lies beside an image, or why it is none."""
    made = there.manifest(where.repository, one.digest)
    if made is None:
        return None, f"its receipt {one.digest} is gone"
    subject = (made.content.get("subject") or {}).get("digest")
    if subject != image.digest:
        return None, f"the receipt that lies beside it is for {subject}"
    layers = [Descriptor.read(layer) for layer in made.content.get("layers") or []]
    if [layer.media_type for layer in layers] != [RECEIPT_TYPE]:
        return None, f"what lies beside it as {RECEIPT_TYPE} holds no receipt"
    data = there.blob(where.repository, layers[0])
    try:
        return receipts.parse(data, f"receipt {one.digest}"), ""
    except InputError as error:
        return None, error.message


def _labels(there: Registry, where: Reference, config: Descriptor) -> Mapping[str, str]:
    """The image's labels, from its config."""
    content = Manifest(there.blob(where.repository, config), config.media_type).content
    return dict((content.get("config") or {}).get("Labels") or {})
