"""Can another machine start the image, stop it, and open an HTTPS connection from it?

docs/proof.md names the public thread of each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check

AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian keeps certificates, and some frameworks alone look (`Framework.one_bundle`)."""
_BUNDLES: Final = (AUTHORITIES, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Certificates of Debian, of Fedora, of Alpine."""
_VARIABLES: Final = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_SIGNALS: Final = ("", "SIGTERM", "TERM", "15")


def run(image: Image) -> Answer:
    """Judge the configuration, and look for the certificates."""
    stop_signal = image.config.get("StopSignal") or "SIGTERM"
    return [*judge(image.config), *_certificates(image)], {"stop_signal": stop_signal}


def of_config(image: Image) -> Answer:
    """Judge the configuration alone, of an image that may be for another processor than ours."""
    defects = list(judge(image.config))
    architecture = image.content.configuration.get("architecture")
    if architecture and architecture != "amd64":
        defects.append(
            Finding(
                f"the image is for {architecture}: Vertex AI's machines, like most, are amd64",
                "build it with docker build --platform linux/amd64",
            )
        )
    return defects, {}


def certificates(image: Image) -> Answer:
    """Look for the certificates of an image that anybody made. Raises NotThereError for none."""
    present = [path for path in _BUNDLES if image.tree.resolve(path)]
    needs_debians = any(framework.one_bundle for framework in image.frameworks)
    if not (present or needs_debians or image.environment.get("SSL_CERT_FILE")):
        raise NotThereError(f"no {', '.join(_BUNDLES)}: its program may bring its own")
    defects = _certificates(image, needs_debians or not present)
    return list(defects), {"note": ", ".join(present)}


def judge(config: Mapping[str, Any]) -> Iterator[Defect]:
    """Yield what is wrong with the configuration of an image."""
    signal = str(config.get("StopSignal") or "")
    if signal.upper() not in _SIGNALS:
        yield Defect(
            f"STOPSIGNAL {signal}: Docker and Kubernetes send that in place of SIGTERM, so "
            "the program is killed before it saves",
            "take STOPSIGNAL out of the Dockerfile, or write SIGTERM",
        )
    kind, *words = (config.get("Healthcheck") or {}).get("Test") or ["NONE"]
    if kind != "NONE":
        yield Finding(
            f"HEALTHCHECK {' '.join(words)}: Docker's swarm kills a container that does "
            "not pass it, and a training answers none; Vertex AI and Kubernetes do not ask",
            "write HEALTHCHECK NONE into the Dockerfile",
        )
    user = str(config.get("User") or "").partition(":")[0]
    if user and not user.isdecimal():
        yield Finding(
            f"USER {user} is a name: a pod with runAsNonRoot does not start, because its "
            "node cannot tell that this is not root",
            "write the number: USER 1000:1000",
        )


def _certificates(image: Image, debians: bool = True) -> Iterator[Defect]:
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


CHECK = Check.of("machine", 4, run)
