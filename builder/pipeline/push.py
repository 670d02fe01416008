"""From this machine to a registry: by digest, with its receipt, and only then under its tags.

The factory sends the layers that it assembled; what BuildKit built, the engine pushes.

The order makes an interrupted push harmless. First goes the base, so that others can build on it.
Then the image, under a tag that names its content and that nobody uses otherwise; its digest is
read back and compared. Then its receipt, and what is attested of it. The tags that people follow
move last.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from builder import __version__, registry
from builder.config.stack import check_runs_on
from builder.config.targets import TargetFiles
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, prefixed, step
from builder.core.files import cache_home, locked
from builder.core.settings import LOCAL_REPOSITORY, Settings
from builder.engine import Engine, docker
from builder.facts import accelerators
from builder.image import content_store, registry_layers
from builder.image.content_store import ContentStore
from builder.image.layer import AssembledImage
from builder.pipeline import proof, records, repository, signing
from builder.pipeline import tags as tagging
from builder.pipeline.signing import Contents
from builder.pipeline.verify import attach
from builder.prove import suites
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry
from builder.trust import pushed


@dataclass(frozen=True)
class LocalImage:
    reference: str
    digest: str | None
    """Of its manifest, None where the engine's store makes one only at the push."""
    image_id: str
    """The engine's own Id of the image."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, read back from there."""

    reference: str
    """Repository@digest."""
    repository: str
    digest: str
    image_id: str
    tags: tuple[str, ...]
    """All that lead to it now."""
    moved: tuple[str, ...]
    """Those that did not before."""
    receipt: str
    """Digest of the receipt's manifest."""
    signed: tuple[str, ...]
    """Digests of the attestations that were signed now."""
    base: str | None
    """The base's reference; None where the base is not one of ours."""
    sent: int
    """Bytes that were transferred."""
    seconds: float

    @property
    def unchanged(self) -> bool:
        """Whether the registry had all of it already."""
        return not self.moved and not self.sent and not self.signed


