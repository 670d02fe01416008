"""The advisories that an image.yaml accepts, as an OpenVEX document for scanners.

An advisory with a justification is `not_affected`: scanners hide it. One without is `affected`, and
its reason stands there as what is done about it.

Sources: OpenVEX v0.2.0 (github.com/openvex/spec). Trivy (`--vex FILE`, `--vex oci`) and Grype
(`--vex FILE`) read it; both compare package URLs, and a version or a qualifier that stands in the
document has to stand in theirs too. They write epochs and distributions differently, so the package
URLs of packages here have neither; the image has its digest. cosign calls the type `openvex`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from packageurl import PackageURL
from packaging.utils import canonicalize_name

from builder.config.accepted_advisories import AcceptedAdvisory
from builder.config.lockfile import Lock
from builder.trust import advisories, packages, sbom

_CONTEXT: Final = "https://openvex.dev/ns/v0.2.0"


def document(
    image: PackageURL,
    accepted: Sequence[AcceptedAdvisory],
    lock: Lock,
    made_at: str,
    today: date,
) -> dict[str, Any]:
    """Return the document of an image; an advisory that is no longer accepted is left out.

    made_at: ISO 8601.
    """
    statements = [_statement(image, entry, lock) for entry in accepted if entry.until >= today]
    content = hashlib.sha256(json.dumps([str(image), statements]).encode()).hexdigest()
    return {
        "@context": _CONTEXT,
        "@id": f"urn:{sbom.PREFIX}:vex:{content}",
        "author": sbom.PREFIX,
        "timestamp": made_at,
        "version": 1,
        "statements": statements,
    }


def _statement(image: PackageURL, entry: AcceptedAdvisory, lock: Lock) -> dict[str, Any]:
    reason = f"{entry.reason} (accepted until {entry.until})"
    status = (
        {
            "status": "not_affected",
            "justification": entry.justification,
            "impact_statement": reason,
        }
        if entry.justification
        else {"status": "affected", "action_statement": reason}
    )
    # a Debian source package stands for all packages that are built from it
    affected = [
        _product(PackageURL(package.purl.type, package.purl.namespace, package.purl.name))
        for package in packages.locked(lock)
        if canonicalize_name(package.source) == canonicalize_name(entry.package)
    ]
    return {
        "vulnerability": {"name": entry.id.removeprefix(advisories.DEBIAN)},
        "products": [{**_product(image), "subcomponents": affected}],
        **status,
    }


def _product(purl: PackageURL) -> dict[str, Any]:
    return {"@id": str(purl), "identifiers": {"purl": str(purl)}}
