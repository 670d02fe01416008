"""What is accepted of the advisories against an image, as an OpenVEX document for scanners.

An advisory with a justification is `not_affected`: scanners hide it. One without is `affected`, and
the reason stands there as what is done about it.

Sources: OpenVEX v0.2.0 (github.com/openvex/spec). Trivy (`--vex FILE`, `--vex oci`) and Grype
(`--vex FILE`) read it; both compare package URLs, and a version or a qualifier that stands in the
document has to stand in theirs too. They write epochs and distributions differently, so the package
URLs of packages here have neither; the image has its digest. cosign calls the type `openvex`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final
from urllib.parse import quote

from builder.lock.model import Lock
from builder.spec.advisories import AcceptedAdvisory
from builder.trust import advisories, sbom

KIND: Final = "https://openvex.dev/ns"
_CONTEXT: Final = "https://openvex.dev/ns/v0.2.0"


def document(
    image: str, accepted: Sequence[AcceptedAdvisory], lock: Lock, made_at: str, today: date
) -> dict[str, Any]:
    """The document of an image. Nothing is said of an advisory that is no longer accepted.

    image: its package URL. made_at: ISO 8601.
    """
    statements = [
        _statement(image, one, tuple(_packages(lock, one.package)))
        for one in accepted
        if one.until >= today
    ]
    content = hashlib.sha256(json.dumps([image, statements]).encode()).hexdigest()
    return {
        "@context": _CONTEXT,
        "@id": f"urn:{sbom.PREFIX}:vex:{content}",
        "author": sbom.PREFIX,
        "timestamp": made_at,
        "version": 1,
        "statements": statements,
    }


def _statement(image: str, one: AcceptedAdvisory, packages: Sequence[str]) -> dict[str, Any]:
    until = f"{one.reason} (accepted until {one.until})"
    said = (
        {
            "status": "not_affected",
            "justification": one.justification,
            "impact_statement": until,
        }
        if one.justification
        else {"status": "affected", "action_statement": until}
    )
    return {
        "vulnerability": {"name": one.id.removeprefix(advisories.DEBIAN)},
        "products": [
            {
                "@id": image,
                "identifiers": {"purl": image},
                "subcomponents": [
                    {"@id": purl, "identifiers": {"purl": purl}} for purl in packages
                ],
            }
        ],
        **said,
    }


def _packages(lock: Lock, name: str) -> Iterator[str]:
    """The package URLs of what is meant by a name; for a Debian source all that is made of it."""
    for pin in lock.packages.values():
        if advisories.same(pin.name, name):
            yield sbom.pypi_purl(pin).partition("@")[0]
    for _, deb in sbom.debian_packages(lock):
        if sbom.debian_source(deb) == name:
            yield f"pkg:deb/debian/{quote(deb.name, safe='')}"
