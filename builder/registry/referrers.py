"""Artifacts put beside the manifest that they refer to, also where a registry has no API for them.

`Registry.referrers` finds them again (OCI distribution specification 1.1, "referrers tag schema").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from builder.core import parallel
from builder.core.errors import OutsideError
from builder.registry import decoding
from builder.registry.client import Registry, fallback_tag
from builder.registry.manifests import Descriptor, Manifest, index

_SHORT: Final = 16
"""Hex digits of a referrer's digest in its own tag."""
_OWN_TAG: Final = re.compile(rf"\.[0-9a-f]{{{_SHORT}}}$")
_ATTEMPTS: Final = 10


def attach(there: Registry, repository: str, *referrers: Manifest) -> None:
    """Put artifacts beside the manifest that they all refer to. Their blobs must be there.

    A registry without the API gets a list of them, and a tag for each: the tags keep them from
    being cleaned up as untagged. Two commands may write the list at once. Each tags its own
    artifacts first, and is done when the list that it reads has all that are tagged. So the
    last list to be written has them all.
    """
    first, *others = referrers
    if there.put_manifest(repository, first.digest, first):  # the registry has the API
        parallel.each(lambda one: there.put_manifest(repository, one.digest, one), others)
        return
    subject = str(first.content["subject"]["digest"])
    parallel.each(
        lambda one: there.put_manifest(repository, _own_tag(subject, one.digest), one), referrers
    )
    _list(there, repository, subject, {one.digest: _listed(one) for one in referrers})


def _list(there: Registry, repository: str, subject: str, waiting: dict[str, Descriptor]) -> None:
    """Add what is tagged as referring to `subject` to its list, and read back that it is there.

    waiting: digest -> how the list names it; tagged already.
    """
    tag = fallback_tag(subject)
    for _ in range(_ATTEMPTS):
        listed, tags = parallel.both(
            lambda: there.manifest(repository, tag),
            lambda: there.tags(repository, _own_tag(subject, "")),
        )
        held = listed.manifests if listed else ()
        known = {one.digest for one in held}
        waiting |= _tagged(there, repository, subject, tags, {*known, *waiting})
        missing = [one for digest, one in waiting.items() if digest not in known]
        if not missing:
            return
        there.put_manifest(repository, tag, index((*held, *missing)))
    raise OutsideError(
        f"{there.host}/{repository}:{tag}: others keep overwriting this list of referrers",
        "run this again when no other push of this image runs",
    )


def _tagged(
    there: Registry, repository: str, subject: str, tags: Iterable[str], known: set[str]
) -> dict[str, Descriptor]:
    """The referrers that have one of these tags and are not among the known digests."""
    own = {_own_tag(subject, digest) for digest in known}
    # cosign keeps its older signatures under .sig and .att
    unknown = [tag for tag in tags if tag not in own and _OWN_TAG.search(tag)]
    found = parallel.each(lambda tag: there.manifest(repository, tag), unknown)
    return {one.digest: _listed(one) for one in found if one and one.subject == subject}


def _listed(referrer: Manifest) -> Descriptor:
    """How the list names a referrer."""
    return replace(
        referrer.descriptor,
        artifact_type=decoding.text(referrer.content, "artifactType"),
        annotations=decoding.words(referrer.content, "annotations"),
    )


def _own_tag(subject: str, referrer: str) -> str:
    """The tag of one referrer, where the registry has no API; "" gives what all of them share."""
    return f"{fallback_tag(subject)}.{referrer.removeprefix('sha256:')[:_SHORT]}"
