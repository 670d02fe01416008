"""From this machine to a registry: by digest, with its receipt, and only then under its tags.

The factory sends the layers that it assembled; what BuildKit built, the engine pushes.

The order makes an interrupted push harmless. First goes the base, so that others can build on it.
Then the image, under a tag that names its content and that nobody uses otherwise; its digest is
read back and compared. Then its receipt, and what is signed about it. The tags that people follow
move last.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from builder import __version__, registry
from builder.bases import sharing, store
from builder.bases.assembled import AssembledImage
from builder.bases.store import Store
from builder.core import parallel
from builder.core.errors import CheckFailed, InputError, OutsideError
from builder.core.events import OnEvent, RunningStep, ignore, prefixed, step
from builder.core.files import cache_home, locked
from builder.core.retry import Passing, Retry
from builder.core.settings import Settings
from builder.core.trustsettings import TrustSettings
from builder.engine import transfers
from builder.facts import accelerators
from builder.pipeline import bases, prove, records, repository, signing
from builder.pipeline import tags as tagging
from builder.pipeline.signing import About
from builder.pipeline.verify import attach
from builder.prove.receipts import Receipt
from builder.registry import Manifest, Reference, Registry
from builder.spec import catalogue
from builder.spec.kernels import check_runs_on
from builder.tensorflow import suite as suites
from builder.trust import keyless
from builder.trust.keys import KeySigner

if TYPE_CHECKING:
    from builder.engine import Engine

ENGINE_RETRY: Final = Retry(attempts=4, first=1.0)
"""The engine's own push tries each layer several times before it gives up."""

T = TypeVar("T")