def push_target(
    files: TargetFiles,
    settings: Settings,
    engine: Engine,
    tags: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> PushedImage:
    """Push the image that the last build of a target made, with its base and its receipt, and write
    its tags into images/pushed.lock.

    Raises InputError where nothing was built, CheckFailed without a receipt for that very image.
    """
    root, target = files.root, files.name
    record = records.read(root, target)
    image = engine.image(record.image_id) if record else None
    if record is None or image is None:
        raise InputError(
            f"{target}: there is no image on the engine to push", f"builder image {target}"
        )
    accelerator = accelerators.find(files.spec.accelerator)
    check_runs_on(image.labels, accelerator.compute_capability, target)
    result = push(
        engine,
        LocalImage(record.reference, record.digest, image.image_id, image.labels),
        proof.receipt_of(root, target),
        settings,
        tagging.tags_for(target, record.release, root, tuple(tags)),
        base=record.base.rpartition(":")[2] if record.base_digest and record.base else None,
        contents=functools.partial(signing.contents, files, record, __version__),
        on_event=prefixed(target, on_event),
    )
    for tag in (*tags, target):  # the tag of a version is one of the target's images
        pushed.record(root, registry.parse(result.repository).tagged(tag), result.digest)
    return result


def push(
    engine: Engine,
    image: LocalImage,
    receipt: Receipt | None,
    settings: Settings,
    tags: tuple[str, ...],
    *,
    base: str | None = None,
    contents: Callable[[], Contents] | None = None,
    on_event: OnEvent = ignore,
) -> PushedImage:
    """Push a proven image and move `tags` to it; send nothing where the registry has it all.

    base: the tag of its base. contents: gives what else is attested; called before anything is
    sent, where the settings name a key.

    Raises CheckFailed (and moves no tag) without a receipt that holds for this very image, or where
    the registry has other bytes than the engine; OutsideError for what the registry refuses.
    """
    valid = _valid(receipt, image)
    reference = repository.of(settings)
    for tag in tags:
        reference.tagged(tag)  # refuses a text that cannot be a tag before anything is sent
    with step(f"push {reference.name}", on_event) as pushing:
        key = signing.key_of(settings.trust)
        attested = contents() if contents and settings.trust.key else None
        with Registry(reference.host, on_retry=pushing.log) as client:
            sender = _Sender(engine, client, reference, pushing)
            if base is not None:
                sender.base(base)
            manifest = sender.image(image)
            receipt_digest = attach(client, reference, manifest, valid)
            signed = signing.attest(
                client, reference, manifest, valid, attested, settings.trust, key
            )
            moved = tuple(
                tag for tag in tags if tagging.move(client, reference.tagged(tag), manifest).moved
            )
        result = PushedImage(
            reference=str(reference.at(manifest.digest)),
            repository=reference.name,
            digest=manifest.digest,
            image_id=manifest.config.digest,
            tags=tags,
            moved=moved,
            receipt=receipt_digest,
            signed=signed,
            base=str(reference.tagged(base)) if base is not None else None,
            sent=sender.sent,
            seconds=pushing.seconds,
        )
        pushing.cached = result.unchanged
        pushing.detail = "already there" if result.unchanged else f"{manifest.digest[:19]}"
    return result


def _valid(receipt: Receipt | None, image: LocalImage) -> Receipt:
    """Return the receipt, if it holds for this very image. Raises CheckFailed."""
    target = receipt.target if receipt else "TARGET"
    validity = suites.of_image(image.labels).holds(receipt, image.digest or image.image_id)
    if receipt is None or not validity:
        raise CheckFailed(
            f"{image.reference} is not proven: {validity.reason}", f"run: builder smoke {target}"
        )
    return receipt


@dataclass
class _Sender:
    """Brings images from this machine to one repository, unless they are there already."""

    engine: Engine
    client: Registry
    reference: Reference
    step: RunningStep
    store: ContentStore = field(default_factory=content_store.of_this_machine)
    sent: int = 0

    def base(self, tag: str) -> None:
        """Bring the base of this tag: from the cache, else from the engine.

        Raises OutsideError where neither has it, nor the registry.
        """
        to, events = self.reference.tagged(tag), self.step.on_event
        if self.client.head(to.repository, tag):
            return
        image = self.store.find_image(tag)
        if image and self._has(image):
            self.client.check_write(to.repository)
            self.sent += registry_layers.publish(self.client, to, image, self.store, events)
            return
        held = self.engine.image(name := f"{LOCAL_REPOSITORY}:{tag}")
        if held is None or not self.engine.containerd_store:
            raise _lost(tag)
        tagging.move(self.client, to, self.image(LocalImage(name, held.image_id, held.image_id)))

    def image(self, image: LocalImage) -> Manifest:
        """Bring an image; return its manifest, read back. Raises CheckFailed for another one."""
        reference = image.digest or image.image_id
        to = self.reference.tagged(f"image-{reference.removeprefix('sha256:')[:16]}")
        find = functools.partial(self.client.manifest, self.reference.repository)
        manifest = find(image.digest or to.target)
        if manifest is None:
            self.client.check_write(self.reference.repository)
            assembled = self.store.find_image((image.digest or "").removeprefix("sha256:"))
            if assembled and self._has(assembled):
                events = self.step.on_event
                sent = registry_layers.publish(self.client, to, assembled, self.store, events)
            elif image.digest and not self.engine.containerd_store:
                raise _lost(image.reference)  # such an engine pushes another manifest
            else:
                progress = self.step.progress
                with locked(cache_home() / "locks" / to.target):  # its end removes the engine's tag
                    sent = _by_engine(self.engine, reference, to, self.client, progress)
            self.sent += sent
            manifest = find(to.target)
        if (
            manifest is None
            or image.digest not in (None, manifest.digest)
            or (image.digest is None and manifest.config.digest != image.image_id)
        ):
            raise CheckFailed(
                f"{to}: the registry has {manifest.digest if manifest else 'nothing'}, the engine"
                f" has {reference}; no tag was moved",
                "push again; if that does not help, look into the registry's storage",
            )
        return manifest

    def _has(self, image: AssembledImage) -> bool:
        """Return whether each layer of an image is on this machine or in the registry."""
        repository = self.reference.repository
        return all(
            self.store.has(layer) or self.client.has_blob(repository, layer.blob.digest)
            for layer in image.layers
        )


def _lost(name: str) -> OutsideError:
    return OutsideError(
        f"{name}: neither this machine's cache nor the registry has all of its layers any more",
        "make them again: builder build TARGET --no-cache",
    )


def _by_engine(
    engine: Engine,
    image: str,
    to: Reference,
    client: Registry,
    progress: Callable[[int, int], object],
) -> int:
    """Let the engine push an image under a tag; return the bytes that it reports as sent. It tries
    each layer again by itself.

    image: a digest or an id that the engine knows. client: of the registry, for its credentials.
    Raises OutsideError where the registry refuses, or stays broken.
    """
    import requests
    from docker.errors import APIError, ImageNotFound

    api, known = engine.client.api, client.credentials
    try:
        api.tag(image, to.name, to.tag)
        login = known.for_engine() if known else {}
        stream = api.push(to.name, tag=to.tag, stream=True, decode=True, auth_config=login)
        return docker.follow(stream, "Pushing", progress)
    except ImageNotFound:
        raise OutsideError(f"the engine has no image {image}", "build it again") from None
    except (docker.TransferRefused, APIError, requests.RequestException) as error:
        line = " ".join(str(getattr(error, "explanation", None) or error).split())[:300]
        words = re.sub(r"https?://\S+", "", line)  # an address may contain anything
        status = 401 if re.search("auth", words, re.IGNORECASE) else 0
        raise registry.refusal(to, status, line, "write", known) from None
    finally:
        with contextlib.suppress(APIError, requests.RequestException):
            api.remove_image(str(to), noprune=True)
