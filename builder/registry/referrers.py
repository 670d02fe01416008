"""Artifacts that refer to a manifest, also in a registry that has no referrers API.

`Registry.referrers` lists them (OCI distribution specification 1.1, "referrers tag schema"), `read`
reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from builder.core import parallel
from builder.core.errors import CheckFailed, OutsideError
from builder.registry import decoding
from builder.registry.client import Registry, fallback_tag
from builder.registry.manifests import Descriptor, Manifest, index

CREATED: Final = "org.opencontainers.image.created"
"""Annotation of an artifact: when its content was made, in ISO 8601."""

_SHORT: Final = 16
"""Hex digits of a referrer's digest in its own tag."""
_OWN_TAG: Final = re.compile(rf"\.[0-9a-f]{{{_SHORT}}}$")
_ATTEMPTS: Final = 10


@dataclass(frozen=True)
class Referrer:
    digest: str
    """Of its own manifest."""
    content: bytes = b""
    """The blob; empty where `problem` says why it is not read."""
    problem: str = ""


def read(
    client: Registry,
    repository: str,
    subject: str,
    artifact_type: str,
    chosen: Callable[[Descriptor], bool] = lambda _: True,
) -> tuple[Referrer, ...]:
    """Read the artifacts of a type that refer to the manifest with this digest, the newest first.

    chosen: which of those that are listed. Raises OutsideError.
    """

    def fetch(entry: Descriptor) -> Referrer:
        try:
            manifest = client.manifest(repository, entry.digest)
            if manifest is None:
                problem = f"its referrer {entry.digest} is gone"
            elif manifest.subject != subject:
                problem = f"the referrer {entry.digest} refers to {manifest.subject}"
            elif [layer.media_type for layer in manifest.layers] != [artifact_type]:
                problem = f"its referrer {entry.digest} holds no {artifact_type}"
            else:
                return Referrer(entry.digest, client.blob(repository, manifest.layers[0]))
        except (CheckFailed, decoding.MalformedError) as error:
            problem = error.message
        return Referrer(entry.digest, problem=problem)

    listed = list(filter(chosen, client.referrers(repository, subject, artifact_type)))
    listed.sort(key=lambda entry: entry.annotations.get(CREATED, ""), reverse=True)
    return parallel.each(fetch, listed)


def attach(client: Registry, repository: str, *referrers: Manifest) -> None:
    """Put artifacts that all refer to one manifest. Their blobs must be there already.

    A registry without the API gets a list of them, and a tag for each: the tags keep them from
    being cleaned up as untagged. Two commands may write the list at once. Each tags its own
    artifacts first, and is done when the list that it reads has all that are tagged. So the
    last list to be written has them all.
    """
    first, *others = referrers
    if client.put_manifest(repository, first.digest, first):  # the registry has the API
        parallel.each(lambda other: client.put_manifest(repository, other.digest, other), others)
        return
    subject = str(first.content["subject"]["digest"])
    parallel.each(
        lambda referrer: client.put_manifest(
            repository, _own_tag(subject, referrer.digest), referrer
        ),
        referrers,
    )
    _list(
        client, repository, subject, {referrer.digest: _listed(referrer) for referrer in referrers}
    )


def _list(client: Registry, repository: str, subject: str, waiting: dict[str, Descriptor]) -> None:
    """Add what is tagged as referring to `subject` to its list, and read back that it is client.

    waiting: digest -> how the list names it; tagged already.
    """
    tag = fallback_tag(subject)
    for _ in range(_ATTEMPTS):
        listed, tags = parallel.both(
            lambda: client.manifest(repository, tag),
            lambda: client.tags(repository, _own_tag(subject, "")),
        )
        entries = listed.manifests if listed else ()
        known = {entry.digest for entry in entries}
        waiting |= _tagged(client, repository, subject, tags, {*known, *waiting})
        missing = [entry for digest, entry in waiting.items() if digest not in known]
        if not missing:
            return
        client.put_manifest(repository, tag, index((*entries, *missing)))
    raise OutsideError(
        f"{client.host}/{repository}:{tag}: others keep overwriting this list of referrers",
        "run this again when no other push of this image runs",
    )


def _tagged(
    client: Registry, repository: str, subject: str, tags: Iterable[str], known: set[str]
) -> dict[str, Descriptor]:
    """Return the referrers that have one of these tags and are not among the known digests."""
    own = {_own_tag(subject, digest) for digest in known}
    # cosign keeps its older signatures under .sig and .att
    unknown = [tag for tag in tags if tag not in own and _OWN_TAG.search(tag)]
    manifests = parallel.each(lambda tag: client.manifest(repository, tag), unknown)
    return {
        manifest.digest: _listed(manifest)
        for manifest in manifests
        if manifest and manifest.subject == subject
    }


def _listed(referrer: Manifest) -> Descriptor:
    return replace(
        referrer.descriptor,
        artifact_type=decoding.text(referrer.content, "artifactType"),
        annotations=decoding.words(referrer.content, "annotations"),
    )


def _own_tag(subject: str, referrer: str) -> str:
    """Return the tag of one referrer in a registry without the API; "" gives their prefix."""
    return f"{fallback_tag(subject)}.{referrer.removeprefix('sha256:')[:_SHORT]}"