class Pushable(Protocol):
    """An image on an engine.

    digest: of its manifest, None where the engine's store makes one only at the push. image_id: the
    engine's own Id of the image. labels: of its configuration.
    """

    @property
    def reference(self) -> str: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def image_id(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry, read back from there.

    reference: repository@digest. tags: all that lead to it now. moved: those that did not before.
    receipt: digest of the receipt's manifest. signed: digests of the manifests of statements that
    were signed now. base: the base's reference; None where the base is
    not one of ours. sent: bytes that were transferred.
    """

    reference: str
    repository: str
    digest: str
    image_id: str
    tags: tuple[str, ...]
    moved: tuple[str, ...]
    receipt: str
    signed: tuple[str, ...]
    base: str | None
    sent: int
    seconds: float

    @property
    def unchanged(self) -> bool:
        """Whether the registry held all of it already."""
        return not self.moved and not self.sent and not self.signed


def push(
    engine: Engine,
    image: Pushable,
    receipt: Receipt | None,
    settings: Settings,
    tags: tuple[str, ...],
    *,
    base: Pushable | None = None,
    about: Callable[[], About] | None = None,
    retry: Retry = ENGINE_RETRY,
    on_event: OnEvent = ignore,
) -> PushedImage:
    """Push a proven image and move `tags` to it; send nothing where the registry has it all.

    about: gives what else is signed; called before anything is sent, where the settings name a key.

    Raises CheckFailed (and moves no tag) without a receipt that holds for this very image, or where
    the registry has other bytes than the engine; OutsideError for what the registry refuses.
    """
    proof = _proof(receipt, image)
    where = repository.of(settings)
    for tag in tags:
        where.tagged(tag)  # refuses a text that cannot be a tag before anything is sent
    with step(f"push {where.name}", on_event) as pushing:
        with Registry(where.host, said=pushing.log) as there, ThreadPoolExecutor(1) as beside:
            key = beside.submit(signing.key_of, settings.trust)  # a key file opens in 0.3 s
            known = about() if about and settings.trust.key else None
            send = _Sender(engine, there, where, retry, pushing, key.result)
            if base is not None:
                send.base(base)
            manifest = send.image(image)
            receipt_digest, signed = parallel.both(
                lambda: attach(there, where, manifest, proof),
                lambda: _sign(there, where, manifest, proof, known, key, settings.trust),
            )
            moved = tuple(
                tag for tag in tags if tagging.move(there, where.tagged(tag), manifest).moved
            )
        result = PushedImage(
            reference=str(where.at(manifest.digest)),
            repository=where.name,
            digest=manifest.digest,
            image_id=manifest.config.digest,
            tags=tags,
            moved=moved,
            receipt=receipt_digest,
            signed=signed,
            base=str(where.tagged(_tag_of(base))) if base is not None else None,
            sent=send.sent,
            seconds=pushing.seconds,
        )
        pushing.cached = result.unchanged
        pushing.detail = "already there" if result.unchanged else f"{manifest.digest[:19]}"
    return result


def _sign(
    there: Registry,
    where: Reference,
    image: Manifest,
    proof: Receipt,
    known: About | None,
    key: Future[KeySigner | None],
    trust: TrustSettings,
) -> tuple[str, ...]:
    """Sign all that is said about an image, where the settings name a key; what was signed now."""
    if not trust.key:
        return ()
    said = signing.said(there, where, image, proof, known)
    # a certificate is for ten minutes, and the image may have taken longer
    signer = key.result() or keyless.signer(trust, os.environ)
    return signing.sign(there, where, said, signer, proof.made_at)


def push_target(
    root: Path,
    settings: Settings,
    engine: Engine,
    target: str,
    tags: Sequence[str] = (),
    on_event: OnEvent = ignore,
) -> PushedImage:
    """Push the image that the last build of a target made, with its base and its receipt.

    Raises InputError where nothing was built, CheckFailed without a receipt for that very image.
    """
    record = records.read(root, target)
    image = engine.image(record.image_id) if record else None
    if record is None or image is None:
        raise InputError(
            f"{target}: there is no image on the engine to push", f"builder image {target}"
        )
    capability = accelerators.find(catalogue.load(root, target).accelerator).compute_capability
    check_runs_on(image.labels, capability, target)
    base = None
    if record.base_digest and record.base:
        if found := engine.image(record.base):
            base = replace(found, digest=record.base_digest)
        elif not bases.in_registry(settings, record.base.rpartition(":")[2]):
            raise OutsideError(
                f"{record.base}: neither the engine nor the registry has it any more",
                f"builder build {target}",
            )
    return push(
        engine,
        replace(image, reference=record.reference, digest=record.digest),
        prove.receipt_of(root, target),
        settings,
        tagging.tags_for(target, record.tensorflow, root, tuple(tags)),
        base=base,
        about=functools.partial(signing.about, root, record, __version__),
        on_event=prefixed(target, on_event),
    )


def _proof(receipt: Receipt | None, image: Pushable) -> Receipt:
    """The receipt, if it holds for this very image. Raises CheckFailed."""
    target = receipt.target if receipt else "TARGET"
    held = suites.of_image(image.labels).holds(receipt, image.digest or image.image_id)
    if receipt is None or not held:
        raise CheckFailed(
            f"{image.reference} is not proven: {held.reason}", f"run: builder smoke {target}"
        )
    return receipt


def _tag_of(image: Pushable) -> str:
    return registry.parse(image.reference).target


@dataclass
class _Sender:
    """Brings images from this machine to one repository, unless they are there already.

    check: called before anything is sent; what it raises ends the push.
    """

    engine: Engine
    there: Registry
    where: Reference
    retry: Retry
    step: RunningStep
    check: Callable[[], object]
    kept: Store = field(default_factory=store.of_this_machine)
    sent: int = 0

    def base(self, base: Pushable) -> None:
        """Bring the base, under its own tag, and offer its layers by their keys."""
        tag = _tag_of(base)
        there = self._bring(base, tag, lambda: self.there.head(self.where.repository, tag))
        if there is None and (whole := self._assembled(base.digest, tag)):
            repository, blobs = self.where.repository, self.kept.path
            sharing.offer(self.there, repository, whole.layers, blobs, self.step.on_event)

    def image(self, image: Pushable) -> Manifest:
        """Bring the image; its manifest, read back. Raises CheckFailed for another one."""
        tag = f"image-{(image.digest or image.image_id).removeprefix('sha256:')[:16]}"
        look = functools.partial(self.there.manifest, self.where.repository)
        found = self._bring(image, tag, lambda: look(image.digest or tag)) or look(tag)
        if found is None or not _is(found, image):
            raise CheckFailed(
                f"{self.where.tagged(tag)}: the registry has"
                f" {found.digest if found else 'nothing'}, the engine has"
                f" {image.digest or image.image_id}; no tag was moved",
                "push again; if that does not help, look into the registry's storage",
            )
        return found

    def _bring(self, image: Pushable, tag: str, look: Callable[[], T | None]) -> T | None:
        """What is there already (`look`), else None after a push of the image under `tag`.

        Of two pushes of one image from this machine, the second waits and finds the image there.
        """
        if found := look():
            return found
        name = hashlib.sha256(f"{self.where.name}:{tag}".encode()).hexdigest()[:16]
        with locked(cache_home() / "locks" / f"push-{name}"):
            if found := look():
                return found
            self.check()
            self.there.check_write(self.where.repository)
            if whole := self._assembled(image.digest, tag):
                to, events = self.where.tagged(tag), self.step.on_event
                self.sent += sharing.publish(self.there, to, whole, self.kept.path, events)
            else:
                self.retry.run(lambda: self._once(image, tag), self.there.said)
        return None

    def _assembled(self, digest: str | None, tag: str) -> AssembledImage | None:
        """The assembled image of this digest, if each of its layers is here or in the registry.

        A training image is kept by its digest, a base by its tag.
        """
        names = ((digest or "").removeprefix("sha256:"), tag)
        known = (self.kept.find_image(name) for name in names)
        found = next((one for one in known if one and one.digest == digest), None)
        repository = self.where.repository
        if found and all(
            self.kept.has(layer) or self.there.has_blob(repository, layer.blob.digest)
            for layer in found.layers
        ):
            return found
        return None

    def _once(self, image: Pushable, tag: str) -> None:
        """One push by the engine. Raises Passing for what may pass, OutsideError."""
        import requests
        from docker.errors import APIError, ImageNotFound

        api = self.engine.client.api
        target = self.where.tagged(tag)
        known = self.there.credentials
        sizes: dict[str, int] = {}
        pushed: set[str] = set()
        own = str(registry.parse(image.reference)) == str(target)
        try:
            if not own:
                api.tag(image.digest or image.image_id, target.name, tag)
            stream = api.push(
                target.name,
                tag=tag,
                stream=True,
                decode=True,
                auth_config=known.for_engine() if known else {},
            )
            for one in transfers.told(stream, self.step.progress):
                if one.total:
                    sizes[one.layer] = one.total
                if one.status == "Pushed":
                    pushed.add(one.layer)
        except transfers.Refused as error:
            raise self._failed(str(error)) from None
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
        self.sent += self._weight(pushed, sizes, tag)

    def _weight(self, pushed: set[str], said: Mapping[str, int], tag: str) -> int:
        """Bytes that were pushed. said: the sizes of large layers, all that the engine tells."""
        there = self.there.manifest(self.where.repository, tag)
        sizes = {
            layer.digest.removeprefix("sha256:")[:12]: layer.size
            for layer in (there.layers if there else ())
        }
        return sum({**sizes, **said}.get(name, 0) for name in pushed)

    def _failed(self, text: str) -> Exception:
        """The error of what the engine said: Passing, unless the words are final."""
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
"""Words of an engine's message that waiting does not change; the engine gives no status."""


def _is(manifest: Manifest, image: Pushable) -> bool:
    """Whether the manifest is the image's: by digest, or by config where that is unknown."""
    if image.digest:
        return manifest.digest == image.digest
    return manifest.config.digest == image.image_id
