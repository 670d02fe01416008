"""Artifacts put beside the manifest that they refer to, also where a registry has no API for them.

`Registry.referrers` finds them again (OCI distribution specification 1.1, "referrers tag schema").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from builder.core.errors import OutsideError
from builder.registry import decoding
from builder.registry.client import Registry, fallback_tag
from builder.registry.manifests import Descriptor, Manifest, index

_SHORT: Final = 16
"""Hex digits of a referrer's digest in its own tag."""


def attach(there: Registry, repository: str, *referrers: Manifest) -> None:
    """Put artifacts beside the manifest that they all refer to. Their blobs must be there.

    A registry without the API gets a list of them, and a tag for each: the tags keep them from
    being cleaned up as untagged. Two commands may write the list at once. Each tags its own
    artifacts first, and is done when the list that it reads has all that are tagged. So the
    last list to be written has them all.
    """
    waiting = {
        one.digest: replace(
            one.descriptor,
            artifact_type=one.content["artifactType"],
            annotations=one.content.get("annotations") or {},
        )
        for one in referrers
        if not there.put_manifest(repository, one.digest, one)
    }
    if not waiting:
        return
    subject = str(referrers[0].content["subject"]["digest"])
    for one in referrers:
        there.put_manifest(repository, _own_tag(subject, one.digest), one)
    tag = fallback_tag(subject)
    for _ in range(10):
        listed = there.manifest(repository, tag)
        held = listed.manifests if listed else ()
        listed_digests = {one.digest for one in held}
        waiting |= _tagged(there, repository, subject, {*listed_digests, *waiting})
        missing = [one for one in waiting.values() if one.digest not in listed_digests]
        if not missing:
            return
        there.put_manifest(repository, tag, index((*held, *missing)))
    raise OutsideError(
        f"{there.host}/{repository}:{tag}: others keep overwriting this list of referrers",
        "run this again when no other push of this image runs",
    )


def _tagged(
    there: Registry, repository: str, subject: str, known: set[str]
) -> dict[str, Descriptor]:
    """The referrers that have a tag of their own and are not among the known digests."""
    short = {digest.removeprefix("sha256:")[:_SHORT] for digest in known}
    found: dict[str, Descriptor] = {}
    for tag in there.tags(repository, _own_tag(subject, "")):
        if tag.rpartition(".")[2] in short:
            continue
        made = there.manifest(repository, tag)
        if made and made.subject == subject:
            found[made.digest] = replace(
                made.descriptor,
                artifact_type=decoding.text(made.content, "artifactType"),
                annotations=decoding.words(made.content, "annotations"),
            )
    return found


def _own_tag(subject: str, referrer: str) -> str:
    """The tag of one referrer, where the registry has no API; "" gives what all of them share."""
    return f"{fallback_tag(subject)}.{referrer.removeprefix('sha256:')[:_SHORT]}"
