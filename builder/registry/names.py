"""The names of images: a host, a repository, a tag or a digest; and which kind of host it is."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from builder.core.errors import InputError

DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_API: Final = "registry-1.docker.io"
"""The host that answers for Docker Hub."""

ARTIFACT_REGISTRY: Final = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev")
GCR: Final = re.compile(r"(?:(?:us|eu|asia)\.)?gcr\.io")

_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")


@dataclass(frozen=True)
class Reference:
    """The name of an image: `host/repository[:tag][@digest]`; Docker Hub's short forms in full."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"

    @property
    def target(self) -> str:
        """What to ask the registry for: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or "latest"

    def tagged(self, tag: str) -> Reference:
        """Return the same repository under a tag. Raises InputError for what cannot be a tag."""
        if not _TAG.fullmatch(tag):
            raise InputError(
                f"tag {tag!r}: a tag is 1 to 128 letters, digits, _ . - and does not start with"
                " . or -",
                f"write {re.sub(r'[^A-Za-z0-9_.-]', '-', tag).lstrip('.-')[:128] or 'a name'}",
            )
        return replace(self, tag=tag, digest=None)

    def at(self, digest: str) -> Reference:
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"


def parse(text: str) -> Reference:
    """Read a reference as docker does: without a host it is Docker Hub's. Raises InputError."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _no_reference(text, f"{digest!r} is not a digest", "write @sha256: and 64 hex digits")
    first, slash, path = rest.partition("/")
    is_host = slash and (first == "localhost" or re.search(r"[.:A-Z]", first))
    host, path = (first, path) if is_host else (DOCKER_HUB, rest)
    path, colon, tag = path.partition(":")
    if host in ("index.docker.io", DOCKER_HUB_API):
        host = DOCKER_HUB
    if not _HOST.fullmatch(host):
        raise _no_reference(text, f"{host!r} is not HOST[:PORT]")
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    if not all(_COMPONENT.fullmatch(part) for part in path.split("/")):
        fix = "use a-z, 0-9 and single . _ - inside each part of the path"
        if re.search("[A-Z]", path):
            fix = f"write {host}/{path.lower()}"
        raise _no_reference(text, f"{path!r} is not a repository", fix)
    if colon and not _TAG.fullmatch(tag):
        raise _no_reference(text, f"{tag!r} is not a tag")
    if ARTIFACT_REGISTRY.fullmatch(host) and path.count("/") < 2:
        raise _no_reference(
            text,
            "Artifact Registry names have a project, a repository and an image",
            f"write {host}/PROJECT/REPOSITORY/IMAGE",
        )
    return Reference(host, path, tag or None, digest or None)


def is_loopback(host: str) -> bool:
    """Tell whether HOST[:PORT] is this machine; only there the factory speaks plain http."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def login_command(host: str) -> str:
    if ARTIFACT_REGISTRY.fullmatch(host) or GCR.fullmatch(host):
        return f"gcloud auth configure-docker {host}"
    return "docker login" if host == DOCKER_HUB else f"docker login {host}"


def _no_reference(text: str, why: str, fix: str = "write HOST/PATH[:TAG]") -> InputError:
    return InputError(f"{text!r} is not an image reference: {why}", fix)
