"""Are certificates where the variables, and a framework, look for them? Else no HTTPS connection
succeeds. In an image of the project this is a part of the check `machine`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian keeps certificates, and some frameworks alone look (`Framework.one_bundle`)."""
_BUNDLES: Final = (AUTHORITIES, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Certificates of Debian, of Fedora, of Alpine."""
_VARIABLES: Final = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def run(image: Image) -> Answer:
    """Look for the certificates of an image that anybody made. Raises NotThereError for none."""
    present = [path for path in _BUNDLES if image.tree.resolve(path)]
    needs_debians = any(framework.one_bundle for framework in image.frameworks)
    if not (present or needs_debians or image.environment.get("SSL_CERT_FILE")):
        raise NotThereError(f"no {', '.join(_BUNDLES)}: its program may bring its own")
    defects = missing(image, needs_debians or not present)
    return list(defects), {"note": ", ".join(present)}


def missing(image: Image, debians: bool = True) -> Iterator[Defect]:
    """Yield the bundles that are not there, or are empty. debians: whether Debian's has to be."""
    environment = image.environment
    needed = {
        path: f"{name}={path} names a file that is not in the image: no HTTPS connection succeeds"
        for name in _VARIABLES
        if (path := environment.get(name, ""))
    }
    if debians and not environment.get("CURL_CA_BUNDLE"):
        needed[AUTHORITIES] = (
            f"the image has no {AUTHORITIES}: gs:// cannot be read (libcurl code 77)"
        )
    for path, message in needed.items():
        kind = Finding if path == AUTHORITIES else Defect
        bundle = image.tree.resolve(path)
        if bundle is None:
            yield kind(message, "install ca-certificates, or correct the variable")
        elif bundle in image.tree.files and not image.tree.files[bundle].size:
            yield kind(
                f"{path} is empty: no HTTPS connection succeeds (libcurl code 77)",
                "run update-ca-certificates, or correct the variable",
            )


CHECK = Check.of("certificates", 2, run)
